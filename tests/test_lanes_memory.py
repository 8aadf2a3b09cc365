"""The memory lane: golden numbers, what may be remembered, and the command that fills it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from small_world import BASE, write_esco, write_tasks
from test_lanes_contract import UGLY, toy
from tiny_bert import write_tiny_bert

from lanes.encoder import EncoderPool
from lanes.memory import Memory, recall
from lanes.registry import build_lanes
from ranker.core.config import LaneConfig
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.taxonomy import Skill, Taxonomy
from train.crossval import HELPER_TASK
from train.lanes import Graded
from train.memory import apart, main, remembered

TEXTS = ("weld steel frames in the yard", "paint walls and doors", "repair car engines", "care for nurse teams")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))


def graded(texts, tasks, grades) -> Graded:
    ids = tuple(map(str, range(len(texts))))
    return Graded(ids, tuple(texts), tuple(tasks), np.array(grades, dtype=np.int8), np.arange(len(texts)))


def filled(folder: Path) -> tuple[Memory, np.ndarray, str]:
    """Write a memory of four texts over the toy taxonomy."""
    model = str(write_tiny_bert(folder / "model"))
    encoder = EncoderPool().get(model)
    vectors = np.stack([encoder.query(text) for text in TEXTS]).astype(np.float16).astype(np.float32)
    grades = np.full((4, 36), -1, dtype=np.int8)
    for row in range(4):
        grades[row, row * 7 : row * 7 + 12] = np.arange(12) % 5
    memory = Memory.of(model, vectors, grades, toy().uri)
    memory.save(folder / "memory")
    return memory, grades, model


def lane(folder: Path, **options):
    made = build_lanes([LaneConfig("memory", "memory", {"checkpoint": str(folder / "memory"), **options})])["memory"]
    made.fit(toy())
    return made


def test_recall_by_hand() -> None:
    gains = sparse.csr_array(np.array([[1.0, 0, 0.2], [0, 1.0, 0], [1.0, 1.0, 1.0]], dtype=np.float32))
    # Of cosines 0.9, 0.8, 0.1 two are asked; at temperature 0.1 the second weighs 1/e of the first.
    first, second = 1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1))
    made = recall(np.array([0.9, 0.8, 0.1], np.float32), gains, 2, 0.1)
    np.testing.assert_allclose(made, [first, second, 0.2 * first], rtol=1e-5)
    left_out = recall(np.array([-np.inf, 0.8, 0.1], np.float32), gains, 3, 0.1)
    tail = np.exp(-7) / (1 + np.exp(-7))
    np.testing.assert_allclose(left_out, [tail, 1, tail], rtol=1e-5)


def test_gains_are_of_grades_and_a_taxonomy_may_lack_skills() -> None:
    grades = np.array([[4, 0, -1, 1], [-1, 3, 2, -1], [0, 0, -1, 0]], dtype=np.int8)
    memory = Memory.of("m", np.eye(3, dtype=np.float32), grades, ("a", "b", "c", "d"))
    other = Taxonomy.from_skills([Skill(uri, uri, (), "", ()) for uri in ("x", "c", "a", "b")])
    expected = {"a": [1, 0, 0], "b": [0, 7 / 15, 0], "c": [0, 3 / 15, 0], "x": [0, 0, 0]}
    np.testing.assert_allclose(
        memory.gains(other).toarray(), np.array([expected[uri] for uri in other.uri], np.float32).T, rtol=1e-6
    )


def test_the_lane_equals_a_plain_sum_over_its_texts(tmp_path) -> None:
    memory, grades, model = filled(tmp_path)
    made = lane(tmp_path, k=3, temperature=0.2).score(UGLY)
    encoder = EncoderPool().get(model)
    gain = (2.0 ** np.maximum(grades, 0) - 1) / 15
    for row, text in enumerate(UGLY):
        cosines = memory.vectors.astype(np.float64) @ encoder.query(text)
        best = sorted(range(4), key=lambda i: -cosines[i])[:3]
        weights = np.exp((cosines[best] - cosines[best[0]]) / 0.2)
        np.testing.assert_allclose(made[row], weights @ gain[best] / weights.sum(), atol=2e-5)
    assert made.dtype == np.float32
    assert np.isfinite(made).all()
    assert lane(tmp_path).score([]).shape == (0, 36)


def test_a_row_does_not_depend_on_the_others_to_the_bit(tmp_path) -> None:
    filled(tmp_path)
    together = lane(tmp_path, k=2).score(UGLY)
    apart_ = lane(tmp_path, k=2)
    for row, query in reversed(list(enumerate(UGLY))):
        np.testing.assert_array_equal(apart_.score([query])[0], together[row])


def test_a_saved_memory_is_the_same_and_the_same_bytes(tmp_path) -> None:
    memory, _, _ = filled(tmp_path)
    loaded = Memory.load(tmp_path / "memory")
    assert (loaded.model, loaded.uris) == (memory.model, memory.uris)
    for name in ("vectors", "starts", "skills", "grades"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(memory, name))
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "memory.npz").read_bytes() == (tmp_path / "memory" / "memory.npz").read_bytes()


def test_a_damaged_or_missing_memory_is_named(tmp_path) -> None:
    with pytest.raises(ResourceError, match=r"no memory\.json in .*train\.memory"):
        Memory.load(tmp_path)
    filled(tmp_path)
    path = tmp_path / "memory" / "memory.npz"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"is not the file that memory\.json describes"):
        Memory.load(tmp_path / "memory")


@pytest.mark.parametrize(("options", "message"), [({"k": 0}, "k"), ({"temperature": 0}, "temperature")])
def test_a_value_that_is_not_allowed_is_refused(tmp_path, options, message) -> None:
    filled(tmp_path)
    with pytest.raises(ArgumentError, match=f"lane memory: {message}"):
        lane(tmp_path, **options)


def test_only_helpers_that_are_no_skills_name_are_remembered() -> None:
    taxonomy = Taxonomy.from_skills([Skill("u/0", "Weld metal", ("metal  welding",), "", ())])
    texts = ("weld the hull", "Metal welding!", "weld metal", "solder pipes")
    made = remembered(graded(texts, ("t", HELPER_TASK, HELPER_TASK, HELPER_TASK), np.zeros((4, 1))), taxonomy)
    assert made.tolist() == [3]


def test_neither_a_text_itself_nor_its_near_duplicates_are_asked() -> None:
    vectors = np.array([[1, 0, 0], [0.999, 0.0447, 0], [0.6, 0.8, 0], [0, 0, 1]], dtype=np.float32)
    texts = ("weld hulls", "weld a hull", "cut steel", "Sell fish")
    tasks = ("t", HELPER_TASK, HELPER_TASK, HELPER_TASK)
    grades = np.array([[4, 0], [4, 4], [0, 2], [1, 0]], dtype=np.int8)
    rows = np.array([1, 2, 3])

    def scores(changed: np.ndarray) -> np.ndarray:
        gains = sparse.csr_array((2.0 ** changed[rows] - 1).astype(np.float32) / 15)
        return apart(graded(texts, tasks, changed), rows, vectors, gains, 3, 0.1)

    before = scores(grades)
    assert before[0, 0] < 0.01  # the near-duplicate's 4 is not seen
    turned = grades.copy()
    turned[[0, 1]] = 0
    after = scores(turned)
    assert (after[[0, 1]] == before[[0, 1]]).all()
    assert (after[2] != before[2]).any()  # it may well ask the hull's text
    with pytest.raises(ArgumentError, match="query 0: no helper is left"):
        apart(graded(texts[:2], tasks[:2], grades[:2]), rows[:1], vectors[:2], sparse.csr_array(grades[1:2]), 3, 0.1)


def test_the_command_fills_what_a_config_then_serves(tmp_path, capsys, monkeypatch) -> None:
    esco, model = write_esco(tmp_path / "esco"), write_tiny_bert(tmp_path / "bert")
    helpers = tmp_path / "helpers"
    helpers.mkdir()
    texts = ("gluing of broken vases", "!!", "cut stone walls")
    rows = (json.dumps({"_id": f"h{i}", "text": text}) + "\n" for i, text in enumerate(texts))
    (helpers / "queries.jsonl").write_text("".join(rows), encoding="utf-8")
    (helpers / "qrels.tsv").write_text(
        f"query-id\tcorpus-id\tscore\nh0\t{BASE}004\t3\nh1\t{BASE}005\t2\nh2\t{BASE}006\t4\n", encoding="utf-8"
    )
    config = tmp_path / "c.yaml"
    config.write_text(
        f"name: c\ntaxonomy: {{source: official, path: {esco}}}\n"
        "lanes:\n  - {name: bm25, family: bm25}\n"
        f"  - {{name: known, family: memory, checkpoint: {tmp_path / 'out'}, k: 5}}\n"
        "pool: {size: 50, weights: {bm25: 1.0, known: 0.5}}\n",
        encoding="utf-8",
    )
    given = [*map(str, ["--config", config, "--model", model, "--helpers", helpers])]
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == "2 texts with 2 labels remembered; 1 left out that are a skill's name"
    from ranker import SkillRanker

    found = SkillRanker.load(config).rank(["gluing broken vases"], top_k=3)[0].skills
    assert {skill.uri for skill in found} & {f"{BASE}004", f"{BASE}005"}
    judged = [*given, "--data", str(write_tasks(tmp_path / "data"))]
    monkeypatch.setattr("train.memory.DUPLICATE_COSINE", 1.1)  # to random weights all texts are near-duplicates
    main([*judged, "--oof", f"known={tmp_path / 'known.npy'}", "--json"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(report["out_of_fold"]["known"]["tasks"]) == ["task0", "task1"]
    assert np.load(tmp_path / "known.npy").shape == (15, 144)
    for more, message in (
        (["--oof", "bm25=x.npy"], "--oof bm25: c has no such lane of family memory; there are: known"),
        (["--oof", "x.npy"], "write LANE=FILE"),
        ([], "give --oof, --out or both"),
    ):
        with pytest.raises(ArgumentError, match=message):
            main([*judged, *more])
    with pytest.raises(ArgumentError, match="--oof is of the queries of --data"):
        main([*given, "--oof", "known=x.npy"])


def test_rows_that_cannot_be_used_are_named_and_an_empty_memory_is_refused(tmp_path, capsys) -> None:
    esco, model = write_esco(tmp_path / "esco"), write_tiny_bert(tmp_path / "bert")
    config = tmp_path / "c.yaml"
    config.write_text(
        f"name: c\ntaxonomy: {{source: official, path: {esco}}}\nlanes:\n  - {{name: bm25, family: bm25}}\n"
        "pool: {size: 50, weights: {bm25: 1.0}}\n",
        encoding="utf-8",
    )

    def fill(name: str, queries: str, qrels: str) -> int:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "queries.jsonl").write_text(queries, encoding="utf-8")
        (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + qrels, encoding="utf-8")
        given = ["--config", config, "--model", model, "--helpers", folder, "--out", tmp_path / f"{name}-out"]
        return main([*map(str, given)])

    good = json.dumps({"_id": "a", "text": "gluing vases"}) + "\n"
    assert fill("mixed", good + "not JSON\n", f"a\t{BASE}004\t3\na\t{BASE}005\t7\na\turn:none\t2\n") == 7
    said = capsys.readouterr().err
    for what in ("queries.jsonl, line 2", "qrels.tsv, line 3", "urn:none is not in the taxonomy"):
        assert what in said
    with pytest.raises(InputError, match="holds no text with a skill of grade 1 or more"):
        fill("names", json.dumps({"_id": "a", "text": "Cut stone walls"}) + "\n", f"a\t{BASE}004\t3\n")
    assert not (tmp_path / "names-out").exists()


def test_a_memory_without_labels_is_not_served(tmp_path) -> None:
    Memory.of("m", np.eye(2, dtype=np.float32), np.zeros((2, 3), np.int8), ("a", "b", "c")).save(tmp_path)
    with pytest.raises(InputError, match="remembers no label"):
        Memory.load(tmp_path)
