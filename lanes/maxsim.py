"""Late interaction: one vector per token; a skill's score sums, over the query's tokens, their best match in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from lanes.encoder import unit
from ranker.core.artifacts import cached_array
from ranker.core.types import Float32

_BLOCK = 8_192  # tokens multiplied at a time: the products of 32 query tokens stay in the processor's cache
_PROBED = 16  # one in so many of the index's lists is looked into
_FOUND = 256  # tokens taken from the index per token of the query


class TokenIndex:
    """Token vectors of all skills, on disk as float16, and MaxSim over them (Khattab and Zaharia, SIGIR 2020).

    Parameters
    ----------
    key : dict
        Everything the vectors depend on.
    rows : callable
        Gives float32[n_tokens, width] of each skill, at least one row; called only where the cache has no answer.
        Rows are scaled to length 1.
    candidates : int, optional
        Find this many skills through an index first, and score only those exactly; None scores all.
    """

    def __init__(
        self, key: dict[str, Any], rows: Callable[[], Iterable[Float32]], *, candidates: int | None = None
    ) -> None:
        made: list[tuple[np.ndarray, np.ndarray]] = []

        def make() -> tuple[np.ndarray, np.ndarray]:
            if not made:
                parts = [unit(part).astype(np.float16) for part in rows()]
                made.append((np.concatenate(parts), np.cumsum([0, *map(len, parts)])))
            return made[0]

        self._vectors = cached_array("tokens", {**key, "part": "vectors"}, lambda: make()[0])
        ends = cached_array("tokens", {**key, "part": "ends"}, lambda: make()[1])
        self._ends: np.ndarray = ends.astype(np.int64)
        self._candidates = candidates
        self._index: Any = None
        self._owner: np.ndarray | None = None
        if candidates is not None and candidates < len(self):
            self._index = self._searchable(key)
            self._owner = np.repeat(np.arange(len(self)), np.diff(self._ends))

    def __len__(self) -> int:
        """Return the number of skills."""
        return len(self._ends) - 1

    def score(self, query: Float32) -> Float32:
        """Return float32[n_skills]: the sum over query tokens of the largest cosine to a token of the skill.

        With `candidates`, skills outside them get an upper bound of their score, cut below the worst candidate's: the
        similarities that the index did not find count as the least it found (Lee et al. 2023, "XTR").

        Parameters
        ----------
        query : numpy.ndarray
            float32[n_tokens, width], rows of length 1.
        """
        if self._index is None:
            return self._exact(query, np.arange(len(self)))
        bounds = self._bounds(query)
        chosen = np.sort(np.argsort(-bounds, kind="stable")[: self._candidates])
        exact = self._exact(query, chosen)
        result: Float32 = np.minimum(bounds, np.nextafter(exact.min(), np.float32(-np.inf)))
        result[chosen] = exact
        return result

    def _exact(self, query: Float32, skills: np.ndarray) -> Float32:
        """Return float32[len(skills)], block by block; `skills` ascend."""
        lengths = np.diff(self._ends)[skills]
        result = np.empty(len(skills), dtype=np.float32)
        edges = np.cumsum([0, *lengths])
        start = 0
        while start < len(skills):
            stop = max(start + 1, int(np.searchsorted(edges, edges[start] + _BLOCK, side="right")) - 1)
            part = skills[start:stop]
            if part[-1] - part[0] + 1 == len(part):  # neighbours on disk
                rows = self._vectors[self._ends[part[0]] : self._ends[part[-1] + 1]]
            else:
                rows = np.concatenate([self._vectors[self._ends[s] : self._ends[s + 1]] for s in part])
            cosines = rows.astype(np.float32) @ query.T
            best = np.maximum.reduceat(cosines, edges[start:stop] - edges[start], axis=0)
            result[start:stop] = best.sum(axis=1)
            start = stop
        return result

    def _bounds(self, query: Float32) -> Float32:
        """Return float32[n_skills]: MaxSim from the tokens that the index finds."""
        assert self._owner is not None
        cosines, tokens = self._index.search(np.ascontiguousarray(query), min(_FOUND, len(self._owner)))
        total = np.zeros(len(self), dtype=np.float32)
        for found, at in zip(cosines, tokens, strict=True):
            known = at >= 0
            least = found[known].min(initial=1.0)
            best = np.full(len(self), least, dtype=np.float32)
            np.maximum.at(best, self._owner[at[known]], found[known])
            total += best
        return total

    def _searchable(self, key: dict[str, Any]) -> Any:
        """Return a faiss index over the tokens: inverted lists of float16 vectors, from the cache where it is there."""
        import faiss  # costs a second, and only this needs it

        lists = max(1, min(int(4 * np.sqrt(len(self._vectors))), len(self._vectors) // 39))

        def build() -> np.ndarray:
            vectors = np.ascontiguousarray(self._vectors, dtype=np.float32)
            index = faiss.index_factory(vectors.shape[1], f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
            index.train(vectors)
            index.add(vectors)
            return np.asarray(faiss.serialize_index(index))

        stored = cached_array("tokens", {**key, "part": f"ivf{lists}"}, build)
        index: Any = faiss.deserialize_index(np.array(stored))
        index.nprobe = max(1, lists // _PROBED)
        return index
