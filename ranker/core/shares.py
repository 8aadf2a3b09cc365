"""Seats shared out in proportion, in whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ranker.core.errors import ArgumentError


def largest_remainder(sizes: Sequence[int], seats: int) -> list[int]:
    """Return `seats` shared out in proportion to `sizes`; what rounding down leaves goes to the largest remainders.

    Parameters
    ----------
    sizes : sequence of int
        Not negative, with a sum of at least `seats`; no share is larger than its size.
    seats : int
        At least 0.

    Returns
    -------
    list of int
        They sum to `seats`. Equal remainders are served in the order given.

    Examples
    --------
    >>> largest_remainder([47, 16, 37], 10)
    [5, 1, 4]
    """
    total = sum(sizes)
    if not 0 <= seats <= total:
        raise ArgumentError(f"cannot share {seats} among groups of {total} in all")
    whole = [size * seats // total if total else 0 for size in sizes]
    remainders = [size * seats % total if total else 0 for size in sizes]  # exact, in units of 1 / total
    by_remainder = sorted(range(len(sizes)), key=lambda i: -remainders[i])
    for i in by_remainder[: seats - sum(whole)]:
        whole[i] += 1
    return whole
