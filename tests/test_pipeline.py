"""The one scoring path: order, ties, batches, bad texts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from small_world import write_config, write_esco

import ranker.pipeline as pipeline_module
from lanes.lexical import BM25Lane
from ranker import SkillRanker
from ranker.core.config import parse_config
from ranker.core.errors import ArgumentError, InputError, RankerError
from ranker.core.match import matched_name, spaced
from ranker.core.order import top_rows, zscore
from ranker.core.taxonomy import Skill, Taxonomy

TEXTS = ["we repair car engines", "", "   ", "💥", None, float("nan"), 7, "teach C++ and Node.js", "x" * 100_000,
         "50lbs", "IDS/IPS sensors are collecting", "\x00\x07", "語学 привет", "we repair car engines"]  # fmt: skip


MANIFEST = {"format": 1, "taxonomy": "other", "config_digest": "x", "feature_hash": "y", "features": []}


@pytest.fixture(scope="module")
def ranker(tmp_path_factory) -> SkillRanker:
    folder = tmp_path_factory.mktemp("world")
    return SkillRanker.load(write_config(folder / "small.yaml", write_esco(folder / "esco"), size=30))


@given(arrays.arrays(np.float32, (3, 7), elements=st.sampled_from([0.0, 0.5, 1.0, -2.0])), st.integers(1, 9))
def test_top_rows_is_a_full_sort_by_score_then_row(scores, k):
    rows = np.broadcast_to(np.arange(7), scores.shape)
    full = np.lexsort((rows, -scores), axis=1)
    assert (top_rows(scores, k) == full[:, :k]).all()


def test_zscore_by_hand_and_of_a_constant_row():
    z = zscore(np.array([[1, 2, 3, 4], [5, 5, 5, 5]], np.float32))
    assert z[0] == pytest.approx([-1.341641, -0.447214, 0.447214, 1.341641], abs=1e-6)
    assert (z[1] == 0).all()


def test_bad_texts_get_a_reason_and_cost_the_others_nothing(ranker):
    rankings = ranker.rank(TEXTS, top_k=5)
    assert [r.reason for r in rankings[:7]] == [
        "", "the text is empty", "the text is empty", "the text holds no letter or digit",
        "not a text but NoneType", "not a text but float", "not a text but int",
    ]  # fmt: skip
    assert all(bool(r.skills) != bool(r.reason) for r in rankings)
    alone = ranker.rank([TEXTS[0]], top_k=5)[0]
    assert rankings[0] == rankings[-1] == alone
    assert alone.skills[0].label == "repair car engines"


def test_a_ranking_depends_on_neither_batch_nor_order_nor_threads(ranker, monkeypatch):
    texts = list(ranker.taxonomy.label[:40])
    rows, scores = ranker.order(texts)
    back = ranker.order(texts[::-1])
    assert (back[0][::-1] == rows).all()
    assert (back[1][::-1] == scores).all()
    monkeypatch.setattr(pipeline_module, "CHUNK", 1)
    monkeypatch.setattr(ranker.pipeline, "_workers", ThreadPoolExecutor(1))
    again = ranker.order(texts)
    assert (again[0] == rows).all()
    assert (again[1] == scores).all()
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda text: ranker.order([text])[0][0], texts))
    assert (np.stack(parts) == rows).all()


def test_rank_and_order_agree_and_scores_fall(ranker):
    text = ranker.taxonomy.label[3]
    rows, scores = ranker.order([text], top_k=20)
    skills = ranker.rank([text], top_k=20)[0].skills
    assert [ranker.taxonomy.index[skill.uri] for skill in skills] == rows[0].tolist()
    assert [skill.score for skill in skills] == scores[0].tolist()
    assert (np.diff(scores[0]) <= 0).all()
    tied = np.flatnonzero(np.diff(scores[0]) == 0)
    assert (np.diff(rows[0])[tied] > 0).all()
    assert skills[0].evidence["matched"] == text
    assert skills[0].probability is None


def test_a_short_pool_is_padded(ranker):
    rows, scores = ranker.order([ranker.taxonomy.label[0]], top_k=50)
    assert (rows[0, :30] >= 0).all()
    assert (rows[0, 30:] == -1).all()
    assert (scores[0, 30:] == 0).all()


def test_wrong_calls_are_refused(ranker):
    with pytest.raises(ArgumentError, match=r"rank\(\[text\]\)"):
        ranker.rank("one text")
    with pytest.raises(ArgumentError, match="top_k must be at least 1"):
        ranker.rank(["a"], top_k=0)
    with pytest.raises(ArgumentError, match="no calibrated probabilities"):
        ranker.rank(["a"], min_probability=0.5)


def test_a_taxonomy_of_one_skill():
    config = parse_config({
        "name": "one", "lanes": [{"name": "b", "family": "bm25"}], "pool": {"size": 5, "weights": {"b": 1}},
    })  # fmt: skip
    ranker = SkillRanker(config, Taxonomy.from_skills([Skill("urn:1", "weld metal")]))
    assert [skill.uri for skill in ranker.rank(["welding"], top_k=3)[0].skills] == ["urn:1"]


def test_a_lane_that_fails_stops_the_run(ranker, monkeypatch):
    lane = next(iter(ranker.pipeline.lanes.values()))
    broken = np.full((1, len(ranker.taxonomy)), np.nan, np.float32)
    monkeypatch.setattr(lane, "score", lambda queries: broken)
    with pytest.raises(RankerError, match=f"lane {lane.name} gave a score that is not finite"):
        ranker.rank(["plan"])


def test_a_bag_for_another_taxonomy_is_refused_before_any_lane_is_fitted(tmp_path, monkeypatch):
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST), encoding="utf-8")
    config = parse_config({
        "name": "one", "lanes": [{"name": "b", "family": "bm25"}], "pool": {"size": 5, "weights": {"b": 1}},
        "fusion": {"checkpoint": str(tmp_path)},
    })  # fmt: skip
    monkeypatch.setattr(BM25Lane, "fit", lambda *_: pytest.fail("fitted"))
    with pytest.raises(InputError, match="was trained with taxonomy other, here it is"):
        SkillRanker(config, Taxonomy.from_skills([Skill("urn:1", "weld metal")]))


def test_only_whole_words_are_evidence():
    text = spaced("A good communicator who knows Node.js, C++ and R.")
    assert matched_name(text, ["go", "c", "r", "node.js"]) == "node.js"
    assert matched_name(text, ["c++", "c"]) == "c++"
    assert matched_name(text, ["communicat", "js", ""]) is None
