"""Which part of the pool each column scores: the dear one only where a cheaper score leaves it something to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ranker.core.config import BASE, ColumnConfig
from ranker.core.errors import RankerError
from ranker.core.order import zscore
from ranker.core.types import Float32, Int32


def reach(config: ColumnConfig, pool: Int32, scores: Mapping[str, Float32]) -> Int32:
    """Return the places in the pool that a column scores.

    Parameters
    ----------
    config : ColumnConfig
        Without `after`: the first `depth` places, the pool's best by base score. With it: the best `depth` by the
        weighted sum of the per-query z-scores of what `after` names. What one of those left out comes after what all
        of them scored, in the pool's order.
    pool : int32[n_queries, k]
        Taxonomy rows, best base score first.
    scores : mapping of str to float32[n_queries, k]
        Base score and earlier columns per place; NaN where a column did not score.

    Returns
    -------
    int32[n_queries, min(depth, k)]
        Ascending in each row. A row depends on its own query alone; equal sums go by taxonomy row.
    """
    depth = min(config.depth, pool.shape[1])
    if not config.after:
        return np.broadcast_to(np.arange(depth, dtype=np.int32), (len(pool), depth))
    places = np.empty((len(pool), depth), dtype=np.int32)
    for i, rows in enumerate(pool):
        parts = {name: scores[name][i] for name in config.after}
        seen = np.flatnonzero(np.all([np.isfinite(part) for part in parts.values()], axis=0))
        total = np.zeros(len(seen), dtype=np.float32)
        for name, part in parts.items():
            total += np.float32(config.after[name]) * zscore(part[seen]) if len(seen) else total
        best = seen[np.lexsort((rows[seen], -total))]
        rest = np.setdiff1d(np.arange(len(rows)), seen)
        places[i] = np.sort(np.concatenate([best, rest])[:depth])
    return places


def run_columns(
    configs: Sequence[ColumnConfig],
    base: Float32,
    pool: Int32,
    score: Callable[[ColumnConfig, Int32], Float32],
) -> dict[str, Float32]:
    """Run the columns of a system in their order, each to its depth.

    Parameters
    ----------
    configs : sequence of ColumnConfig
        In the order of the system; `after` names earlier ones.
    base : float32[n_queries, n_skills]
        Base score of every skill.
    pool : int32[n_queries, k]
        Taxonomy rows, best base score first.
    score : callable
        Given a column's config and its part of the pool, int32[n_queries, depth], returns float32 of that shape.

    Returns
    -------
    dict of str to float32[n_queries, k]
        NaN where a column did not score.

    Raises
    ------
    RankerError
        If a column's scores are not finite, or not of the shape that was asked for.
    """
    scores: dict[str, Float32] = {BASE: np.take_along_axis(base, pool, axis=1)}
    for config in configs:
        places = reach(config, pool, scores)
        part = score(config, np.take_along_axis(pool, places, axis=1))
        if part.shape != places.shape or not np.isfinite(part).all():
            wrong = "a score that is not finite" if part.shape == places.shape else f"{part.shape} scores"
            raise RankerError(f"column {config.name} gave {wrong} for {places.shape} pairs; nothing was ranked")
        scores[config.name] = np.full(pool.shape, np.nan, dtype=np.float32)
        np.put_along_axis(scores[config.name], places, part.astype(np.float32, copy=False), axis=1)
    return {config.name: scores[config.name] for config in configs}
