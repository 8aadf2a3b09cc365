"""Metrics: golden numbers worked out by hand, parity with workrb, and the statistics of comparisons."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ranker.core import metrics
from ranker.core.errors import ArgumentError
from ranker.core.order import top_rows

U, A = metrics.UNJUDGED, metrics.ABSENT


def as_grades(*rows):
    return np.array(rows, dtype=np.int8)


def test_ndcg_by_hand():
    # Retrieved 4, 0, 2; a 3 was missed. DCG = 15/1 + 0 + 3/2 = 16.5; ideal 4, 3, 2 = 15 + 7/log2(3) + 3/2.
    value = metrics.ndcg(as_grades([4, 0, 2]), as_grades([4, 3, 2, 0]), k=100)
    assert value == pytest.approx([16.5 / (16.5 + 7 / math.log2(3))], abs=1e-12)
    assert value[0] == pytest.approx(0.78885, abs=1e-5)


def test_ndcg_cuts_ranking_and_ideal_at_k():
    # k = 2: DCG = 1/1 + 15/log2(3), ideal = 15 + 7/log2(3).
    value = metrics.ndcg(as_grades([1, 4, 4]), as_grades([4, 3, 1]), k=2)
    assert value == pytest.approx([(1 + 15 / math.log2(3)) / (15 + 7 / math.log2(3))], abs=1e-12)


def test_unjudged_and_absent_gain_nothing():
    ideal = as_grades([4, 1])
    expected = metrics.ndcg(as_grades([0, 4, 0]), ideal, k=100)
    assert metrics.ndcg(as_grades([U, 4, A]), ideal, k=100) == pytest.approx(expected)
    assert expected == pytest.approx([(15 / math.log2(3)) / (15 + 1 / math.log2(3))])


def test_binary_metrics_by_hand():
    grades = as_grades([0, 4, U, 2, 4])
    ideal = as_grades([4, 4, 4, 2, 0])  # one gold skill was not retrieved
    gold, wide = {"threshold": 4}, {"threshold": 2}
    assert metrics.average_precision(grades, ideal, **gold) == pytest.approx([(1 / 2 + 2 / 5) / 3])
    assert metrics.average_precision(grades, ideal, **wide) == pytest.approx([(1 / 2 + 2 / 4 + 3 / 5) / 4])
    assert metrics.reciprocal_rank(grades, ideal, **gold) == pytest.approx([1 / 2])
    assert metrics.recall(grades, ideal, k=4, **gold) == pytest.approx([1 / 3])
    assert metrics.recall(grades, ideal, k=1000, **wide) == pytest.approx([3 / 4])
    assert metrics.r_precision(grades, ideal, k=2, **gold) == pytest.approx([1 / 2])
    assert metrics.r_precision(grades, ideal, k=10, **gold) == pytest.approx([2 / 3])


def test_a_query_with_nothing_to_find_is_left_out_of_means():
    grades, ideal = as_grades([2, 0], [0, 0]), as_grades([2, 0], [0, 0])
    values = metrics.all_metrics(grades, ideal)
    assert np.isnan(values["map_gold"]).all()
    assert math.isnan(metrics.mean(values["map_gold"]))
    assert metrics.mean(values["ndcg@100"]) == 1.0
    assert metrics.mean(values["mrr_ge2"]) == 1.0
    assert metrics.macro({"a": np.array([0.2, np.nan]), "b": np.array([0.6, 0.8]), "c": np.array([np.nan])}) == (
        pytest.approx(0.45)
    )


def test_nothing_retrieved_scores_zero():
    values = metrics.all_metrics(as_grades([A, A]), as_grades([4, 2]))
    assert {name: float(value[0]) for name, value in values.items()} == dict.fromkeys(values, 0.0)
    assert metrics.reciprocal_rank(np.zeros((1, 0), np.int8), as_grades([4]), threshold=4) == [0.0]


def test_composition_counts_the_window():
    grades = as_grades([4, 3, 2, 1, 0, U, U, 4], [1, 1, A, A, A, A, A, A])
    counts = metrics.composition(grades, k=7)
    assert metrics.SLOTS == ("0", "1", "2", "3", "4", "holes")
    assert counts.tolist() == [[1, 1, 1, 1, 1, 2], [0, 2, 0, 0, 0, 0]]


def test_grades_follow_the_order():
    order = np.array([[2, 0, -1], [1, 3, 2]], dtype=np.int32)
    judged = [{0: 4, 1: 3}, {3: 1}]
    assert metrics.ranked_grades(order, judged, 4).tolist() == [[U, 4, A], [U, 1, U]]
    assert metrics.ideal_grades([[0, 4, 1], [], [2]]).tolist() == [[4, 1, 0], [0, 0, 0], [2, 0, 0]]


def test_ties_go_by_score_then_uri():
    scores = np.array([[1.0, 2.0, 2.0, 1.0]], dtype=np.float32)
    order = top_rows(scores, 4)
    assert order.tolist() == [[1, 2, 0, 3]]
    grades = metrics.ranked_grades(order, [{2: 4}], 4)
    assert metrics.reciprocal_rank(grades, as_grades([4]), threshold=4) == [0.5]


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_workrb_without_ties(seed):
    ranking = pytest.importorskip("workrb.metrics.ranking", reason="workrb is in the extra 'train'")
    rng = np.random.default_rng(seed)
    n_queries, n_skills = 30, 1500
    # A permutation per query: no ties, for which workrb's order would depend on its sort.
    scores = rng.permuted(np.tile(np.arange(n_skills, dtype=np.float32), (n_queries, 1)), axis=1)
    judged = []
    for _ in range(n_queries):
        rows = rng.choice(n_skills, size=rng.integers(1, 300), replace=False)
        drawn = rng.choice(5, size=len(rows), p=[0.6, 0.3, 0.06, 0.03, 0.01])
        judged.append(dict(zip(rows.tolist(), drawn.tolist(), strict=True)))
    grades = metrics.ranked_grades(top_rows(scores, n_skills), judged, n_skills)
    ours = metrics.all_metrics(grades, metrics.ideal_grades([list(known.values()) for known in judged]))

    def theirs(names, threshold):
        return ranking.calculate_ranking_metrics(
            scores, [list(k) for k in judged], names, [list(map(float, k.values())) for k in judged], threshold
        )

    assert metrics.mean(ours["ndcg@100"]) == pytest.approx(theirs(["ndcg@100"], 1)["ndcg@100"], abs=1e-9)
    for suffix, threshold in (("gold", 4), ("ge2", 2)):
        wanted = theirs(["map", "mrr", "rp@10", "recall@100", "recall@1000"], threshold)
        for name, value in wanted.items():
            assert metrics.mean(ours[f"{name}_{suffix}"]) == pytest.approx(value, abs=1e-9), name


def test_every_metric_stays_between_zero_and_one_and_is_one_for_the_ideal():
    rng = np.random.default_rng(3)
    ideal = -np.sort(-rng.integers(0, 5, size=(50, 40)).astype(np.int8), axis=1)
    shuffled = rng.permuted(ideal, axis=1)
    for values in metrics.all_metrics(shuffled, ideal).values():
        assert ((values >= 0) & (values <= 1 + 1e-12)).all()
    for values in metrics.all_metrics(ideal, ideal).values():
        assert values == pytest.approx(np.ones(50))


# --- comparisons -----------------------------------------------------------------------------------------------------


def test_minimum_detectable_effect_by_hand():
    # Task a: differences 0, 2 (variance 2, n 2); task b: 0, 0, 3, 3 (variance 3, n 4). se = sqrt(2/2 + 3/4) / 2.
    differences = {"a": np.array([0.0, 2.0]), "b": np.array([0.0, 0.0, 3.0, 3.0])}
    assert metrics.standard_error(differences) == pytest.approx(math.sqrt(1.75) / 2)
    effect = metrics.minimum_detectable_effect(differences)
    assert effect == pytest.approx((1.96 + 0.84) * math.sqrt(1.75) / 2, rel=1e-3)
    assert math.isnan(metrics.minimum_detectable_effect({"a": np.array([1.0])}))


def test_no_difference_gives_p_one_and_an_empty_interval():
    values = {"a": np.array([0.1, 0.5, 0.9]), "b": np.array([0.4, 0.2])}
    result = metrics.compare(values, values)
    assert (result.difference, result.low, result.high, result.p_value) == (0.0, 0.0, 0.0, 1.0)
    assert result.minimum_detectable == 0.0


def test_a_constant_gain_is_certain():
    base = {"a": np.array([0.1, 0.5, 0.9]), "b": np.array([0.4, 0.2])}
    result = metrics.compare({task: values + 0.05 for task, values in base.items()}, base, resamples=1000)
    assert result.difference == pytest.approx(0.05)
    assert (result.low, result.high) == (pytest.approx(0.05), pytest.approx(0.05))
    assert result.p_value == pytest.approx(2 / 1001)  # the least that 1,000 resamples can say


def test_the_macro_mean_is_what_is_compared():
    # A large task and a small one count the same.
    base = {"large": np.zeros(90), "small": np.zeros(10)}
    result = metrics.compare({"large": np.zeros(90), "small": np.ones(10)}, base)
    assert result.difference == pytest.approx(0.5)
    assert (result.low, result.high) == (pytest.approx(0.5), pytest.approx(0.5))  # stratified: no spread between tasks


def test_interval_agrees_with_the_normal_approximation():
    rng = np.random.default_rng(0)
    base = {"a": rng.random(200), "b": rng.random(100)}
    system = {task: values + rng.normal(0.01, 0.1, len(values)) for task, values in base.items()}
    result = metrics.compare(system, base, seed=1)
    spread = metrics.standard_error({task: system[task] - base[task] for task in base})
    assert result.low == pytest.approx(result.difference - 1.96 * spread, abs=0.1 * spread)
    assert result.high == pytest.approx(result.difference + 1.96 * spread, abs=0.1 * spread)
    mirrored = metrics.compare(base, system, seed=1)
    assert mirrored.difference == pytest.approx(-result.difference)
    assert mirrored.p_value == pytest.approx(result.p_value, abs=1e-3)


def test_seeded():
    values = {"a": np.random.default_rng(0).random(30)}
    zero = {"a": np.full(30, 0.5)}
    assert metrics.compare(values, zero, seed=4) == metrics.compare(values, zero, seed=4)
    assert metrics.confidence_interval(values, seed=4) != metrics.confidence_interval(values, seed=5)


def test_false_alarms_are_about_one_in_twenty():
    rng = np.random.default_rng(7)
    alarms = sum(
        metrics.compare(
            {"a": rng.normal(size=40), "b": rng.normal(size=60)}, {"a": np.zeros(40), "b": np.zeros(60)}, resamples=500
        ).p_value
        < 0.05
        for _ in range(300)
    )
    assert 3 <= alarms <= 33  # 15 expected; the bounds are about three and four standard deviations away


def test_nan_pairs_are_left_out_and_mismatches_refused():
    result = metrics.compare({"a": np.array([0.5, np.nan])}, {"a": np.array([0.25, np.nan])})
    assert (result.difference, result.n_queries) == (0.25, 1)
    with pytest.raises(ArgumentError, match="same tasks and queries"):
        metrics.compare({"a": np.zeros(2)}, {"a": np.zeros(3)})
    with pytest.raises(ArgumentError, match="nothing to compare"):
        metrics.compare({"a": np.array([np.nan])}, {"a": np.array([np.nan])})
    assert all(map(math.isnan, metrics.confidence_interval({"a": np.array([np.nan])})))
