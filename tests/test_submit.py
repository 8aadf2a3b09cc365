"""The challenge file: schema, bytes, savepoints, and the checker."""

from __future__ import annotations

import json
import os
import uuid
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from ranker import submit
from ranker.core.cli import run
from ranker.core.config import parse_config
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.tasks import GradedTask
from ranker.core.taxonomy import Skill, Taxonomy

CONFIG = parse_config(
    {"name": "toy", "lanes": [{"name": "a", "family": "bm25"}], "pool": {"size": 5, "weights": {"a": 1.0}}}
)
UUIDS = [str(uuid.UUID(int=i)) for i in range(8)]


class Fake:
    """Ranks by a hash of the text; can stop in the middle, as a killed run does."""

    config = CONFIG

    def __init__(self, *, stop_after: int | None = None) -> None:
        self.taxonomy = Taxonomy.from_skills(Skill(submit.URI_PREFIX + u, f"skill {u}") for u in UUIDS)
        self.stop_after = stop_after
        self.asked: list[str] = []

    def order(self, texts, top_k=None):
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        self.asked += texts
        rows = np.full((len(texts), top_k), -1, dtype=np.int32)
        scores = np.zeros((len(texts), top_k), dtype=np.float32)
        for i, text in enumerate(texts):
            if not text.strip():
                continue
            k = min(top_k, len(UUIDS))
            draw = np.random.default_rng(sum(text.encode()))
            rows[i, :k] = draw.permutation(len(UUIDS))[:k]
            scores[i, :k] = -np.sort(-draw.random(k).astype(np.float32))
        return rows, scores


def task(n: int = 40, name: str = "Skill Extraction House Graded") -> GradedTask:
    ids = tuple(f"q/{i}~" for i in range(n))
    return GradedTask(name, "validation", ids, tuple(f"text {i}" for i in range(n)), {q: {} for q in ids})


def read(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["submission.json"]
        return json.loads(archive.read("submission.json"))


def test_schema_and_order(tmp_path):
    out = tmp_path / "s.zip"
    ranker = Fake()
    written = submit.submit(ranker, [task()], top_k=5, out=out)
    found = read(out)
    assert found == written
    payload = found["toy"]["Skill Extraction House Graded"]["en"]
    assert list(payload) == ["num_queries", "num_targets", "scores"]
    assert (payload["num_queries"], payload["num_targets"]) == (40, 8)
    rows, scores = ranker.order(["text 7"], 5)
    row = payload["scores"]["q/7~"]
    assert list(row) == [UUIDS[r] for r in rows[0]]
    assert [np.float32(s) for s in row.values()] == list(scores[0])
    assert submit.validate(out) == ([], [])
    assert not submit.partial_folder(out).exists()


def test_equal_scores_keep_our_order_under_any_tie_rule():
    row = submit.score_row(["a", "b", "c", "d"], np.array([2, 0, 1, -1]), np.array([1, 1, 1, 0], dtype=np.float32))
    assert list(row) == ["c", "a", "b"]
    values = [np.float32(v) for v in row.values()]
    assert values[0] == 1
    assert values[0] > values[1] > values[2] > 0.999999


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_refused(bad):
    with pytest.raises(InputError, match="not finite"):
        submit.score_row(["a", "b"], np.array([0, 1]), np.array([1, bad], dtype=np.float32))


def test_an_empty_query_has_no_scores(tmp_path):
    one = GradedTask("t", "validation", ("a", "b"), ("  ", "text"), {"a": {}, "b": {}})
    out = tmp_path / "s.zip"
    scores = submit.submit(Fake(), [one], top_k=3, out=out)["toy"]["t"]["en"]["scores"]
    assert scores["a"] == {}
    assert len(scores["b"]) == 3
    faults, notes = submit.validate(out)
    assert not faults
    assert any("1 of 2 queries" in line for line in notes)
    assert any("none of the official tasks" in line for line in notes)


def test_an_interrupted_run_continues_and_writes_the_same_bytes(tmp_path):
    whole, broken = tmp_path / "a" / "s.zip", tmp_path / "b" / "s.zip"
    tasks = [task(), task(20, "Skill Extraction Tech Graded")]
    submit.submit(Fake(), tasks, top_k=5, out=whole)
    with pytest.raises(KeyboardInterrupt):
        submit.submit(Fake(stop_after=32), tasks, top_k=5, out=broken)
    assert not broken.exists()
    second = Fake()
    submit.submit(second, tasks, top_k=5, out=broken)
    assert len(second.asked) == 60 - 32, "finished chunks are not ranked again"
    assert broken.read_bytes() == whole.read_bytes()


def test_a_damaged_savepoint_is_made_anew(tmp_path):
    out = tmp_path / "s.zip"
    with pytest.raises(KeyboardInterrupt):
        submit.submit(Fake(stop_after=32), [task()], top_k=5, out=out)
    files = sorted(submit.partial_folder(out).rglob("*.json"))
    files[0].write_text(files[0].read_text()[:-20])
    again = Fake()
    submit.submit(again, [task()], top_k=5, out=out)
    assert len(again.asked) == 16 + 8
    submit.submit(Fake(), [task()], top_k=5, out=tmp_path / "t.zip")
    assert out.read_bytes() == (tmp_path / "t.zip").read_bytes()


def test_savepoints_depend_on_everything_that_changes_a_score():
    ranker, one = Fake(), task()
    key = submit.run_key(CONFIG, ranker.taxonomy, one, 5)
    other_config = parse_config(
        {"name": "toy", "lanes": [{"name": "a", "family": "bm25"}], "pool": {"size": 6, "weights": {"a": 1.0}}}
    )
    other_taxonomy = Taxonomy.from_skills([Skill("x", "one skill")])
    keys = {
        key,
        submit.run_key(other_config, ranker.taxonomy, one, 5),
        submit.run_key(CONFIG, other_taxonomy, one, 5),
        submit.run_key(CONFIG, ranker.taxonomy, task(39), 5),
        submit.run_key(CONFIG, ranker.taxonomy, task(name="other"), 5),
        submit.run_key(CONFIG, ranker.taxonomy, one, 6),
    }
    assert len(keys) == 6
    assert submit.run_key(CONFIG, ranker.taxonomy, one, 5) == key


# --- where it writes -------------------------------------------------------------------------------------------------


def test_an_output_that_cannot_be_written_fails_at_once(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ResourceError, match="cannot write"):
        submit.check_writable(file / "s.zip")
    (tmp_path / "d.zip").mkdir()
    with pytest.raises(ArgumentError, match="is a folder"):
        submit.check_writable(tmp_path / "d.zip")
    with pytest.raises(ArgumentError, match=r"takes a \.zip"):
        submit.check_writable(tmp_path / "s.json")
    if os.geteuid():
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        with pytest.raises(ResourceError, match="cannot write"):
            submit.check_writable(locked / "s.zip")


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Run the command with a fake ranker in the place of the pipeline; returns (exit code, times it was loaded)."""
    import sys

    loaded = []

    def load(config, taxonomy, stage_wise=False):
        loaded.append(config)
        return Fake()

    monkeypatch.setattr(submit, "load_config", lambda name: CONFIG)
    monkeypatch.setattr(submit, "load_taxonomy", lambda config: Fake().taxonomy)
    monkeypatch.setitem(sys.modules, "ranker.pipeline", SimpleNamespace(SkillRanker=load))

    def call(*arguments):
        loaded.clear()
        return run(submit.main, [str(a) for a in arguments]), len(loaded)

    return call


def write_task(folder, lines, qrels=None):
    folder.mkdir(parents=True)
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if qrels is not None:
        (folder / "qrels.tsv").write_text(qrels, encoding="utf-8")


def test_command_from_folder_to_valid_file(command, tmp_path, capsys):
    write_task(
        tmp_path / "data" / "house",
        [
            '{"_id": "a", "text": "50lbs"}',
            '{"_id": "a", "text": "a query id twice"}',
            '{"_id": "b", "text": NaN}',
            '{"_id": "c", "text": "\\u0000 \\ud83d\\ude80 溶接 IDS/IPS"}',
            '{"_id": "d", "text": ""}',
            "not json",
        ],
    )
    out = tmp_path / "build" / "s.zip"
    assert command("--data", tmp_path / "data", "--out", out, "--top-k", 4, "--json") == (0, 1)
    printed, progress = capsys.readouterr()
    assert json.loads(printed.splitlines()[-1])["tasks"] == {"house": 3}
    assert "line 2" in progress
    assert "line 3" in progress
    scores = read(out)["toy"]["house"]["en"]["scores"]
    assert [len(scores[q]) for q in ("a", "c", "d")] == [4, 4, 0]
    assert command("--validate", out) == (0, 0)


def test_tasks_that_cannot_be_loaded_are_named_and_strict_stops(command, tmp_path, capsys):
    write_task(tmp_path / "data" / "good", ['{"_id": "a", "text": "weld"}'])
    write_task(tmp_path / "data" / "bad", ["not json"])
    out = tmp_path / "s.zip"
    assert command("--data", tmp_path / "data", "--out", out) == (0, 1)
    assert "task bad is left out" in capsys.readouterr().err
    assert list(read(out)["toy"]) == ["good"]
    out.unlink()
    assert command("--data", tmp_path / "data", "--out", out, "--strict") == (ResourceError.exit_code, 0)
    assert not out.exists()


def test_nothing_is_loaded_before_the_output_is_known_to_be_writable(command, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    assert command("--data", tmp_path, "--out", blocker / "s.zip") == (ResourceError.exit_code, 0)


def test_data_that_is_no_folder(command, tmp_path):
    file = tmp_path / "queries.jsonl"
    file.write_text("{}")
    assert command("--data", file, "--out", tmp_path / "s.zip") == (InputError.exit_code, 0)
    assert command("--data", tmp_path / "none", "--out", tmp_path / "s.zip") == (ResourceError.exit_code, 0)


# --- the checker -----------------------------------------------------------------------------------------------------

GOOD = f'{{"m": {{"t": {{"en": {{"num_queries": 1, "num_targets": 8, "scores": {{"q": {{"{UUIDS[1]}": 0.5}}}}}}}}}}}}'


def zipped(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("0.5", "NaN", f"/m/t/en/scores/q/{UUIDS[1]}", "not finite"),
        ("0.5", "-Infinity", f"/m/t/en/scores/q/{UUIDS[1]}", "not finite"),
        ("0.5", "true", f"/m/t/en/scores/q/{UUIDS[1]}", "true or false"),
        ("0.5", '"0.5"', f"/m/t/en/scores/q/{UUIDS[1]}", "found text"),
        (UUIDS[1], submit.URI_PREFIX + UUIDS[1], None, "whole URI"),
        (UUIDS[1], "weld/~metal", "/m/t/en/scores/q/weld~1~0metal", "not the short id"),
        ('"num_queries": 1', '"num_queries": 2', "/m/t/en/num_queries", "states 2, scores hold 1"),
        ('"num_queries": 1', '"num_queries": 1.5', "/m/t/en/num_queries", "whole number"),
        ('"num_queries": 1, ', "", "/m/t/en/num_queries", "is missing"),
        ('"num_targets": 8', '"num_targets": 0', "/m/t/en/num_targets", "whole number"),
        ('"num_targets": 8', '"num_targets": 8, "extra": 1', "/m/t/en/extra", "unknown key"),
        ('"en"', '"de"', "/m/t/de", "unknown language"),
        ('"q": {', f'"q": {{"{UUIDS[2]}": 1, "{UUIDS[2]}": 2, ', f"/m/t/en/scores/q/{UUIDS[2]}", "stands twice"),
        ('"q": {', '"q": {}, "q": {', "/m/t/en/scores/q", "stands twice"),
        ('{"m"', '{"n": {}, "m"', "", "one model, found 2"),
        ('{"q"', '{"p": [], "q"', "/m/t/en/scores/p", "found a list"),
    ],
)
def test_every_fault_is_named_with_its_place(tmp_path, old, new, place, words):
    file = tmp_path / "s.json"
    file.write_text(GOOD.replace(old, new, 1))
    found, _ = submit.validate(file)
    assert any(words in fault and place in (None, at) for at, fault in found), found


def test_all_faults_are_found_in_one_go(tmp_path, capsys):
    bad = GOOD.replace("0.5", "NaN").replace('"num_targets": 8', '"num_targets": -1')
    file = zipped(tmp_path / "s.zip", {"a.json": bad})
    assert run(submit.main, ["--validate", str(file), "--json"]) == InputError.exit_code
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["valid"] is False
    assert {fault["place"] for fault in answer["faults"]} == {"/m/t/en/num_targets", f"/m/t/en/scores/q/{UUIDS[1]}"}


@pytest.mark.parametrize("value", ["[]", "3", '"x"', '{"m": 1}', '{"m": {"t": []}}', '{"m": {"t": {"en": null}}}'])
def test_wrong_shapes_are_faults_and_no_crash(tmp_path, value):
    file = tmp_path / "s.json"
    file.write_text(value)
    assert submit.validate(file)[0]


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        submit.validate(tmp_path)
    with pytest.raises(ResourceError, match="no file"):
        submit.validate(tmp_path / "none.zip")
    with pytest.raises(InputError, match="flat at its root"):
        submit.validate(zipped(tmp_path / "a.zip", {"folder/s.json": GOOD}))
    with pytest.raises(InputError, match="flat at its root"):
        submit.validate(zipped(tmp_path / "b.zip", {"a.json": GOOD, "b.json": GOOD}))
    for name, data in (("c.zip", b"PK\x03\x04rubbish"), ("d.json", b"{"), ("e.json", b"\xff\xfe")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match="neither"):
            submit.validate(tmp_path / name)
