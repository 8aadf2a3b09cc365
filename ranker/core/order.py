"""The one tie rule and the per-query standard score."""

from __future__ import annotations

import numpy as np

from ranker.core.types import Float32, Int32


def zscore(scores: Float32) -> Float32:
    """Return per-query z-scores: each row minus its mean, over its standard deviation; a constant row gives zeros.

    Parameters
    ----------
    scores : float32[n_queries, n]

    Returns
    -------
    float32[n_queries, n]
        Each row depends on itself alone.
    """
    centred = scores - scores.mean(axis=1, keepdims=True, dtype=np.float64)
    deviation = np.sqrt(np.square(centred).mean(axis=1, keepdims=True))
    # A constant row leaves only rounding noise, which must not be blown up into a signal.
    safe = np.where(deviation > 1e-9, deviation, np.inf)
    z: Float32 = (centred / safe).astype(np.float32)
    return z


def top_rows(scores: Float32, k: int) -> Int32:
    """Return the columns of the k best scores of each row: score descending, then column ascending.

    Skills are sorted by URI, so the lower column is the lower URI.

    Parameters
    ----------
    scores : float32[n_queries, n]
        Finite.
    k : int
        Cut to n where it is larger.

    Returns
    -------
    int32[n_queries, min(k, n)]
    """
    n = scores.shape[1]
    k = min(k, n)
    best = np.empty((scores.shape[0], k), dtype=np.int32)
    for i, row in enumerate(scores):
        threshold = np.partition(row, n - k)[n - k]
        columns = np.flatnonzero(row >= threshold)
        best[i] = columns[np.argsort(-row[columns], kind="stable")[:k]]
    return best
