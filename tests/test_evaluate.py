"""The evaluate command: figures, composition, comparison, files, and what it says when something is missing."""

from __future__ import annotations

import csv
import json
import math
import sys

import numpy as np
import pytest
from small_world import BASE, write_config, write_esco, write_tasks

from ranker import evaluate
from ranker.core.cli import run
from ranker.core.errors import PrerequisiteError
from ranker.core.tasks import GradedTask, load_tasks
from ranker.core.taxonomy import Skill, Taxonomy


class FixedOrder:
    """A system that answers from a table; it notes what it was asked."""

    def __init__(self, taxonomy, rows):
        self.taxonomy = taxonomy
        self.rows = rows
        self.asked = []

    def order(self, texts, top_k=None):
        self.asked.append((list(texts), top_k))
        rows = np.full((len(texts), top_k), -1, dtype=np.int32)
        for i, text in enumerate(texts):
            rows[i, : len(self.rows[text])] = self.rows[text]
        return rows, np.zeros(rows.shape, dtype=np.float32)


@pytest.fixture
def taxonomy():
    return Taxonomy.from_skills([Skill(f"{BASE}{i}", f"skill {i}") for i in range(5)])


def task(name, qrels):
    texts = tuple(f"text of {query}" for query in qrels)
    return GradedTask(name, "validation", tuple(qrels), texts, qrels)


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    esco = write_esco(tmp_path / "esco")
    write_config(tmp_path / "one.yaml", esco)
    write_config(tmp_path / "two.yaml", esco, tfidf=0.0, size=20)
    write_tasks(tmp_path / "data")
    return tmp_path


def test_figures_by_hand(taxonomy):
    tasks = [
        task("a", {"q1": {f"{BASE}0": 4, f"{BASE}1": 2}, "q2": {f"{BASE}2": 4}}),
        task("b", {"q3": {f"{BASE}3": 2, "gone": 4}}),
    ]
    system = FixedOrder(taxonomy, {"text of q1": [4, 0, 1], "text of q2": [2, 3], "text of q3": [3]})
    scores = evaluate.evaluate(system, tasks)
    q1 = (15 / math.log2(3) + 3 / 2) / (15 + 3 / math.log2(3))
    q3 = 3 / (15 + 3 / math.log2(3))  # the gold skill that the taxonomy lacks counts in the ideal
    assert scores.tasks["a"].values["ndcg@100"] == pytest.approx([q1, 1.0])
    macro = scores.macro()
    assert macro["ndcg@100"] == pytest.approx(((q1 + 1) / 2 + q3) / 2)
    assert macro["mrr_gold"] == pytest.approx(((1 / 2 + 1) / 2 + 0) / 2)
    assert macro["recall@100_ge2"] == pytest.approx((1 + 1 / 2) / 2)
    slots = scores.composition()
    assert slots == {"0": 0.0, "1": 0.0, "2": 0.75, "3": 0.0, "4": 0.5, "holes": 0.5}
    assert scores.ms_per_query > 0
    # One query to warm up, then one call per task.
    assert [texts for texts, _ in system.asked] == [["text of q1"], ["text of q1", "text of q2"], ["text of q3"]]


def test_report_has_no_nan_and_compares_with_the_first(taxonomy):
    tasks = evaluate.TaskSet((task("a", {"q1": {f"{BASE}0": 2}, "q2": {f"{BASE}1": 2, f"{BASE}2": 1}}),), {"b": "gone"})
    good = FixedOrder(taxonomy, {"text of q1": [0], "text of q2": [1, 2]})
    bad = FixedOrder(taxonomy, {"text of q1": [3, 0], "text of q2": []})
    value = evaluate.report(
        {"bad": evaluate.evaluate(bad, tasks), "good": evaluate.evaluate(good, tasks)}, tasks, data="d", split="test"
    )
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert value["configs"]["good"]["macro"]["map_gold"] is None
    assert value["failed"] == {"b": "gone"}
    (found,) = value["comparisons"]
    assert (found["config"], found["baseline"]) == ("good", "bad")
    assert found["difference"] == pytest.approx((1 - 1 / math.log2(3) + 1) / 2)
    assert found["tasks"]["a"] == found["difference"]
    # A standard error from two differences: their spread, over the root of two.
    spread = np.std([1 - 1 / math.log2(3), 1.0], ddof=1) / math.sqrt(2)
    assert found["minimum_detectable"] == pytest.approx(2.8016 * spread, rel=1e-4)


def test_the_command_end_to_end(world, capsys):
    arguments = [
        "--config",
        str(world / "one.yaml"),
        "--config",
        str(world / "two.yaml"),
        "--data",
        str(world / "data"),
    ]
    outputs = ["--plot", str(world / "out" / "window.png"), "--per-query", str(world / "out" / "queries.csv")]
    assert run(evaluate.main, [*arguments, *outputs, "--json"]) == 0
    out = capsys.readouterr().out
    value = json.loads(out.strip().splitlines()[-1])
    assert list(value["configs"]) == ["one", "two"]
    one = value["configs"]["one"]
    assert list(one["tasks"]) == ["task0", "task1"]
    assert one["macro"]["ndcg@100"] == pytest.approx(
        (one["tasks"]["task0"]["ndcg@100"] + one["tasks"]["task1"]["ndcg@100"]) / 2
    )
    assert 0.5 < one["macro"]["ndcg@100"] <= 1
    assert one["macro"]["mrr_gold"] > 0.5
    assert sum(one["composition"].values()) == pytest.approx(100)
    assert sum(value["configs"]["two"]["composition"].values()) == pytest.approx(20)  # its pool is smaller
    low, high = one["macro_ci95"]
    assert low <= one["macro"]["ndcg@100"] <= high
    assert one["ms_per_query"] > 0
    (found,) = value["comparisons"]
    assert found["difference"] == pytest.approx(value["configs"]["two"]["macro"]["ndcg@100"] - one["macro"]["ndcg@100"])
    assert found["low"] <= found["difference"] <= found["high"]
    assert found["minimum_detectable"] > 0

    with (world / "out" / "queries.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 2 * 6
    mean = np.mean([float(row["ndcg@100"]) for row in rows if row["config"] == "one" and row["task"] == "task0"])
    assert mean == pytest.approx(one["tasks"]["task0"]["ndcg@100"])
    assert (world / "out" / "window.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (world / "out").iterdir()) == ["queries.csv", "window.png"]

    assert run(evaluate.main, [*arguments, "--tasks", "task1"]) == 0
    out = capsys.readouterr().out
    assert "task1" in out
    assert "task0" not in out
    assert "two minus one, ndcg@100: " in out
    assert "holes" in out


def test_partial_success_has_its_own_exit_code(world, capsys):
    (world / "data" / "task1" / "qrels.tsv").unlink()
    with (world / "data" / "task0" / "queries.jsonl").open("a") as stream:
        stream.write('{"_id": "q0", "text": "again"}\n')
    arguments = ["--config", str(world / "one.yaml"), "--data", str(world / "data"), "--json"]
    assert run(evaluate.main, arguments) == 7
    captured = capsys.readouterr()
    assert "not evaluated: task1: no file" in captured.err
    assert "line 7: query id 'q0' stands twice" in captured.err
    value = json.loads(captured.out)
    assert list(value["failed"]) == ["task1"]
    assert len(value["problems"]["task0"]) == 1


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (["--data", "nowhere"], 4, "no data at nowhere"),
        (["--data", "data/task0/queries.jsonl"], 5, "is a file"),
        (["--tasks", "nothing"], 2, "there are: task0, task1"),
        (["--plot", "data"], 2, "is a folder"),
        (["--plot", "window.xyz"], 2, "unknown format '.xyz'"),
        (["--per-query", "one.yaml/x.csv"], 4, "cannot write"),
        (["--config", "one.yaml"], 2, "given twice"),
        (["--config", "missing.yaml"], 4, "no config missing.yaml"),
    ],
)
def test_errors_come_before_the_work(world, monkeypatch, capsys, change, code, message):
    monkeypatch.chdir(world)
    monkeypatch.setattr(evaluate, "evaluate", lambda *_: pytest.fail("work was done before the arguments were checked"))
    assert run(evaluate.main, ["--config", "one.yaml", "--data", "data", *change, "--json"]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert message in json.loads(captured.out)["error"]


def test_without_matplotlib_the_pip_command_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PrerequisiteError, match=r"'\.\[train\]'"):
        evaluate.plot_composition(tmp_path / "x.png", {"one": dict.fromkeys(evaluate.COLORS, 10.0)})


def test_the_same_name_in_two_folders_keeps_both_apart(world):
    (world / "b").mkdir()
    write_config(world / "b" / "one.yaml", world / "esco")
    names = evaluate.named_configs([str(world / "one.yaml"), str(world / "b" / "one.yaml"), str(world / "two.yaml")])
    assert list(names) == [str(world / "one.yaml"), str(world / "b" / "one.yaml"), "two"]


def test_an_empty_query_scores_zero_and_costs_nothing_else(world):
    from ranker.pipeline import SkillRanker

    folder = world / "data" / "task0"
    with (folder / "queries.jsonl").open("a") as stream:
        stream.write('{"_id": "empty", "text": " \\n"}\n')
    with (folder / "qrels.tsv").open("a") as stream:
        stream.write(f"empty\t{BASE}000\t4\n")
    system = SkillRanker.load(world / "one.yaml")
    with_empty = evaluate.evaluate(system, load_tasks(folder, taxonomy=system.taxonomy)).tasks["task0"]
    assert with_empty.query_ids[-1] == "empty"
    assert with_empty.values["ndcg@100"][-1] == 0.0
    assert with_empty.composition[-1].sum() == 0
    without = evaluate.evaluate(system, load_tasks(world / "data", tasks=["task1"], taxonomy=system.taxonomy))
    assert (without.tasks["task1"].values["ndcg@100"] > 0).all()
