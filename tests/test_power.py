"""Power: how many queries a difference needs, and Holm's adjustment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranker import evaluate
from ranker.core.metrics import minimum_detectable_effect
from ranker.core.power import holm, more_queries


def test_half_the_effect_needs_four_times_the_queries():
    values = {"a": np.random.default_rng(0).normal(0, 0.1, 50), "b": np.random.default_rng(1).normal(0, 0.2, 30)}
    detectable = minimum_detectable_effect(values)
    assert more_queries(values, detectable) == 0
    assert more_queries(values, 2 * detectable) == 0
    assert more_queries(values, detectable / 2) == 3 * 80
    with_gaps = {"a": np.append(values["a"], np.nan), "b": values["b"]}
    assert more_queries(with_gaps, detectable / 2) == 3 * 80
    assert more_queries({"a": np.array([0.1])}, 0.01) is None


def test_the_promised_queries_do_find_the_effect():
    """Simulated: with n + more queries, a two-sided z test at 0.05 finds the effect in about 80 % of repetitions."""
    rng = np.random.default_rng(3)
    pilot = rng.normal(0, 0.1, 2000)
    n = 100
    more = more_queries({"a": pilot[:n] / pilot[:n].std(ddof=1) * 0.1}, 0.02)
    samples = rng.normal(0.02, 0.1, (3000, n + more))
    z = samples.mean(axis=1) / (samples.std(axis=1, ddof=1) / np.sqrt(n + more))
    assert (abs(z) > 1.96).mean() == pytest.approx(0.8, abs=0.03)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_a_p_value_nor_changes_their_order(values):
    adjusted = holm(values)
    assert all(value <= new <= 1 for value, new in zip(values, adjusted, strict=True))
    order = np.argsort(values, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


def test_evaluate_warns_where_the_difference_is_below_what_can_be_shown(capsys):
    row = {"config": "b", "baseline": "a", "difference": -0.01, "minimum_detectable": 0.02}
    evaluate.warn_of_close({"comparisons": [row]})
    assert "b and a differ by less than these queries can show (0.0100 < 0.0200)" in capsys.readouterr().err
    quiet = [{**row, "difference": -0.03}, {**row, "minimum_detectable": None}]
    evaluate.warn_of_close({"comparisons": quiet})
    assert capsys.readouterr().err == ""
