"""Calibration: monotone, close to a known truth, chosen by its error, read back whole."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from fusion.calibration import (
    Calibration,
    calibration_error,
    choose_calibration,
    fit_isotonic,
    fit_platt,
    reliability,
    threshold_table,
)
from ranker.core.errors import InputError


def sample(n: int = 6000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=n)
    truth = 1 / (1 + np.exp(-(2 * scores - 1)))
    return scores, generator.random(n) < truth, truth


def test_platt_finds_the_sigmoid_that_made_the_data() -> None:
    scores, relevant, truth = sample()
    curve = fit_platt(scores, relevant)
    assert (curve.slope, curve.offset) == (pytest.approx(2, abs=0.15), pytest.approx(-1, abs=0.1))
    assert np.abs(curve(scores) - truth).max() < 0.05


def test_platt_does_not_mind_the_unit_of_the_scores_nor_a_perfect_parting() -> None:
    scores, relevant, _ = sample()
    plain, small = fit_platt(scores, relevant), fit_platt(scores * 1e-3, relevant)
    np.testing.assert_allclose(small(scores * 1e-3), plain(scores), atol=1e-3)
    with np.errstate(over="raise", invalid="raise"):
        parted = fit_platt(scores, scores > 0)
    assert np.isfinite([parted.slope, parted.offset]).all()
    assert ((parted(scores) > 0.5) == (scores > 0)).mean() > 0.99


def test_isotonic_equals_scikit_learn_on_its_own_points() -> None:
    scores, relevant, _ = sample(500)
    ours = fit_isotonic(scores, relevant, knots=10_000)(scores)
    theirs = IsotonicRegression().fit(scores, relevant.astype(float)).predict(scores)
    # Ours joins the middles of the steps with straight lines, so it may differ within a step but not from afar.
    assert np.corrcoef(ours, theirs)[0, 1] > 0.97
    assert np.abs(ours.mean() - theirs.mean()) < 0.02


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-50, 50), st.booleans()), min_size=2, max_size=60))
def test_both_kinds_are_monotone_probabilities(rows: list[tuple[float, bool]]) -> None:
    scores, relevant = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    grid = np.linspace(-60, 60, 400)
    for curve in (fit_isotonic(scores, relevant), fit_platt(scores, relevant)):
        made = curve(grid)
        assert np.isfinite(made).all()
        assert made.min() >= 0
        assert made.max() <= 1
        assert (np.diff(made) >= -1e-7).all()


def test_calibration_error_by_hand() -> None:
    said = np.array([0.1, 0.1, 0.9, 0.9])
    true = np.array([False, True, True, True])
    # Two bins: |0.1 - 0.5| and |0.9 - 1.0|, half of the rows each.
    assert calibration_error(said, true, bins=2) == pytest.approx(0.5 * 0.4 + 0.5 * 0.1)


def test_the_better_kind_is_chosen_across_folds() -> None:
    generator = np.random.default_rng(1)
    scores = generator.uniform(-2, 2, 8000)
    folds = np.arange(8000) % 5
    step = generator.random(8000) < np.where(scores > 0, 0.7, 0.1)  # no sigmoid fits a step
    curve, error, across = choose_calibration(scores, step, folds)
    assert curve.kind == "isotonic"
    assert error["isotonic"] < error["platt"]
    assert calibration_error(across, step) == error["isotonic"]
    kept = folds != 2
    np.testing.assert_array_equal(across[~kept], fit_isotonic(scores[kept], step[kept])(scores[~kept]))


@pytest.mark.parametrize("fit", [fit_isotonic, fit_platt])
def test_round_trip_through_json(fit) -> None:
    scores, relevant, _ = sample(300)
    curve = fit(scores, relevant)
    back = Calibration.from_dict(json.loads(json.dumps(curve.to_dict())))
    np.testing.assert_array_equal(back(scores), curve(scores))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "magic"}, "unknown calibration 'magic'"),
        ({"kind": "platt", "slope": -1, "offset": 0}, "not monotone"),
        ({"kind": "isotonic", "scores": [0, 1], "probabilities": [0.5, 0.2]}, "not monotone"),
        ({"kind": "isotonic", "scores": [0, 1]}, "cannot be read"),
    ],
)
def test_a_damaged_calibration_is_refused(value: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Calibration.from_dict(value)


def test_threshold_table_by_hand() -> None:
    (row,) = threshold_table(np.array([0.9, 0.6, 0.2]), np.array([True, False, True]), 2, at=(0.5,))
    assert row == {"min_probability": 0.5, "precision": 0.5, "recall": 0.5, "skills_per_query": 1.0}


def test_reliability_and_its_error_by_hand() -> None:
    probability = np.array([0.1, 0.2, 0.6, 0.7, 1.0])
    relevant = np.array([False, True, True, False, True])
    np.testing.assert_allclose(reliability(probability, relevant, bins=2), [[2, 0.3, 1], [3, 2.3, 2]])
    assert calibration_error(probability, relevant, bins=2) == pytest.approx((0.7 + 0.3) / 5)
