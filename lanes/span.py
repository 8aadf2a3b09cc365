"""Span lane: the match between a skill and any few neighbouring words of the query.

A sentence asks for several things, and its one embedding is their blur. The encoder's token states already carry the
context, so the mean over each window of them is a good embedding of that part, at no further pass of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lanes.dense import DenseLane
from lanes.encoder import EncoderPool, unit
from lanes.views import check_number
from ranker.core.types import Float32


def windows(states: Float32, size: int, limit: int) -> Float32:
    """Return the means over windows of token states, rows of length 1.

    Parameters
    ----------
    states : numpy.ndarray
        float32[n_tokens, width] with the special first and last token, which are left out.
    size : int
        Tokens of a window; a shorter text is one window.
    limit : int
        Most windows: beyond, they start at every second token, every third, and so on.

    Returns
    -------
    numpy.ndarray
        float32[n_windows, width], at least one row.
    """
    words = states[1:-1] if len(states) > 2 else states
    if len(words) <= size:
        return unit(words.mean(axis=0, keepdims=True))
    sums = np.zeros((len(words) + 1, words.shape[1]))
    np.cumsum(words, axis=0, dtype=np.float64, out=sums[1:])
    means = (sums[size:] - sums[:-size]) / size
    step = -(-len(means) // limit)
    return unit(means[::step].astype(np.float32))


class SpanLane(DenseLane):
    """The soft maximum, over windows of the query's tokens, of the cosine to the skill.

    With cosines c over n windows: t log(sum(exp(c / t)) / n). Near t = 0 one good window decides, at large t the mean
    of all; between, a skill that several parts of the text support stands above one that a single phrase recalls.

    Parameters
    ----------
    name, encoders, model, view, max_length
        As for the dense lane.
    size : int
        Tokens of a window.
    temperature : float
        The t above, at least 0.025.
    limit : int
        Most windows of one query.

    Raises
    ------
    ArgumentError
        For a value that is not allowed.
    """

    def __init__(
        self,
        name: str,
        *,
        encoders: EncoderPool,
        model: str,
        view: str = "label",
        size: int = 4,
        temperature: float = 0.03,
        limit: int = 32,
        max_length: int | None = None,
    ) -> None:
        super().__init__(name, encoders=encoders, model=model, view=view, max_length=max_length)
        check_number(size, 1, 512, option="size", lane=name, whole=True)
        check_number(limit, 1, 512, option="limit", lane=name, whole=True)
        check_number(temperature, 0.025, 100, option="temperature", lane=name)
        self._size, self._limit, self._temperature = size, limit, np.float32(temperature)

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]: cosines."""
        tiles = self.tiles
        result = np.empty((len(queries), len(tiles)), dtype=np.float32)
        for row, query in enumerate(queries):
            states = self.encoder.query_tokens(query, max_length=self._max_length)
            parts = windows(states, self._size, self._limit) / self._temperature
            scaled = tiles.dot(parts)
            # A cosine is at most 1, and from the least temperature on exp((c - 1) / t) neither over- nor underflows.
            scaled -= 1 / self._temperature
            weights = np.full(len(parts), 1 / len(parts), dtype=np.float32)
            result[row] = 1 + self._temperature * np.log(weights @ np.exp(scaled, out=scaled))
        return result
