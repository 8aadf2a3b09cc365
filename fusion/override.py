"""The alt-label override: a query that is the name of a pool skill puts that skill first."""

from __future__ import annotations

import numpy as np

from fusion.features import FeatureTable
from ranker.core.types import Float32


def exact_names(table: FeatureTable) -> Float32:
    """Return 1.0 where the whole query is a label or alt label of the skill, else 0.0: float32[n_queries, k].

    Raises
    ------
    ArgumentError
        If the table was built without the evidence features.
    """
    return np.ascontiguousarray(table.select(["hit.exact"])[:, :, 0])


def apply_override(scores: Float32, exact: Float32) -> Float32:
    """Lift the skills that the query names above every other, their own order kept.

    Parameters
    ----------
    scores : float32[n_queries, k]
        Fused scores.
    exact : float32[n_queries, k]
        From `exact_names`.

    Returns
    -------
    float32[n_queries, k]
        The scores plus, for named skills, the width of the query's scores and one.
    """
    if scores.size == 0:
        return scores
    width = scores.max(axis=1, keepdims=True) - scores.min(axis=1, keepdims=True) + 1
    return np.asarray(scores + exact * width, dtype=np.float32)
