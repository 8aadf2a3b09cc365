"""Columns in a cascade: which part of the pool each one sees, and what is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from small_world import write_config, write_esco

import ranker.pipeline as pipeline_module
from ranker import SkillRanker
from ranker.core.config import ColumnConfig, load_config, parse_config
from ranker.core.errors import ArgumentError, RankerError
from rerankers import registry
from rerankers.cascade import reach, run_columns

VALUE = {
    "name": "demo",
    "lanes": [{"name": "bm25", "family": "bm25"}],
    "pool": {"size": 50, "weights": {"bm25": 1}},
    "columns": [{"name": "cheap", "family": "word"}, {"name": "dear", "family": "word", "depth": 9, "after": "cheap"}],
}
POOL = np.array([[4, 2, 7, 0, 5]], np.int32)


class WordColumn:
    """Counts the letters that query and label share, and remembers what it was asked."""

    def __init__(self, name: str, power: float = 1.0) -> None:
        self.name, self.power, self.seen = name, power, []

    def fit(self, taxonomy):
        self.labels = taxonomy.label

    def score(self, queries, pool):
        self.seen.append(pool.copy())
        shared = [
            [len(set(q) & set(self.labels[row])) ** self.power for row in rows]
            for q, rows in zip(queries, pool, strict=True)
        ]
        return np.array(shared, np.float32).reshape(pool.shape)

    def backbones(self):
        return {}


def test_without_after_a_column_sees_the_best_by_base_score():
    column = ColumnConfig("a", "x", depth=3)
    assert reach(column, POOL, {}).tolist() == [[0, 1, 2]]
    assert reach(ColumnConfig("a", "x", depth=9), POOL, {}).tolist() == [[0, 1, 2, 3, 4]]


def test_after_takes_the_best_by_the_earlier_column_and_breaks_ties_by_taxonomy_row():
    scores = {"cheap": np.array([[0.0, 5, 1, 1, 1]], np.float32)}
    for depth, places in ((1, [1]), (2, [1, 3]), (3, [1, 3, 4]), (4, [1, 2, 3, 4])):  # rows 2, 0, 5, 7 in this order
        assert reach(ColumnConfig("dear", "x", depth=depth, after={"cheap": 1}), POOL, scores).tolist() == [places]


def test_what_the_earlier_column_left_out_comes_last_in_the_pools_order():
    scores = {"cheap": np.array([[np.nan, 1, 3, np.nan, 2]], np.float32)}
    for depth, places in ((2, [2, 4]), (3, [1, 2, 4]), (4, [0, 1, 2, 4])):
        assert reach(ColumnConfig("dear", "x", depth=depth, after={"cheap": 1}), POOL, scores).tolist() == [places]


def test_a_weighted_sum_is_of_z_scores_of_the_places_that_all_scored():
    scores = {
        "base": np.array([[9.0, 8, 4, 2, 0]], np.float32),  # z of the first four: 1.14, 0.79, -0.61, -1.31
        "cheap": np.array([[0.0, 1, 2, 6, np.nan]], np.float32),  # -0.99, -0.55, -0.11, 1.65
    }
    for weights, places in (((1, 1), [1, 3]), ((1, 0.1), [0, 1]), ((0.1, 1), [2, 3])):
        column = ColumnConfig("dear", "x", depth=2, after=dict(zip(("base", "cheap"), weights, strict=True)))
        assert reach(column, POOL, scores).tolist() == [places]


def test_columns_run_in_order_and_leave_the_rest_nan():
    base = np.zeros((1, 8), np.float32)
    base[0, POOL[0]] = [5, 4, 3, 2, 1]
    asked = []

    def score(config, part):
        asked.append((config.name, part.tolist()))
        return -part.astype(np.float32)

    columns = [ColumnConfig("cheap", "x", depth=4), ColumnConfig("dear", "x", depth=2, after={"cheap": 1.0})]
    found = run_columns(columns, base, POOL, score)
    assert asked == [("cheap", [[4, 2, 7, 0]]), ("dear", [[2, 0]])]
    np.testing.assert_array_equal(found["dear"], np.array([[np.nan, -2, np.nan, 0, np.nan]], np.float32))


@pytest.mark.parametrize("bad", [np.full((1, 5), np.nan, np.float32), np.zeros((1, 4), np.float32)])
def test_a_column_that_breaks_its_contract_stops_the_run(bad):
    with pytest.raises(RankerError, match=r"column a gave .*nothing was ranked"):
        run_columns([ColumnConfig("a", "x")], np.zeros((1, 8), np.float32), POOL, lambda *_: bad)


def test_a_name_stands_for_weight_one():
    columns = parse_config(VALUE).columns
    assert [column.after for column in columns] == [{}, {"cheap": 1.0}]
    assert [column.options for column in columns] == [{}, {}]
    spelled = copy.deepcopy(VALUE)
    spelled["columns"][1]["after"] = {"cheap": 1.0}
    assert parse_config(spelled).digest == parse_config(VALUE).digest
    spelled["columns"][1]["after"] = {"cheap": 1.0, "base": 0.5}
    assert parse_config(spelled).digest != parse_config(VALUE).digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"after": "other"}, "column dear: after: other is no column before it; allowed: base, cheap"),
        ({"after": "dear"}, "after: dear is no column before it"),
        ({"after": {"cheap": "much"}}, r"columns\[1\]: after: expected dict"),
        ({"after": ["cheap"]}, r"columns\[1\]: after: expected dict"),
        ({"depth": 0}, "column dear: depth must be at least 1, found 0"),
        ({"name": "base", "after": {}}, "may not be called 'base'"),
    ],
)
def test_a_cascade_that_cannot_run_is_refused(change, words):
    value = copy.deepcopy(VALUE)
    value["columns"][1].update(change)
    with pytest.raises(ArgumentError, match=words):
        parse_config(value)


def test_the_pipeline_runs_a_cascade_and_a_ranking_depends_on_neither_batch_nor_order(tmp_path, monkeypatch):
    monkeypatch.setitem(registry.FAMILIES, "word", WordColumn)
    path = write_config(tmp_path / "small.yaml", write_esco(tmp_path / "esco"), size=30)
    path.write_text(
        path.read_text()
        + "columns:\n  - {name: cheap, family: word, depth: 20}\n"
        + "  - {name: dear, family: word, depth: 6, power: 2.0, after: {base: 0.3, cheap: 1.0}}\n"
    )
    ranker = SkillRanker.load(path)
    assert load_config(path).columns[1].options == {"power": 2.0}
    texts = list(ranker.taxonomy.label[:40])
    inputs = ranker.pipeline.inputs(texts)
    dear = np.isfinite(inputs.columns["dear"])
    assert (dear.sum(axis=1) == 6).all()
    assert np.isfinite(inputs.columns["cheap"])[:, :20].all()
    assert not np.isfinite(inputs.columns["cheap"])[:, 20:].any()
    assert not dear[:, 20:].any()
    assert not dear[:, :6].all()  # not merely the first six
    rows, scores = ranker.order(texts)
    back = ranker.order(texts[::-1])
    monkeypatch.setattr(pipeline_module, "CHUNK", 1)
    again = ranker.order(texts)
    for other in ((back[0][::-1], back[1][::-1]), again):
        assert (other[0] == rows).all()
        assert (other[1] == scores).all()
    alone = ranker.pipeline.inputs(texts[7:8])
    np.testing.assert_array_equal(alone.columns["dear"], inputs.columns["dear"][7:8])
