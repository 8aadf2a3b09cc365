"""Ranking metrics on graded relevance: pure functions of the grades in ranked order.

Two matrices describe a set of rankings. `grades` holds the grade of the skill at each rank, `UNJUDGED` where the qrels
say nothing and `ABSENT` where a ranking is shorter than the matrix is wide. `ideal` holds every judged grade of the
query in descending order, filled with zeros. Every metric returns one float64 per query, NaN where the query has
nothing to find, so that a mean over queries is `numpy.nanmean`, as workrb leaves such queries out.

Ties are settled before these functions see a ranking, by `ranker.core.order.top_rows`: score descending, then URI.
workrb sorts with an unstable `argsort(-score)`, so its figures for tied scores depend on the sort's inner workings;
without ties the two are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ranker.core.errors import ArgumentError
from ranker.core.types import Int32

Float64 = NDArray[np.float64]
Int8 = NDArray[np.int8]

GRADES = (0, 1, 2, 3, 4)
GOLD = 4
RECOMMENDABLE = 2
WINDOW = 100
DEPTH = 1000  # the deepest rank that any metric reads
UNJUDGED = -1
ABSENT = -2
SLOTS = (*map(str, GRADES), "holes")


def ranked_grades(order: Int32, judged: Sequence[Mapping[int, int]], n_skills: int) -> Int8:
    """Return the grade at each rank.

    Parameters
    ----------
    order : int32[n_queries, depth]
        Taxonomy rows, best first; -1 where the ranking has ended.
    judged : sequence of mapping
        Per query, grade by taxonomy row.
    n_skills : int
        Rows of the taxonomy.

    Returns
    -------
    int8[n_queries, depth]
        0 to 4, `UNJUDGED` or `ABSENT`.
    """
    grades = np.empty(order.shape, dtype=np.int8)
    lookup = np.full(n_skills + 1, UNJUDGED, dtype=np.int8)
    lookup[-1] = ABSENT  # what row -1 reads
    for query, known in enumerate(judged):
        rows = np.fromiter(known, dtype=np.int64, count=len(known))
        lookup[rows] = np.fromiter(known.values(), dtype=np.int8, count=len(known))
        grades[query] = lookup[order[query]]
        lookup[rows] = UNJUDGED
    return grades


def ideal_grades(judged: Sequence[Sequence[int]]) -> Int8:
    """Return all judged grades of each query, descending, filled with zeros: int8[n_queries, most judged]."""
    ideal = np.zeros((len(judged), max(map(len, judged), default=0)), dtype=np.int8)
    for query, known in enumerate(judged):
        ideal[query, : len(known)] = sorted(known, reverse=True)
    return ideal


def _divide(part: NDArray[np.generic], whole: NDArray[np.generic]) -> Float64:
    """Return part / whole, NaN where whole is 0."""
    out = np.full(len(whole), np.nan)
    np.divide(part, whole, out=out, where=np.asarray(whole) > 0)
    return out


def _dcg(grades: Int8, k: int) -> Float64:
    gains = np.exp2(np.maximum(grades[:, :k], 0).astype(np.float64)) - 1.0
    discounts = 1.0 / np.log2(np.arange(gains.shape[1]) + 2.0)
    return np.asarray((gains * discounts).sum(axis=1))


def ndcg(grades: Int8, ideal: Int8, *, k: int) -> Float64:
    """Return nDCG@k with gain 2^grade - 1 and discount 1 / log2(rank + 1).

    The ideal ranking is made of all judged grades, retrieved or not. Source: Järvelin and Kekäläinen, "Cumulated
    gain-based evaluation of IR techniques" (TOIS 2002), with the exponential gain of Burges et al. (ICML 2005).

    Returns
    -------
    float64[n_queries]
        NaN where no judged skill has a grade above 0.
    """
    return _divide(_dcg(grades, k), _dcg(ideal, k))


def average_precision(grades: Int8, ideal: Int8, *, threshold: int) -> Float64:
    """Return average precision; a skill is relevant from grade `threshold`.

    The sum runs over the ranks given and is divided by all relevant skills, so one that was not retrieved counts 0.
    Over a complete ranking this is workrb's "map".
    """
    relevant = grades >= threshold
    precision = np.cumsum(relevant, axis=1) / np.arange(1, grades.shape[1] + 1)
    return _divide((precision * relevant).sum(axis=1), (ideal >= threshold).sum(axis=1))


def reciprocal_rank(grades: Int8, ideal: Int8, *, threshold: int) -> Float64:
    """Return 1 / rank of the first relevant skill, 0 where none was retrieved."""
    relevant = grades >= threshold
    first = np.where(relevant.any(axis=1), 1.0 / (relevant.argmax(axis=1) + 1), 0.0) if relevant.size else 0.0
    return np.where((ideal >= threshold).any(axis=1), first, np.nan)


def _hits(grades: Int8, k: int, threshold: int) -> NDArray[np.int64]:
    return np.asarray((grades[:, :k] >= threshold).sum(axis=1))


def recall(grades: Int8, ideal: Int8, *, k: int, threshold: int) -> Float64:
    """Return the share of all relevant skills among the first k."""
    return _divide(_hits(grades, k, threshold), (ideal >= threshold).sum(axis=1))


def r_precision(grades: Int8, ideal: Int8, *, k: int, threshold: int) -> Float64:
    """Return relevant skills among the first k, divided by min(k, number of relevant skills): workrb's "rp@k"."""
    return _divide(_hits(grades, k, threshold), np.minimum((ideal >= threshold).sum(axis=1), k))


def composition(grades: Int8, *, k: int = WINDOW) -> Float64:
    """Return how many of the first k slots hold each grade, and how many an unjudged skill.

    Returns
    -------
    float64[n_queries, 6]
        Columns as `SLOTS`; a row sums to k, or to the ranking's length where that is shorter.
    """
    window = grades[:, :k]
    return np.stack([(window == value).sum(axis=1) for value in (*GRADES, UNJUDGED)], axis=1).astype(np.float64)


def all_metrics(grades: Int8, ideal: Int8) -> dict[str, Float64]:
    """Return every reported metric by name.

    "_gold" metrics are binary at grade 4, "_ge2" metrics at grade 2 and above.
    """
    values = {f"ndcg@{WINDOW}": ndcg(grades, ideal, k=WINDOW)}
    for suffix, threshold in (("gold", GOLD), ("ge2", RECOMMENDABLE)):
        values[f"map_{suffix}"] = average_precision(grades, ideal, threshold=threshold)
        values[f"mrr_{suffix}"] = reciprocal_rank(grades, ideal, threshold=threshold)
        values[f"rp@10_{suffix}"] = r_precision(grades, ideal, k=10, threshold=threshold)
        for k in (WINDOW, DEPTH):
            values[f"recall@{k}_{suffix}"] = recall(grades, ideal, k=k, threshold=threshold)
    return values


def mean(values: NDArray[np.floating]) -> float:
    """Return the mean over the queries that have something to find, NaN where none has."""
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if kept.size else float("nan")


def macro(values: Mapping[str, NDArray[np.floating]]) -> float:
    """Return the mean over tasks of each task's mean; a task without any value is left out."""
    return mean(np.array([mean(task) for task in values.values()]))


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of two systems on the same queries.

    Attributes
    ----------
    difference : float
        Macro mean of system minus baseline.
    low, high : float
        Bounds of the 95 % percentile interval.
    p_value : float
        Two-sided bootstrap p value: twice the smaller share of resamples on either side of zero, at most 1.
    minimum_detectable : float
        The smallest true difference that a two-sided test at 0.05 would find in 80 % of repetitions; NaN where a task
        has fewer than two queries.
    n_queries : int
        Pairs compared.
    """

    difference: float
    low: float
    high: float
    p_value: float
    minimum_detectable: float
    n_queries: int


def _without_nan(values: Mapping[str, NDArray[np.floating]]) -> list[Float64]:
    """Return each task's values that are numbers; a task without any is left out."""
    tasks = [np.asarray(task, dtype=np.float64) for task in values.values()]
    return [kept for task in tasks if (kept := task[~np.isnan(task)]).size]


def _resampled_macro(tasks: Sequence[Float64], resamples: int, seed: int) -> Float64:
    """Return the macro mean of each resample; every task is resampled within itself, to its own size."""
    rng = np.random.default_rng(seed)
    means = [task[rng.integers(len(task), size=(resamples, len(task)))].mean(axis=1) for task in tasks]
    return np.asarray(np.mean(means, axis=0))


def standard_error(values: Mapping[str, NDArray[np.floating]]) -> float:
    """Return the standard error of the macro mean: sqrt(sum of var / n over tasks) / number of tasks."""
    tasks = _without_nan(values)
    if not tasks or min(map(len, tasks)) < 2:  # a variance needs two values
        return float("nan")
    return float(np.sqrt(sum(task.var(ddof=1) / len(task) for task in tasks)) / len(tasks))


def minimum_detectable_effect(
    differences: Mapping[str, NDArray[np.floating]], *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Return (z[1 - alpha/2] + z[power]) times the standard error of the macro mean of paired differences.

    With the defaults the factor is 1.96 + 0.84 = 2.80. Source: Card et al., "With little power comes great
    responsibility" (EMNLP 2020), for the normal approximation.
    """
    normal = NormalDist()
    return (normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)) * standard_error(differences)


def confidence_interval(
    values: Mapping[str, NDArray[np.floating]], *, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a macro mean, resampled within tasks; NaNs without any value."""
    tasks = _without_nan(values)
    if not tasks:
        return float("nan"), float("nan")
    low, high = np.quantile(_resampled_macro(tasks, resamples, seed), [0.025, 0.975])
    return float(low), float(high)


def compare(
    system: Mapping[str, NDArray[np.floating]],
    baseline: Mapping[str, NDArray[np.floating]],
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems by a paired bootstrap, stratified by task so that the macro mean is what is resampled.

    Parameters
    ----------
    system, baseline : mapping of str to float[n_queries]
        One value per query, by task, in the same order of queries; NaN pairs are left out.
    resamples : int
        Bootstrap resamples.
    seed : int
        Seed of the resampling; the same seed gives the same interval.

    Raises
    ------
    ArgumentError
        If the two do not hold the same tasks with the same number of queries, or hold no pair.
    """
    if {t: len(v) for t, v in system.items()} != {t: len(v) for t, v in baseline.items()}:
        raise ArgumentError("a paired comparison needs the same tasks and queries on both sides")
    differences = {}
    for task, values in system.items():
        pairs = np.asarray(values, dtype=np.float64) - baseline[task]
        kept = pairs[~np.isnan(pairs)]
        if kept.size:
            differences[task] = kept
    if not differences:
        raise ArgumentError("no query has a relevant skill in its qrels, so there is nothing to compare")
    resampled = _resampled_macro(list(differences.values()), resamples, seed)
    low, high = np.quantile(resampled, [0.025, 0.975])
    # One is added to both counts: the sample at hand belongs to its own resamples, so p is never 0.
    tail = min((resampled <= 0).sum(), (resampled >= 0).sum())
    return Comparison(
        difference=macro(differences),
        low=float(low),
        high=float(high),
        p_value=float(min(1.0, 2 * (tail + 1) / (resamples + 1))),
        minimum_detectable=minimum_detectable_effect(differences),
        n_queries=sum(map(len, differences.values())),
    )
