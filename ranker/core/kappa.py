"""Kappa of graded judgements, of one confusion matrix or of thousands at once, and how they are resampled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ranker.core.metrics import GRADES, Float64

Int64 = NDArray[np.int64]


def collapse(grades: Int64) -> Int64:
    """Return the grades with 4 read as 3: "correct", whether it was asked for in so many words or not."""
    return np.minimum(grades, max(GRADES) - 1)


def confusion(a: Int64, b: Int64, k: int) -> Int64:
    """Return int64[k, k]: pairs by grade of a (row) and of b (column)."""
    return np.bincount(a * k + b, minlength=k * k).reshape(k, k)


def kappa(counts: NDArray[np.integer], *, quadratic: bool) -> Float64:
    """Return Cohen's kappa of confusion matrices.

    One minus the observed disagreement over that expected from the margins; a disagreement weighs the square of the
    distance between the grades, or always 1. Source: Cohen, "Weighted kappa" (Psychological Bulletin 1968).

    Parameters
    ----------
    counts : int[..., k, k]
        One matrix or many.
    quadratic : bool
        Which weights.

    Returns
    -------
    float64[...]
        NaN where no disagreement is expected: both sides gave one and the same grade throughout.
    """
    k = counts.shape[-1]
    grid = np.arange(k)
    apart = grid[:, None] - grid
    weights = apart**2 if quadratic else (apart != 0).astype(np.int64)
    observed = (counts * weights).sum(axis=(-2, -1)).astype(np.float64)
    rows, columns = counts.sum(axis=-1).astype(np.float64), counts.sum(axis=-2).astype(np.float64)
    expected = ((rows @ weights) * columns).sum(axis=-1)
    ratio = np.full(observed.shape, np.nan)
    np.divide(observed * rows.sum(axis=-1), expected, out=ratio, where=expected > 0)
    return np.asarray(1.0 - ratio)


def resampled(grades: Int64, strata: Int64, units: Int64 | None, k: int, *, resamples: int, seed: int) -> Int64:
    """Return how often each combination of grades occurs in each bootstrap resample.

    Resampling n pairs with replacement draws from a multinomial over the distinct pairs there are, which costs nothing
    in n: 10,000 resamples of any number of pairs take the time of a few hundred cells.

    Parameters
    ----------
    grades : int64[n_sources, n_pairs]
        Below k.
    strata : int64[n_pairs]
        Each stratum is resampled within itself, to its own size.
    units : int64[n_pairs], optional
        What is drawn: whole groups of pairs that share a number, such as a query, which must lie in one stratum.
        Default: each pair by itself.
    k : int
        Number of grades.
    resamples, seed : int
        How many, and of which random numbers.

    Returns
    -------
    int64[resamples, k, ...]
        One axis of size k per source.
    """
    rng = np.random.default_rng(seed)
    n_cells = k ** len(grades)
    cells = np.ravel_multi_index(tuple(grades), (k,) * len(grades))
    total = np.zeros((resamples, n_cells), dtype=np.int64)
    for stratum in np.unique(strata):
        inside = strata == stratum
        if units is None:
            kinds, times = np.unique(cells[inside], return_counts=True)
            drawn = rng.multinomial(int(times.sum()), times / times.sum(), size=resamples)
            total[:, kinds] += drawn
        else:
            names, member = np.unique(units[inside], return_inverse=True)
            vectors = np.bincount(member * n_cells + cells[inside], minlength=len(names) * n_cells)
            drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
            total += drawn @ vectors.reshape(len(names), n_cells)
    return total.reshape(resamples, *(k,) * len(grades))
