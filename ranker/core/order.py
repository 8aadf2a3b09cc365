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
    return standardise(scores if at is None else at, *moments(scores))


def moments(scores: Float32) -> tuple[Float32, Float32]:
    """Return mean and standard deviation along the last axis, float32[..., 1] each."""
    mean: Float32 = scores.mean(axis=-1, keepdims=True, dtype=np.float64).astype(np.float32)
    # In single precision, but NumPy adds pairwise: good to six digits. A constant row gives exact zeros.
    deviation: Float32 = np.sqrt(np.square(scores - mean).mean(axis=-1, keepdims=True))
    return mean, deviation


def standardise(scores: Float32, mean: Float32, deviation: Float32) -> Float32:
    """Return scores less the mean, over the deviation; zeros where that is none."""
    z = scores - mean
    # What is as good as constant must not be blown up into a signal.
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
