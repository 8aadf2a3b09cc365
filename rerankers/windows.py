"""Sliding windows over a list, and permutations read from whatever a language model writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_THOUGHT = re.compile(r".*</think>", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)?")


def windows(n: int, size: int, step: int) -> list[tuple[int, int]]:
    """Return the windows of a list from its end to its start, each (start, end); neighbours share `size - step` places.

    So the best of the list's end can rise to its start, a window at a time. Source: Sun et al., "Is ChatGPT Good at
    Search?" (EMNLP 2023), section 4.2.

    Examples
    --------
    >>> windows(9, 4, 2)
    [(5, 9), (3, 7), (1, 5), (0, 4)]
    """
    found = []
    end = n
    while end > size:
        found.append((end - size, end))
        end -= step
    if n:
        found.append((0, min(size, n)))
    return found


def repair(numbers: Iterable[int], n: int) -> list[int]:
    """Return a permutation of 0 to n - 1: the valid numbers in their order, each once, then those that were left out.

    Examples
    --------
    >>> repair([2, 9, 2, 0, -1], 4)
    [2, 0, 1, 3]
    """
    seen = dict.fromkeys(number for number in numbers if 0 <= number < n)
    return [*seen, *(place for place in range(n) if place not in seen)]


def _said(text: str | None) -> str:
    """Return what stands after a model's thoughts."""
    return _THOUGHT.sub("", text or "", count=1)


def read_order(text: str | None, n: int) -> list[int]:
    """Return the order that a model wrote as numbers from 1 to n, repaired.

    Raises
    ------
    ValueError
        If it names none of them.
    """
    numbers = [int(number) - 1 for number in re.findall(r"(?<![\d.,-])\d+(?![\d]|[.,]\d)", _said(text))]
    if not any(0 <= number < n for number in numbers):
        raise ValueError(f"no number from 1 to {n} in {_said(text)[:60]!r}")
    return repair(numbers, n)


def read_rating(text: str | None) -> int:
    """Return the one whole number from 0 to 100 that a model wrote.

    Raises
    ------
    ValueError
        If it wrote none, another one, or several.
    """
    found = _NUMBER.findall(_said(text))
    if len(found) != 1 or not found[0].isdigit() or int(found[0]) > 100:
        raise ValueError(f"not one whole number from 0 to 100 but {_said(text)[:60]!r}")
    return int(found[0])


def places_to_scores(order: Sequence[int]) -> list[float]:
    """Return a score per place of a permutation, best first: n for the first in `order`, 1 for the last."""
    scores = [0.0] * len(order)
    for rank, place in enumerate(order):
        scores[place] = float(len(order) - rank)
    return scores
