"""Folds, cross-validation and the training command: nothing leaks, files are whole, refusals say why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_world import write_config, write_esco, write_tasks

from fusion.bag import EXPECTED_GAIN, TAUGHT, train_bag, with_taught
from fusion.features import GROUPS, FeatureTable, PoolInputs, build_statics
from fusion.model import FusionModel
from ranker.core import metrics
from ranker.core.config import LaneConfig, load_config
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.sources import load_taxonomy
from ranker.core.tasks import load_tasks
from ranker.core.taxonomy import Skill, Taxonomy
from ranker.document import LONGEST
from train.crossval import (
    NEGATIVE_TASK,
    TAUGHT_PARAMS,
    TAUGHT_ROUNDS,
    GradedPool,
    Recipe,
    cross_validate,
    design,
    evaluate,
    group_of,
    static_table,
    teach,
    without,
)
from train.folds import canonical, duplicate_clusters, make_folds, read_folds, task_folds
from train.fusion import NEGATIVES, main, read_negatives, score_lanes

RECIPE = Recipe(params=({**EXPECTED_GAIN, "min_data_in_leaf": 3, "num_leaves": 4},), rounds=5, members=1)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))


def graded(n: int = 20, k: int = 12, seed: int = 0, flip: int | None = None, name: str = "x"):
    taxonomy = Taxonomy.from_skills([Skill(f"u/{i:02d}", f"skill {i}", (), "", (f"S1.{i % 3}.0",)) for i in range(30)])
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=(n, 30))
    lane = (truth + generator.normal(size=truth.shape)).astype(np.float32)
    pool = np.argsort(-lane, axis=1, kind="stable")[:, :k].astype(np.int32)
    all_grades = np.clip(np.digitize(truth, [0, 0.7, 1.2, 1.8]), 0, 4).astype(np.int8)
    if flip is not None:
        all_grades[flip] = 4 - all_grades[flip]
    grades = np.take_along_axis(all_grades, pool, axis=1)
    inputs = PoolInputs([f"query {i}" for i in range(n)], {"a": lane}, lane, pool)
    tasks = tuple("ab"[i % 2] for i in range(n))
    ids = tuple(map(str, range(n)))
    made = GradedPool(inputs, grades, metrics.ideal_grades(all_grades.tolist()), tasks, ids, f"{name}{flip}")
    return made, build_statics(taxonomy)


def test_equal_and_near_equal_queries_share_a_fold() -> None:
    texts = ["Weld metal.", "weld  METAL", "paint", "glaze", "sell", "count"]
    vectors = np.eye(6, dtype=np.float32)
    vectors[3] = [0, 0, 0.99, 0.1, 0, 0]
    clusters = duplicate_clusters(texts, vectors)
    assert clusters.tolist() == [0, 0, 2, 2, 4, 5]
    assert canonical("C++ / \u00bd Tests") == canonical("c  1 2 tests")
    for seed in range(5):
        folds = make_folds(clusters, ["t"] * 6, n_folds=3, seed=seed)
        assert folds[0] == folds[1]
        assert folds[2] == folds[3]


def test_folds_are_balanced_within_tasks_and_fixed_by_the_seed() -> None:
    tasks = ["a"] * 23 + ["b"] * 9 + ["c"] * 14
    folds = make_folds(np.arange(46), tasks, seed=3)
    for task in "abc":
        counts = np.bincount([f for f, t in zip(folds, tasks, strict=True) if t == task], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.bincount(folds).tolist() == sorted(np.bincount(folds).tolist(), reverse=True)[:5] or max(
        np.bincount(folds)
    ) - min(np.bincount(folds)) <= 1
    np.testing.assert_array_equal(folds, make_folds(np.arange(46), tasks, seed=3))
    assert (folds != make_folds(np.arange(46), tasks, seed=4)).any()
    assert task_folds(tasks).tolist() == [0] * 23 + [1] * 9 + [2] * 14


def test_folds_from_a_file(tmp_path) -> None:
    path = tmp_path / "folds.json"
    path.write_text(json.dumps({"q0": 1, "b/q0": 2, "q1": 0}))
    assert read_folds(path, ["q0", "q1", "q0"], ["a", "a", "b"]).tolist() == [1, 0, 2]
    with pytest.raises(InputError, match="no fold for 1 queries, the first is 'q9'"):
        read_folds(path, ["q0", "q9"], ["a", "a"])
    with pytest.raises(ResourceError, match="no folds at"):
        read_folds(tmp_path / "none.json", [], [])
    with pytest.raises(ArgumentError, match="3 distinct queries cannot make 5 folds"):
        make_folds(np.arange(3), ["t"] * 3)


def test_labels_of_a_held_out_query_cannot_change_its_own_score() -> None:
    folds = np.arange(20) % 4
    pool, statics = graded()
    before = cross_validate(pool, static_table(pool, statics), statics, RECIPE, folds).order
    other, _ = graded(flip=7)
    after = cross_validate(other, static_table(other, statics), statics, RECIPE, folds).order
    same_fold = folds == folds[7]
    np.testing.assert_array_equal(before[same_fold], after[same_fold])
    assert (before[~same_fold] != after[~same_fold]).any()


def test_training_rows_do_not_see_their_own_grade_in_the_prior() -> None:
    pool, statics = graded()
    train = np.arange(15)
    static = static_table(pool, statics)
    table, _ = design(pool, static, statics, RECIPE, train)
    other, _ = graded(flip=3)
    changed, _ = design(other, static, statics, RECIPE, train)
    np.testing.assert_allclose(table.values[3], changed.values[3], atol=1e-6)
    assert (table.values[4] != changed.values[4]).any()


def test_cross_validation_is_resumed_from_its_cache(tmp_path) -> None:
    pool, statics = graded()
    folds = np.arange(20) % 4
    first = np.array(cross_validate(pool, static_table(pool, statics), statics, RECIPE, folds, workers=1))
    files = sorted((tmp_path / "cache").rglob("fusion-cv-*.npy"))
    second = cross_validate(pool, static_table(pool, statics), statics, RECIPE, folds, workers=2)
    np.testing.assert_array_equal(first, second)
    assert sorted((tmp_path / "cache").rglob("fusion-cv-*.npy")) == files


def test_helpers_teach_a_bag_that_judged_grades_cannot_change() -> None:
    pool, statics = graded()
    static = static_table(pool, statics)
    rows = np.arange(14, 20)
    bag = teach(pool, static, GROUPS, rows)
    assert not {"absolute", "prior", "taught"} & {group_of(name) for name in bag.names}
    other, _ = graded(flip=3)
    assert teach(other, static_table(other, statics), GROUPS, rows) == bag
    assert teach(pool, static, GROUPS, rows[:3]) != bag
    unjudged = replace(pool, grades=np.where(pool.grades == 0, -1, pool.grades).astype(np.int8))
    kept = unjudged.grades[rows] >= 0
    values = FeatureTable(static.names, static.values[rows]).select(bag.names)
    by_hand = train_bag(
        values[kept][None], unjudged.grades[rows][kept][None], bag.names, params=(TAUGHT_PARAMS,), rounds=TAUGHT_ROUNDS,
        seeds=(0,),
    )
    assert teach(unjudged, static, GROUPS, rows).members == by_hand.members  # what is unjudged is in no row


def test_helpers_that_teach_nothing_are_refused() -> None:
    pool, statics = graded()
    static = static_table(pool, statics)
    with pytest.raises(InputError, match="none is left that has a judged skill"):
        teach(pool, static, GROUPS, np.arange(0))
    unjudged = replace(pool, grades=np.full_like(pool.grades, -1))
    with pytest.raises(InputError, match="none is left that has a judged skill"):
        teach(unjudged, static, GROUPS, np.arange(3))


def test_lane_scores_are_kept_by_what_a_checkpoint_holds(tmp_path) -> None:
    class Counting:
        config = replace(
            load_config("baseline-bm25"), lanes=(LaneConfig("a", "memory", {"checkpoint": str(tmp_path / "m")}),)
        )
        lanes = {"a": None}  # noqa: RUF012
        asked = 0

        def fill(self, queries, *, columns) -> None:
            type(self).asked += 1

        def lane_scores(self, queries):
            return {"a": np.zeros((len(queries), 3), np.float32)}

    (tmp_path / "m").mkdir()
    counts = []
    for text in ("one", "one", "two"):
        (tmp_path / "m" / "memory.json").write_text(text)
        (tmp_path / "m" / "model.safetensors").write_text(text)
        score_lanes(Counting(), ["x"], {}, {})
        counts.append(Counting.asked)
    assert counts == [1, 1, 2]


def test_the_order_of_the_taught_bag_comes_last_and_can_be_dropped() -> None:
    pool, statics = graded()
    static = static_table(pool, statics)
    assert with_taught(static, None) is static
    more = with_taught(static, teach(pool, static, GROUPS, np.arange(14, 20)))
    table, _ = design(pool, more, statics, RECIPE, np.arange(14))
    assert table.names[-2:] == TAUGHT
    z, rank = table.select(TAUGHT).transpose(2, 0, 1)
    np.testing.assert_allclose(z.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(np.sort(rank, axis=1), np.broadcast_to(np.log1p(np.arange(12)), rank.shape), rtol=1e-6)
    assert (np.diff(np.take_along_axis(z, np.argsort(rank, axis=1), axis=1)) <= 0).all()
    fewer, _ = design(pool, more, statics, without(RECIPE, "taught"), np.arange(14))
    assert set(table.names) - set(fewer.names) == set(TAUGHT)


def test_helpers_are_in_no_figure_and_near_duplicates_of_judged_queries_teach_no_bag(tmp_path, capsys) -> None:
    config = write_config(tmp_path / "c.yaml", write_esco(tmp_path / "esco"))
    data, helpers = write_tasks(tmp_path / "data"), write_tasks(tmp_path / "helpers", n_tasks=1, seed=5)
    file = helpers / "task0" / "queries.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    asked = json.loads((data / "task0" / "queries.jsonl").read_text().splitlines()[0])["text"]
    rows[0]["text"] = asked.upper() + "!"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--config", config, "--data", data, "--members", "4", "--rounds", "5", "--repetitions", "1", "--json"]
    reports = []
    for name, more in (("none", []), ("helped", ["--helpers", helpers])):
        main([*map(str, [*given, *more, "--out", tmp_path / name])])
        reports.append(json.loads((said := capsys.readouterr()).out))
    assert f"{len(rows) - 1} of {len(rows)} helpers teach a bag" in said.err
    alone, helped = reports
    assert helped["queries"] == alone["queries"]
    assert set(helped["cv"]["tasks"]) == set(alone["cv"]["tasks"])

    def same(file: str) -> bool:
        return (tmp_path / "helped" / file).read_bytes() == (tmp_path / "none" / file).read_bytes()

    assert same("prior.npz")
    assert not same("gate.npz")
    assert not same("member-00.txt")
    assert (tmp_path / "helped" / "taught" / "member-00.txt").is_file()
    assert not (tmp_path / "none" / "taught").exists()
    manifest = json.loads((tmp_path / "helped" / "manifest.json").read_text())
    assert tuple(manifest["features"][-2:]) == TAUGHT
    assert json.loads((tmp_path / "none" / "manifest.json").read_text())["taught"] is None


def test_texts_without_a_skill_are_scored_out_of_fold_count_in_no_figure_and_reach_no_prior() -> None:
    pool, statics = graded()
    negative = np.arange(20) >= 14
    grades = np.where(negative[:, None], 0, pool.grades)
    tasks = tuple(NEGATIVE_TASK if no else task for no, task in zip(negative, pool.tasks, strict=True))
    with_them = GradedPool(pool.inputs, grades, pool.ideal, tasks, pool.query_ids, "negatives")
    static, folds = static_table(with_them, statics), np.arange(20) % 3
    scores = cross_validate(with_them, static, statics, RECIPE, folds)
    assert np.isfinite(scores.level).all()
    assert set(evaluate(with_them, scores.order)["tasks"]) == {"a", "b"}
    broken = np.where(negative[:, None], 7, scores.order)
    assert evaluate(with_them, broken) == evaluate(with_them, scores.order)
    _, prior = design(with_them, static, statics, RECIPE, np.arange(20))
    _, without_them = design(with_them, static, statics, RECIPE, np.arange(14))
    np.testing.assert_array_equal(prior.counts, without_them.counts)
    # What they look like changes no score of the order, and the levels of everything.
    other = replace(with_them, grades=np.where(negative[:, None], 4, grades), fingerprint="other")
    changed = cross_validate(other, static, statics, RECIPE, folds)
    np.testing.assert_array_equal(changed.order, scores.order)
    assert (changed.level[~negative] != scores.level[~negative]).any()


def test_only_the_judge_reads_scores_as_they_are_and_not_those_of_trained_lanes() -> None:
    pool, statics = graded()
    folds, static = np.arange(20) % 4, static_table(pool, statics)
    moved = replace(pool, fingerprint="moved")
    raw = np.array([name == "raw.a" for name in static.names])
    assert raw.sum() == 1
    noise = np.random.default_rng(0).normal(size=static.values.shape).astype(np.float32)
    table = replace(static, values=np.where(raw, noise, static.values))
    before = cross_validate(pool, static, statics, RECIPE, folds)
    after = cross_validate(moved, table, statics, RECIPE, folds)
    np.testing.assert_array_equal(after.order, before.order)
    trained = [replace(p, trained=("a",), fingerprint=f"trained{i}") for i, p in enumerate((pool, moved))]
    first, second = (
        cross_validate(p, t, statics, RECIPE, folds) for p, t in zip(trained, (static, table), strict=True)
    )
    np.testing.assert_array_equal(first.level, second.level)


def test_the_shipped_texts_without_a_skill() -> None:
    texts = read_negatives(NEGATIVES)
    assert 250 <= len(texts) <= 400
    assert len({canonical(text) for text in texts}) == len(texts)
    assert all(text == text.strip() and len(text) <= LONGEST for text in texts)
    # None of them is a text that the figures are made of.
    data = Path(__file__).resolve().parents[2] / "shared" / "data" / "graded"
    if not data.is_dir():
        pytest.skip(f"no graded queries at {data}")
    graded_texts = {
        canonical(json.loads(line)["text"])
        for file in data.glob("*/queries.jsonl") for line in file.read_text(encoding="utf-8").splitlines()
    }
    assert not graded_texts & {canonical(text) for text in texts}


def test_evaluate_equals_the_metric_on_the_ranking() -> None:
    pool, _ = graded(n=6)
    scores = np.random.default_rng(1).normal(size=pool.grades.shape).astype(np.float32)
    result = evaluate(pool, scores)
    order = np.argsort(-scores, axis=1)
    value = metrics.ndcg(np.take_along_axis(pool.grades, order, axis=1), pool.ideal, k=100)
    assert result["macro"] == pytest.approx(np.mean([value[::2].mean(), value[1::2].mean()]), abs=1e-12)
    assert sum(result["composition"].values()) == pytest.approx(12)


def test_every_feature_belongs_to_a_group_and_can_be_dropped() -> None:
    pool, statics = graded()
    table, _ = design(pool, static_table(pool, statics), statics, RECIPE, np.arange(15))
    assert {group_of(name) for name in table.names} <= set(RECIPE.groups)
    for group in ("lanes", "evidence", "prior"):
        fewer, _ = design(pool, static_table(pool, statics), statics, without(RECIPE, group), np.arange(15))
        assert set(table.names) - set(fewer.names) == {name for name in table.names if group_of(name) == group}


def test_a_shuffled_prior_is_another_prior_with_the_same_columns() -> None:
    pool, statics = graded()
    static = static_table(pool, statics)
    honest, _ = design(pool, static, statics, RECIPE, np.arange(15))
    control, _ = design(pool, static, statics, replace(RECIPE, shuffled_prior=True), np.arange(15))
    assert honest.names == control.names
    assert (honest.select(["prior.skill.gain"]) != control.select(["prior.skill.gain"])).any()
    np.testing.assert_array_equal(honest.select(["lane.a.z"]), control.select(["lane.a.z"]))


def command(tmp_path: Path, *extra: str) -> tuple[Path, list[str]]:
    esco = tmp_path / "esco"
    if not esco.is_dir():
        write_esco(esco)
        write_tasks(tmp_path / "data", n_queries=8)
    config = write_config(tmp_path / "small.yaml", esco)
    given = ["--config", str(config), "--data", str(tmp_path / "data"), "--rounds", "5", "--members", "4"]
    return config, [*given, "--repetitions", "1", "--out", str(tmp_path / "bag"), *extra]


def test_the_command_trains_reports_and_saves(tmp_path, capsys) -> None:
    config, arguments = command(tmp_path, "--json", "--ladder")
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(report["cv"]["tasks"]) == {"task0", "task1"}
    rungs = {row["name"]: row for row in report["ladder"]}
    assert {"learned fusion", "task left out: learned fusion"} <= set(rungs)
    assert set(rungs["learned fusion, alt-label override"]["tasks"]) == {"task0", "task1"}
    texts = len(read_negatives(NEGATIVES))
    assert (report["queries"], report["without_a_skill"]) == (16, texts)
    assert report["calibration"]["2"]["without_a_skill"]["texts"] == texts
    assert report["calibration"]["gate"]["auc"] > 0.9  # they share no word with the small taxonomy
    folder = tmp_path / "bag"
    assert {"manifest.json", "README.md", "report.json", "calibration.json", "prior.npz"} <= {
        path.name for path in folder.iterdir()
    }
    system = load_config(config)
    taxonomy = load_taxonomy(system.taxonomy)
    loaded = FusionModel.load(folder, taxonomy=taxonomy, config_digest=system.digest)
    assert (loaded.bag.least, len(loaded.bag.judges)) == ((1, 2, 3, 4), 1)
    assert loaded.gate is not None
    assert loaded.gate.lanes == ("bm25", "tfidf")
    files = [*folder.glob("member-*"), folder / "gate.npz"]
    before = {path.name: path.read_bytes() for path in files}
    assert main(arguments) == 0
    assert {path.name: path.read_bytes() for path in files} == before


def test_a_bag_of_chances_has_one_member_per_grade(tmp_path) -> None:
    _, arguments = command(tmp_path, "--members", "6")
    with pytest.raises(ArgumentError, match="--members 6: --objective grades trains one per grade"):
        main(arguments)


def test_out_of_fold_scores_replace_a_lane(tmp_path, capsys) -> None:
    config, arguments = command(tmp_path)
    taxonomy = load_taxonomy(load_config(config).taxonomy)
    perfect = np.zeros((16, len(taxonomy)), np.float32)
    row = 0
    for task in load_tasks(tmp_path / "data", taxonomy=taxonomy):
        for query in task.query_ids:
            for uri, grade in task.qrels[query].items():
                perfect[row, taxonomy.index[uri]] = grade
            row += 1
    np.save(tmp_path / "oof.npy", perfect)
    assert main([*arguments, "--oof", f"bm25={tmp_path / 'oof.npy'}", "--json"]) == 0
    with_oof = json.loads(capsys.readouterr().out.splitlines()[-1])["cv"]["macro"]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["cv"]["macro"] < with_oof


def test_texts_without_a_skill_can_be_given_or_left_out(tmp_path, capsys) -> None:
    _, arguments = command(tmp_path, "--json")
    (tmp_path / "nothing.txt").write_text("# not read\n\nfree parking\n the sky is blue \n", encoding="utf-8")
    assert read_negatives(tmp_path / "nothing.txt") == ["free parking", "the sky is blue"]
    assert main([*arguments, "--negatives", str(tmp_path / "nothing.txt")]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["without_a_skill"] == 2
    assert "Of 2 texts that ask for no skill" in (tmp_path / "bag" / "README.md").read_text()
    assert main([*arguments, "--negatives", "none"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["without_a_skill"] == 0
    assert "No text without a skill" in (tmp_path / "bag" / "README.md").read_text()
    assert json.loads((tmp_path / "bag" / "manifest.json").read_text())["gate"] is False
    with pytest.raises(ResourceError, match="write none to train without"):
        main([*arguments, "--negatives", str(tmp_path / "missing.txt")])


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ("bm25", ArgumentError, "write NAME=FILE"),
        ("magic=x.npy", ArgumentError, "no such lane or column; there are: bm25, tfidf"),
        ("bm25=none.npy", ResourceError, r"no file none\.npy"),
        ("bm25={short}", InputError, "expected one row for 16 queries"),
    ],
)
def test_bad_out_of_fold_scores_are_refused(tmp_path, argument, error, message) -> None:
    np.save(tmp_path / "short.npy", np.zeros((3, 144), np.float32))
    _, arguments = command(tmp_path)
    with pytest.raises(error, match=message):
        main([*arguments, "--oof", argument.format(short=tmp_path / "short.npy")])
