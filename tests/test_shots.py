"""Few-shot examples: drawn from training folds only, and a query's scores made without its own fold's grades."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_world import THINGS, VERBS, write_config, write_esco, write_tasks

from ranker.core.cli import run
from rerankers.llm import read_examples
from train import shots
from train.fusion import main as train_fusion
from train.labels.standin import Reply, StandIn
from train.lanes import Graded

pytest.importorskip("httpx", reason="needs the extra llm")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Return the arguments without config; texts are near-duplicates of each other, so that folds come from a file."""
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    data = write_tasks(tmp_path / "data", n_tasks=2, n_queries=6)
    monkeypatch.setattr(shots, "alike", lambda texts, *_: np.eye(len(texts), dtype=bool))
    folds = tmp_path / "folds.json"
    folds.write_text(json.dumps({f"task{task}/q{q}": q % 3 for task in range(2) for q in range(6)}))
    return ["--data", str(data), "--folds", str(folds), "--out", str(tmp_path / "shots")]


def system(tmp_path, url: str, column: str = "mode: pointwise"):
    path = write_config(tmp_path / "hosted.yaml", write_esco(tmp_path / "esco"))
    line = f"  - {{name: order, family: llm, url: '{url}', model: m, view: label, depth: 20, {column}}}\n"
    path.write_text(path.read_text() + "columns:\n" + line)
    return path


async def script(body):
    return Reply(str(len(body["messages"][-1]["content"]) % 101))


def test_no_request_shows_a_graded_text_of_the_querys_own_fold(world, tmp_path, capsys):
    fold_of, oof = {}, tmp_path / "order.npy"
    with StandIn(script) as server:
        config = system(tmp_path, server.url)
        assert run(shots.main, ["--config", str(config), "--column", "order", *world, "--oof", str(oof)]) == 0
        for task in range(2):
            for line in (tmp_path / "data" / f"task{task}" / "queries.jsonl").read_text().splitlines():
                fold_of[json.loads(line)["text"]] = int(json.loads(line)["_id"][1:]) % 3
        asked = [[message["content"].split("\n")[0].removeprefix("Text: ") for message in body["messages"]
                  if message["role"] == "user"] for body in server.requests]  # fmt: skip
        assert len(asked) == 12 * 20
        for *examples, query in asked:
            assert len(examples) == 3 * 8
            assert fold_of[query] not in {fold_of[text] for text in examples}
        scores = np.load(oof)
        assert scores.shape == (12, 144)
        assert (np.isfinite(scores).sum(axis=1) == 20).all()
        given = ["--config", str(config), "--data", str(tmp_path / "data"), "--oof", f"order={oof}", "--rounds", "5",
                 "--members", "4", "--repetitions", "1", "--negatives", "none", "--json"]  # fmt: skip
        capsys.readouterr()
        assert run(train_fusion, given) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["cv"]["macro"] > 0
        assert len(server.requests) <= 12 * 20 + 2, "the fusion asks no more than whether the endpoint answers"


def test_skills_of_an_example_stand_in_the_pools_order_and_what_is_outside_comes_last():
    grades = np.array([[0, 1, 2, 4, -1, 4], [0, 0, -1, -1, -1, -1]], np.int8)
    graded = Graded(("a", "b"), ("we weld", "hello"), ("t", "t"), grades, np.array([0, 1]))
    pool = np.array([[4, 2, 0, 3, 1], [0, 1, 2, 3, 4]], np.int32)
    (one,) = shots.draw(graded, pool, np.arange(2), "UVWXYZ", texts=5, skills=9, seed=0)
    assert one["text"] == "we weld", "the other has a single grade"
    assert [(skill["label"], skill["grade"]) for skill in one["skills"]] == [
        ("W", 2), ("U", 0), ("X", 4), ("V", 1), ("Z", 4),
    ]  # fmt: skip


def test_examples_hold_judged_skills_of_several_grades(world, tmp_path):
    config = system(tmp_path, "http://127.0.0.1:9/v1")
    assert run(shots.main, ["--config", str(config), "--column", "order", *world, "--texts", "2", "--skills", "5"]) == 0
    served = read_examples(tmp_path / "shots" / "shots.jsonl")
    assert len(served) == 2
    qrels = {}
    for task in range(2):
        folder = tmp_path / "data" / f"task{task}"
        text = {row["_id"]: row["text"] for row in map(json.loads, (folder / "queries.jsonl").read_text().splitlines())}
        for line in (folder / "qrels.tsv").read_text().splitlines()[1:]:
            query, uri, grade = line.split("\t")
            qrels[text[query], int(uri[-3:])] = int(grade)
    labels = [f"{verb} {thing}" for verb in VERBS for thing in THINGS]
    for text, skills in served:
        assert len(skills) == 5
        assert {grade for _, grade in skills} == {0, 1, 2, 4}
        assert all(qrels[text, labels.index(label)] == grade for label, grade in skills), "nothing that nobody judged"


def test_folds_share_what_may_be_spent(world, tmp_path, capsys):
    oof = str(tmp_path / "order.npy")
    with StandIn(script) as server:
        config = system(tmp_path, server.url, "mode: pointwise, price: [100.0, 100.0], max_cost: 8.0, concurrency: 1")
        assert run(shots.main, ["--config", str(config), "--column", "order", *world, "--oof", oof]) == 6
        assert "raise max_cost" in capsys.readouterr().err
        spent = sum(sum(len(m["content"]) for m in body["messages"]) // 4 + 1 for body in server.requests) / 1e4
        assert 4 < spent <= 8


def test_a_column_that_cannot_be_is_refused(world, tmp_path, capsys):
    config = system(tmp_path, "http://127.0.0.1:9/v1")
    assert run(shots.main, ["--config", str(config), "--column", "bm25", *world]) == 2
    assert "not a column of family llm that comes after no other; hosted has: order" in capsys.readouterr().err
