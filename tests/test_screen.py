"""The screen: its probability against scipy and sklearn, clean and leaked systems, and the command."""

from __future__ import annotations

import json
import math
import random
import uuid
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score

from ranker import screen
from ranker.core.cli import run
from ranker.core.tasks import GradedTask, load_tasks
from ranker.runs import Run

SHARED = Path(__file__).resolve().parents[2] / "shared/data"
PREFIX = "http://data.europa.eu/esco/skill/"
SKILLS = [str(uuid.UUID(int=i)) for i in range(40)]


def world(folder: Path, *, n_queries: int = 60, order: str = "random", seed: int = 0) -> tuple[Path, Path, Path]:
    """Write tasks with two public and three other skills of grade 4 per query, the public answers, and a system."""
    draw = random.Random(seed)
    task = folder / "qrels" / "toy"
    task.mkdir(parents=True)
    queries, qrels, gold, scores = [], ["query-id\tcorpus-id\tscore"], [], {}
    for q in range(n_queries):
        skills = draw.sample(SKILLS, 20)
        public, others, rest = skills[:2], skills[2:5], skills[5:]
        queries.append({"_id": f"q{q}", "text": f"text {q}"})
        gold.append({"_id": f"other-{q}", "text": f" text  {q}", "skills": [PREFIX + s for s in public]})
        qrels += [f"q{q}\t{PREFIX}{s}\t4" for s in public + others] + [f"q{q}\t{PREFIX}{s}\t1" for s in rest]
        ranked = public + others + rest
        if order == "random":
            draw.shuffle(ranked)
        scores[f"q{q}"] = {s: float(-i) for i, s in enumerate(ranked)}
    (task / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries), encoding="utf-8")
    (task / "qrels.tsv").write_text("\n".join(qrels) + "\n", encoding="utf-8")
    (folder / "gold.jsonl").write_text("".join(json.dumps(row) + "\n" for row in gold), encoding="utf-8")
    payload = {"num_queries": n_queries, "num_targets": 40, "scores": scores}
    (folder / "file.json").write_text(json.dumps({"model": {"toy": {"en": payload}}}), encoding="utf-8")
    return folder / "file.json", folder / "gold.jsonl", folder / "qrels"


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=20))
def test_precedence_is_scipys_statistic_and_sklearns_area(rows):
    names = [f"s{i}" for i in range(len(rows))]
    scores = {name: float(score) for name, (score, _) in zip(names, rows, strict=True)}
    first = frozenset(name for name, (_, is_first) in zip(names, rows, strict=True) if is_first)
    second = frozenset(names) - first
    found = screen.precedence(scores, first, second)
    if not first or not second:
        assert math.isnan(found)
        return
    u = mannwhitneyu([scores[s] for s in first], [scores[s] for s in second]).statistic
    assert found == pytest.approx(u / (len(first) * len(second)))
    assert found == pytest.approx(roc_auc_score([s in first for s in names], [scores[s] for s in names]))


def test_skills_that_were_not_retrieved_stand_last_and_tie():
    assert screen.precedence({"a": -5.0}, frozenset("a"), frozenset("b")) == 1.0
    assert screen.precedence({"b": -5.0}, frozenset("a"), frozenset("b")) == 0.0
    assert screen.precedence({}, frozenset("a"), frozenset("b")) == 0.5


def test_fills_top_by_hand():
    scores = {"a": 3.0, "b": 2.0, "c": 1.0}
    assert screen.fills_top(scores, frozenset("ab"))
    assert not screen.fills_top(scores, frozenset("ac"))
    assert not screen.fills_top({"a": 1.0}, frozenset("ab"))


def test_gold_is_found_by_id_and_else_by_text_but_not_by_no_text():
    task = GradedTask("t", "validation", ("q1", "q2", "q3"), ("one", "Two  words", ""), {"q1": {}, "q2": {}, "q3": {}})
    rows = [
        screen.Gold("", "q1", "x", frozenset("a")),
        screen.Gold("", "", "Two words", frozenset("b")),
        screen.Gold("", "", "", frozenset("c")),
        screen.Gold("other task", "q1", "one", frozenset("d")),
    ]
    assert screen.gold_of(task, rows) == {"q1": frozenset("a"), "q2": frozenset("b")}


def test_verdict_needs_enough_queries():
    def verdict(*figures):
        return screen.verdict(*figures, threshold=0.9)

    assert verdict(0.5, 20, 0.1, 20) == "clean"
    assert verdict(0.95, 20, 0.1, 20) == "leaked"
    assert verdict(0.5, 20, 0.95, 20) == "leaked"
    assert verdict(1.0, screen.MIN_QUERIES - 1, math.nan, 0) == "undecided"
    assert verdict(0.5, 20, 1.0, 1) == "clean"


def test_a_random_order_is_clean_and_a_leaked_one_is_not(tmp_path, capsys):
    file, gold, qrels = world(tmp_path / "clean")
    assert run(screen.main, [str(file), "--gold", str(gold), "--qrels", str(qrels), "--json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert task["low"] < 0.5 < task["high"]
    assert task["probability"] == pytest.approx(0.5, abs=0.1)
    assert (task["queries"], task["pairs"], task["verdict"]) == (60, 360, "clean")

    file, gold, qrels = world(tmp_path / "leaked", order="leaked")
    assert run(screen.main, [str(file), "--gold", str(gold), "--qrels", str(qrels), "--json"]) == 5
    found = json.loads(capsys.readouterr().out)
    (task,) = found["tasks"]
    assert (task["probability"], task["filled"], task["verdict"]) == (1.0, 1.0, "leaked")
    assert found["leaked"] == ["toy"]
    assert run(screen.main, [str(file), "--gold", str(gold), "--qrels", str(qrels)]) == 5
    assert "leaked" in capsys.readouterr().out.splitlines()[-1]


def test_gold_may_be_a_folder_and_nothing_in_common_is_an_error(tmp_path, capsys):
    file, gold, qrels = world(tmp_path / "a", order="leaked")
    binary = tmp_path / "gold" / "toy"
    binary.mkdir(parents=True)
    (binary / "queries.jsonl").write_bytes((qrels / "toy" / "queries.jsonl").read_bytes())
    rows = list(map(json.loads, gold.read_text(encoding="utf-8").splitlines()))
    lines = [f"q{i}\t{skill}\t1" for i, row in enumerate(rows) for skill in row["skills"]]
    (binary / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n", encoding="utf-8")
    outputs = []
    for source in (gold, binary.parent):
        assert run(screen.main, [str(file), "--gold", str(source), "--qrels", str(qrels), "--json"]) == 5
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    gold.write_text('{"_id": "x", "text": "another", "skills": ["y"]}\n', encoding="utf-8")
    assert run(screen.main, [str(file), "--gold", str(gold), "--qrels", str(qrels)]) == 5
    assert "share no task" in capsys.readouterr().err


@pytest.mark.skipif(not (SHARED / "graded").exists(), reason="the graded tasks are not here")
def test_real_tasks_read_one_half_for_random_scores_and_one_for_a_leak():
    tasks = load_tasks(SHARED / "graded", tasks=["house", "tech", "skillskape"])
    files = ("house_validation.jsonl", "tech_validation.jsonl", "skillskape_dev.jsonl")
    gold = [row for name in files for row in screen.read_gold(SHARED / "sentences" / name, "validation")]
    draw = np.random.default_rng(0)

    def system(*, leak: bool) -> Run:
        rows: dict[str, dict[str, dict[str, float]]] = {}
        for task in tasks:
            public = screen.gold_of(task, gold)
            for query in task.query_ids:
                skills = [uri.rsplit("/", 1)[-1] for uri in task.qrels[query]]
                known = public.get(query, frozenset()) if leak else frozenset()
                scored = {skill: draw.random() + 2 * (skill in known) for skill in skills}
                rows.setdefault(task.name, {})[query] = scored
        return Run("system", rows)

    clean, leaked = (screen.screen(system(leak=leak), tasks, gold) for leak in (False, True))
    assert [one.verdict for one in clean] == ["clean"] * 3
    assert np.mean([one.probability for one in clean]) == pytest.approx(0.5, abs=0.1)
    assert all(one.probability > 0.99 and one.verdict == "leaked" for one in leaked)
