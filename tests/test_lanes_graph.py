"""Derived lanes by hand and against plain NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_lanes_contract import toy
from tiny_bert import write_tiny_bert

from lanes.dense import DenseLane
from lanes.encoder import EncoderPool
from lanes.graph import FeedbackLane, GroupLane, NeighbourLane, memberships, neighbours, parents
from lanes.lexical import BM25Lane
from ranker.core.taxonomy import Skill, Taxonomy


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def dense(tmp_path: Path) -> DenseLane:
    lane = DenseLane("dense", encoders=EncoderPool(), model=str(write_tiny_bert(tmp_path / "model")))
    lane.fit(toy())
    return lane


def test_parents_of_dotted_and_plain_codes() -> None:
    assert parents("S4.5.0") == ["S4.5.0", "S4.5", "S4"]
    assert parents("K0613") == ["K0613", "K061", "K06"]
    assert parents("L1") == ["L1"]


def test_memberships_by_hand() -> None:
    groups = [("S1.1.0",), ("S1.1.0", "K011"), ("S1.2.0",), ()]
    taxonomy = Taxonomy.from_skills(Skill(f"urn:{i}", "x", (), "", g) for i, g in enumerate(groups))
    member = memberships(taxonomy).toarray()
    # K011 and K01 hold the same skill, S1.1.0 and S1.1 the same two, S1.2.0 and S1.2 the same one: each counts once.
    assert sorted(map(tuple, member.T.tolist())) == [(0, 0, 1, 0), (0, 1, 0, 0), (1, 1, 0, 0), (1, 1, 1, 0)]


def test_group_evidence_by_hand() -> None:
    taxonomy = Taxonomy.from_skills(
        Skill(f"urn:{i}", "x", (), "", g) for i, g in enumerate([("A",), ("A",), ("B",), ()])
    )
    base = BM25Lane("bm25")
    lane = GroupLane("x", base_lane=base, beta=2.0, prior=1.0)
    lane.fit(taxonomy)
    z = (np.array([3.0, 1.0, 0.0, 0.0]) - 1) / np.sqrt(1.5)
    a = np.log((np.exp(2 * z[0]) + np.exp(2 * z[1]) + 1) / 3) / 2
    b = np.log((np.exp(2 * z[2]) + 1) / 2) / 2
    got = lane.smooth(np.array([[3, 1, 0, 0]], dtype=np.float32))
    np.testing.assert_allclose(got[0], [a, a, b, (2 * a + b) / 3], atol=1e-5)


def test_group_lifts_the_group_of_the_hit(dense: DenseLane) -> None:
    lane = GroupLane("x", base_lane=dense)
    lane.fit(toy())
    scores = np.zeros((1, 36), dtype=np.float32)
    hit = next(i for i, g in enumerate(toy().groups) if g)
    scores[0, hit] = 1
    smoothed = lane.smooth(scores)[0]
    shared = [len({c for code in g for c in parents(code)} & set(parents(toy().groups[hit][0]))) for g in toy().groups]
    same = [smoothed[i] for i in range(36) if shared[i] == 3 and i != hit]
    none = [smoothed[i] for i in range(36) if shared[i] == 0 and toy().groups[i]]
    assert min(same) > max(none)


def test_without_groups_there_is_no_evidence() -> None:
    taxonomy = Taxonomy.from_skills([Skill("urn:0", "a"), Skill("urn:1", "b")])
    lane = GroupLane("x", base_lane=BM25Lane("bm25"))
    lane.fit(taxonomy)
    assert lane.smooth(np.array([[1.0, 2.0]], dtype=np.float32)).tolist() == [[0.0, 0.0]]


def test_neighbours_equal_a_full_sort_and_skip_the_skill_itself() -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    vectors[7] = vectors[3]  # twins: each may find the other, never itself
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows, cosines = neighbours(vectors, 5, {"test": 1})
    full = vectors @ vectors.T
    np.fill_diagonal(full, -2)
    assert (rows != np.arange(30)[:, None]).all()
    np.testing.assert_allclose(cosines, -np.sort(-full, axis=1)[:, :5], atol=1e-6)
    assert rows[7, 0] == 3
    assert rows[3, 0] == 7


def test_neighbour_smoothing_equals_the_dense_formula(dense: DenseLane) -> None:
    lane = NeighbourLane("x", base_lane=dense, k=4, steps=2, own=0.25, power=2.0)
    lane.fit(toy())
    cosines = dense.vectors @ dense.vectors.T
    np.fill_diagonal(cosines, -2)
    graph = np.zeros_like(cosines)
    for i, row in enumerate(cosines):
        best = np.argsort(-row)[:4]
        graph[i, best] = np.maximum(row[best], 1e-6) ** 2
    graph /= graph.sum(axis=1, keepdims=True)
    step = 0.75 * graph + 0.25 * np.eye(36)
    scores = dense.score(["weld walls", ""])
    np.testing.assert_allclose(lane.smooth(scores), scores @ (step @ step).T, atol=1e-5)


def test_more_neighbours_than_skills_is_all_of_them(dense: DenseLane) -> None:
    lane = NeighbourLane("x", base_lane=dense, k=500)
    lane.fit(toy())
    assert np.isfinite(lane.smooth(dense.score(["weld"]))).all()


def test_feedback_of_one_is_similarity_to_the_best_skill(dense: DenseLane) -> None:
    lane = FeedbackLane("x", base_lane=dense, top=1)
    lane.fit(toy())
    scores = dense.score(["paint car engines"])
    # Stored rows are rounded to half precision, so their length is 1 to 1e-4.
    np.testing.assert_allclose(lane.smooth(scores)[0], dense.vectors @ dense.vectors[scores[0].argmax()], atol=2e-4)


def test_feedback_does_not_depend_on_the_scale_of_the_base(dense: DenseLane) -> None:
    lane = FeedbackLane("x", base_lane=dense, top=5)
    lane.fit(toy())
    scores = dense.score(["paint car engines"])
    np.testing.assert_allclose(lane.smooth(scores * 10 + 3), lane.smooth(scores), atol=1e-5)
