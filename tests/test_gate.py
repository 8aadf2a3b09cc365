"""The gate: what it computes, what it learns, that its figures are out of fold, and that it changes no order."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from test_bag import model
from test_train_fusion import graded

from fusion.features import PoolInputs
from fusion.gate import LEVELS, Gate, levels
from fusion.model import FusionModel
from ranker.core.errors import InputError, ResourceError
from train.crossval import HELPER_TASK, NEGATIVE_TASK, GradedPool
from train.fusion import query_folds
from train.gate import Readings, cross_fit, gate_figures

NONE = np.zeros((30, 0), np.float32)


def by_hand(n_skills: int = 20) -> Gate:
    direction = np.linspace(-0.4, 0.6, n_skills).astype(np.float32)
    return Gate(("good", "bad"), np.array([[0.7, 0.2, -0.1], [0.1, -0.3, 0.2]]), -0.5, "good", direction)


def pointed(n: int = 60, seed: int = 0) -> tuple[GradedPool, np.ndarray, np.ndarray]:
    """Return a pool whose texts without a skill differ from the others in their direction alone, and the truth."""
    pool, _ = graded(n)
    generator = np.random.default_rng(seed)
    asks = np.arange(n) % 3 > 0
    vectors = np.hstack([generator.normal(size=(30, 4)), np.zeros((30, 1))]).astype(np.float32)  # a direction unused
    points = generator.normal(size=(n, 5)).astype(np.float32)
    points[:, 4] = 0
    points[:, 0] = np.where(asks, 1, -1) * (0.5 + np.abs(points[:, 0]))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    tasks = tuple(NEGATIVE_TASK if not ask else task for ask, task in zip(asks, pool.tasks, strict=True))
    lanes = {"a": pool.inputs.lanes["a"], "dense": points @ vectors.T}
    return replace(pool, inputs=replace(pool.inputs, lanes=lanes), tasks=tasks), vectors, points


def test_a_gate_by_hand() -> None:
    scores = np.array([[1.0, 3.0], [0.0, 0.0]], np.float32)
    inputs = PoolInputs(["x", "y"], {"a": scores}, scores, np.zeros((2, 1), np.int32))
    np.testing.assert_array_equal(levels(inputs, "a"), [[3, 2, 1], [0, 0, 0]])
    gate = Gate(("a",), np.array([[1.0, -2.0, 4.0]]), 0.5, "a", np.array([0.25, -1], np.float32))
    odds = 0.5 + 3 - 4 + 4 + 0.25 - 3
    np.testing.assert_allclose(gate(inputs), [1 / (1 + np.exp(-odds)), 1 / (1 + np.exp(-0.5))], rtol=1e-6)


def test_a_text_is_judged_alone_and_changes_no_order() -> None:
    _, inputs, _, plain = model()
    gated = replace(plain, gate=by_hand())
    before, after = plain.score(inputs), gated.score(inputs)
    np.testing.assert_array_equal(after.scores, before.scores)
    asks = by_hand()(inputs)
    assert asks.std() > 0.05
    for grade in (2, 3):
        np.testing.assert_array_equal(after.probabilities[grade], before.probabilities[grade] * asks[:, None])
    for row in range(len(inputs.queries)):
        alone = gated.score(inputs.rows(np.array([row])))
        np.testing.assert_array_equal(alone.probabilities[2][0], after.probabilities[2][row])
    nothing = gated.score(inputs.rows(np.array([], np.intp)))
    assert nothing.probabilities[2].shape == (0, 15)


def test_it_is_saved_beside_the_bag_and_missed_where_it_is_not_there(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    taxonomy, inputs, _, plain = model(gate=by_hand())
    plain.save(tmp_path / "a")
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["format"] == 3
    back = FusionModel.load(tmp_path / "a", taxonomy=taxonomy, config_digest="abc")
    np.testing.assert_array_equal(back.score(inputs).probabilities[2], plain.score(inputs).probabilities[2])
    back.save(tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    by_hand(19).save(tmp_path / "a" / "gate.npz")
    with pytest.raises(InputError, match=r"\(19,\), expected \(2, 3\) and \(20,\); train it anew"):
        FusionModel.load(tmp_path / "a", taxonomy=taxonomy, config_digest="abc")
    (tmp_path / "a" / "gate.npz").write_bytes(b"PK nonsense")
    with pytest.raises(InputError, match=r"gate\.npz is damaged"):
        FusionModel.load(tmp_path / "a", taxonomy=taxonomy, config_digest="abc")
    (tmp_path / "a" / "gate.npz").unlink()
    with pytest.raises(ResourceError, match=r"no gate\.npz in"):
        FusionModel.load(tmp_path / "a", taxonomy=taxonomy, config_digest="abc")


def test_a_bag_without_gate_or_of_before_gates_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    taxonomy, inputs, _, plain = model()
    plain.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest.pop("gate"), manifest["format"]) == (False, 2)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    old = FusionModel.load(tmp_path, taxonomy=taxonomy, config_digest="abc")
    assert old.gate is None
    np.testing.assert_array_equal(old.score(inputs).probabilities[2], plain.score(inputs).probabilities[2])


def test_the_embedding_is_read_from_the_scores_and_its_direction_learned() -> None:
    pool, vectors, points = pointed()
    readings = Readings.of(pool, "dense", vectors)
    np.testing.assert_allclose(readings.points, points, atol=1e-5)
    folds = np.arange(60) // 3 % 5
    asks = ~pool.of_task(NEGATIVE_TASK)
    opened = cross_fit(pool, readings, folds)
    blind = cross_fit(pool, Readings.of(pool, "", NONE), folds)
    first, second = (gate_figures(asks, made, made, made)["auc"] for made in (opened, blind))
    assert first > 0.97
    assert second < 0.8
    gate = readings.fit(asks, np.arange(60))
    assert gate.weights.shape == (2, LEVELS)


def test_a_text_is_scored_by_a_gate_that_did_not_see_it() -> None:
    pool, vectors, _ = pointed()
    folds = np.where(np.arange(60) < 50, np.arange(60) // 3 % 5, -1)
    tasks = tuple(HELPER_TASK if fold < 0 and task != NEGATIVE_TASK else task
                  for fold, task in zip(folds, pool.tasks, strict=True))  # fmt: skip
    helped = replace(pool, tasks=tasks)
    readings = Readings.of(helped, "dense", vectors)
    before = cross_fit(helped, readings, folds)
    assert np.isnan(before[50:]).all()
    # Turned about, a text changes the gates of the other folds alone.
    turned = replace(helped, tasks=tuple(NEGATIVE_TASK if i == 1 else task for i, task in enumerate(tasks)))
    after = cross_fit(turned, readings, folds)
    same = folds == folds[1]
    np.testing.assert_array_equal(after[same], before[same])
    assert (after[~same & (folds >= 0)] != before[~same & (folds >= 0)]).all()


def test_texts_without_a_skill_weigh_the_same_however_many_there_are() -> None:
    pool, vectors, _ = pointed()
    twice = np.concatenate([np.arange(60), np.flatnonzero(pool.of_task(NEGATIVE_TASK))])
    readings = Readings.of(pool, "dense", vectors)
    asks = ~pool.of_task(NEGATIVE_TASK)
    once, more = (readings.fit(asks, rows)(pool.inputs) for rows in (np.arange(60), twice))
    assert np.abs(once.mean() - more.mean()) < 0.02  # unweighted, the mean is the share of those that ask


def test_lanes_that_learned_from_the_grades_are_not_read() -> None:
    pool, vectors, _ = pointed()
    readings = Readings.of(replace(pool, trained=("a",)), "dense", vectors)
    assert readings.fit(~pool.of_task(NEGATIVE_TASK), np.arange(60)).lanes == ("dense",)


def test_near_duplicates_without_a_skill_share_a_fold() -> None:
    pool, _, _ = pointed()
    queries = [*pool.inputs.queries]
    negative = np.flatnonzero(pool.of_task(NEGATIVE_TASK))
    queries[negative[7]] = queries[negative[0]].upper()
    same = replace(pool, inputs=replace(pool.inputs, queries=queries))
    for folds in query_folds(same, None, 3, None):
        assert folds[negative[7]] == folds[negative[0]]
        assert set(folds[negative]) == set(range(5))
    embeddings = np.eye(60, dtype=np.float32)
    embeddings[len(pool.tasks) - len(negative) + 9] = embeddings[len(pool.tasks) - len(negative) + 2]
    for folds in query_folds(pool, embeddings, 2, None):
        assert folds[negative[9]] == folds[negative[2]]


def test_figures_by_hand() -> None:
    asks = np.array([True, True, False, False])
    opened = np.array([0.9, 0.4, 0.6, 0.1], np.float32)
    best = np.array([0.8, 0.9, 0.9, 0.6], np.float32)
    assert gate_figures(asks, opened, best, best * opened) == {
        "auc": 0.75,
        "without_a_skill": {"let_through": 0.5, "spoken_ungated": 1.0, "spoken": 0.5},
        "graded": {"held_back": 0.5, "spoken_ungated": 1.0, "spoken": 0.5},
    }


def test_helpers_behind_the_pool_teach_a_gate_as_those_in_it_do() -> None:
    pool, vectors, _ = pointed()
    tasks = tuple(HELPER_TASK if i % 7 == 0 and task != NEGATIVE_TASK else task for i, task in enumerate(pool.tasks))
    whole = replace(pool, tasks=tasks)
    helper = whole.of_task(HELPER_TASK)
    readings = Readings.of(whole, "dense", vectors)
    inside = readings.fit(~whole.of_task(NEGATIVE_TASK), np.arange(60))(pool.inputs)
    small = whole.rows(np.flatnonzero(~helper))
    behind = readings.rows(np.argsort(helper, kind="stable"))
    assert 0 < helper.sum() == len(behind.levels) - len(small.tasks)
    made = behind.fit(~small.of_task(NEGATIVE_TASK), np.arange(len(small.tasks)))(pool.inputs)
    np.testing.assert_allclose(made, inside, atol=1e-4)
