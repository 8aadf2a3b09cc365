"""The bench: fair turns, honest texts, and figures of the stated shape."""

from __future__ import annotations

import time

import numpy as np
import pytest
from small_world import write_config, write_esco

from ranker import bench
from ranker.core.taxonomy import Skill, Taxonomy


def test_variant_spells_numbers_and_keeps_the_words():
    query = "C++ and R, 50lbs per day"
    spelled = [bench.variant(query, number) for number in range(500)]
    assert spelled[0] == query
    assert len(set(spelled)) == 500
    assert {" ".join(sorted(text.casefold().split())) for text in spelled} == {"50lbs and c++ day per r,"}
    assert len({text.casefold() for text in spelled}) > 250  # a model that is blind to case sees them as new, too
    assert sorted(bench.variant("50 %", 3).split()) == ["%", "50"]


def test_systems_take_turns_and_see_no_spelling_twice():
    seen: dict[str, list[str]] = {"a": [], "b": []}
    order = []

    def system(name):
        def rank(query):
            seen[name].append(query)
            order.append(name)

        return rank

    times = bench.interleave({"a": system("a"), "b": system("b")}, ["one line", "two lines"], warm_up=1)
    assert order == ["a", "b", "a", "b", "b", "a"]
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}
    assert len({*seen["a"], *seen["b"]}) == 6


def test_times_are_milliseconds():
    (values,) = bench.interleave({"a": lambda query: time.sleep(0.02)}, ["x y z"] * 3, warm_up=0).values()
    assert all(19 < value < 500 for value in values)


def test_summary_by_hand():
    assert bench.summary([4.0, 1.0, 2.0, 3.0, 100.0]) == {"median": 3.0, "p95": pytest.approx(80.8)}


def test_sample_is_varied_text():
    assert len(bench.SAMPLE) == len(set(bench.SAMPLE)) == 30


def test_queries_start_again_where_there_are_too_few():
    taxonomy = Taxonomy.from_skills([Skill("u", "weld")])
    assert bench.bench_queries(None, 32, taxonomy)[30:] == list(bench.SAMPLE[:2])


def test_workrb_scores_as_its_own_model_does():
    lexical = pytest.importorskip("workrb.models.lexical_baselines")
    labels = ["weld metal", "weld aluminium frames", "Sell shoes", "plan routes", "cut glass"]
    taxonomy = Taxonomy.from_skills(Skill(str(i), label) for i, label in enumerate(labels))
    score = bench.workrb_bm25(taxonomy)
    for query in ("Weld frames", "shoes and glass", "nothing"):
        wanted = lexical.BM25Model()._compute_rankings([query], labels)
        assert np.array_equal(score(query).numpy(), wanted.numpy())


def test_peak_memory_is_plausible():
    assert 10 < bench.peak_megabytes() < 100_000


def test_whole_bench_on_a_small_world(tmp_path, monkeypatch):
    pytest.importorskip("workrb")
    from ranker.pipeline import SkillRanker

    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    config = write_config(tmp_path / "small.yaml", write_esco(tmp_path / "esco"))
    ranker = SkillRanker.load(str(config))
    found = bench.bench(str(config), bench.SAMPLE[:6], ranker=ranker, cold=False)
    assert set(found["ratios"]) == {"workrb_bm25"}
    ours, theirs = found["ms_per_query"], found["others"]["workrb_bm25"]
    assert found["ratios"]["workrb_bm25"] == pytest.approx(ours["median"] / theirs["median"])
    assert 0 < ours["median"] <= ours["p95"]
    assert found["queries_per_second"] == pytest.approx(1000 / ours["median"])
    seconds, megabytes = bench.cold_start(str(config), bench.SAMPLE[:2])
    assert seconds > 0
    assert megabytes > 10
    text = bench.render({**found, "cold_start_s": seconds, "peak_mb": megabytes})
    assert "workrb_bm25" in text
    assert "peak memory" in text
