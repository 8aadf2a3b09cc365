"""The one tie rule and the one standard score."""

from __future__ import annotations

import numpy as np

from ranker.core.types import Float32, Int32


def zscore(scores: Float32, at: Float32 | None = None) -> Float32:
    """Return z-scores along the last axis: less the mean, over the standard deviation; constant scores give zeros.

    Parameters
    ----------
    scores : float32[..., n]
        Each row is standardised by itself.
    at : float32[..., m], optional
        The values to standardise, by default the scores themselves.

    Returns
    -------
    float32[..., m]
    """
    mean = scores.mean(axis=-1, keepdims=True, dtype=np.float64).astype(np.float32)
    centred = scores - mean
    # In single precision, but NumPy adds pairwise: good to six digits. A constant row gives exact zeros.
    deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True))
    # What is as good as constant must not be blown up into a signal.
    z: Float32 = centred if at is None else at - mean
    z /= np.where(deviation > 1e-9, deviation, np.float32(np.inf))
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
