"""How small a difference a set of queries can show, and how many more queries a smaller one needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ranker.core.metrics import minimum_detectable_effect

EFFECTS = (0.005, 0.01, 0.02)


def more_queries(
    differences: Mapping[str, NDArray[np.floating]], effect: float, *, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Return how many more queries are needed to find a true difference of this size between two systems.

    The standard error of a mean falls with the square root of the number of queries, so n queries that detect d detect
    an effect e when there are n (d / e)^2 of them. The new queries are taken to be of the same kinds as the old ones,
    and each task to grow in proportion.

    Parameters
    ----------
    differences : mapping of str to float[n_queries]
        Paired differences per query, by task; NaN where a query has nothing to find.
    effect : float
        Above 0.
    alpha, power : float
        As in `minimum_detectable_effect`.

    Returns
    -------
    int or None
        0 where the queries at hand are enough; None where a task has fewer than two queries.
    """
    detectable = minimum_detectable_effect(differences, alpha=alpha, power=power)
    if math.isnan(detectable):
        return None
    n = sum(int(np.count_nonzero(~np.isnan(values))) for values in differences.values())
    # A hair is taken off before rounding up: d equal to e must not cost a query.
    return max(0, math.ceil(n * (detectable / effect) ** 2 - 1e-9) - n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for the number of comparisons.

    The smallest is multiplied by n, the next by n - 1 and so on; none falls below the one before. Source: Holm, "A
    simple sequentially rejective multiple test procedure" (Scandinavian Journal of Statistics 1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
