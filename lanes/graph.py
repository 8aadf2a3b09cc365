"""Derived lanes: another lane's scores, smoothed over what the taxonomy and the embeddings say belongs together.

They carry the domain. A lane knows how near a skill is to the text; these know how near its neighbourhood is, and lift
a skill of the right occupational domain over one that shares a word.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import sparse

from lanes.base import Lane
from lanes.dense import DenseLane
from lanes.views import check_number
from ranker.core.artifacts import cached_array
from ranker.core.errors import ArgumentError
from ranker.core.order import top_rows, zscore
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32


class Derived(ABC):
    """What derived lanes share: the base lane, and rows smoothed one by one."""

    def __init__(self, name: str, base_lane: Lane) -> None:
        self.name = name
        self.base = base_lane.name
        self._base_lane = base_lane

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills], from the base lane's scores."""
        return self.smooth(self._base_lane.score(queries))

    def smooth(self, scores: Float32) -> Float32:
        """Return float32[n_queries, n_skills], given the base lane's scores of the same shape."""
        result = np.empty(scores.shape, dtype=np.float32)
        for row, values in enumerate(scores):
            result[row] = self._row(values)
        return result

    def backbones(self) -> Mapping[str, int]:
        """Return the base lane's models."""
        return self._base_lane.backbones()

    @abstractmethod
    def _row(self, scores: Float32) -> Float32:
        """Return one query's smoothed scores, float32[n_skills]."""


def _dense_ancestor(lane: Lane, name: str) -> DenseLane:
    """Return the dense lane that a derived lane stands on."""
    while not isinstance(lane, DenseLane):
        if not isinstance(lane, Derived):
            raise ArgumentError(f"lane {name}: base: {lane.name} has no embeddings; name a lane of family dense")
        lane = lane._base_lane  # noqa: SLF001 - one file, one family
    return lane


def parents(code: str) -> list[str]:
    """Return a group's code and those of the groups around it, the narrowest first.

    Examples
    --------
    >>> parents("S4.5.0"), parents("K0613")
    (['S4.5.0', 'S4.5', 'S4'], ['K0613', 'K061', 'K06'])
    """
    codes = [code]
    if "." in code:
        while "." in codes[-1]:
            codes.append(codes[-1].rsplit(".", 1)[0])
    else:
        codes += [code[:cut] for cut in range(len(code) - 1, 2, -1)]
    return codes


def memberships(taxonomy: Taxonomy, *, min_size: int = 1) -> sparse.csr_array:
    """Return float32[n_skills, n_groups] of zeros and ones; a skill is also in the groups around its own.

    Groups with fewer than `min_size` skills and repeats of a same set of skills are left out.
    """
    members: dict[str, set[int]] = {}
    for row, codes in enumerate(taxonomy.groups):
        for code in dict.fromkeys(c for own in codes for c in parents(own)):
            members.setdefault(code, set()).add(row)
    kept = list(dict.fromkeys(frozenset(rows) for _, rows in sorted(members.items()) if len(rows) >= min_size))
    rows = np.asarray([row for group in kept for row in sorted(group)], dtype=np.int32)
    ends = np.cumsum([0, *map(len, kept)])
    data = np.ones(len(rows), dtype=np.float32)
    return sparse.csc_array((data, rows, ends), shape=(len(taxonomy), len(kept))).tocsr()


class GroupLane(Derived):
    """How strongly the query hits the ESCO groups of a skill.

    A group's strength is the soft maximum of its members' z-scores, log(sum(exp(beta z)) / (n + prior)) / beta: many
    fairly good members count like a few very good ones, and a group of two is not trusted over one of two hundred. A
    skill's score is the mean strength over its groups and those around them, the narrow ones weighing more.

    Parameters
    ----------
    name : str
        Feature prefix.
    base_lane : Lane
        Whose scores are smoothed.
    beta : float
        0.1 is close to the mean of a group, 10 to its best member.
    prior : float
        Members of average score that are added to each group.
    """

    def __init__(self, name: str, *, base_lane: Lane, beta: float = 1.5, prior: float = 10.0) -> None:
        super().__init__(name, base_lane)
        check_number(beta, 0.01, 20, option="beta", lane=name)
        check_number(prior, 0, 10_000, option="prior", lane=name)
        self._beta = np.float32(beta)
        self._prior = np.float32(prior)

    def fit(self, taxonomy: Taxonomy) -> None:
        """Read the taxonomy's groups; nothing to cache."""
        member = memberships(taxonomy)
        sizes = np.asarray(member.sum(axis=0)).ravel()
        self._gather = member.T.tocsr()
        self._sizes = sizes + self._prior
        spread = member.copy()
        spread.data = (1 / np.sqrt(np.maximum(sizes, 1)))[spread.indices].astype(np.float32)
        totals = np.asarray(spread.sum(axis=1)).ravel()
        spread.data /= np.repeat(totals, np.diff(spread.indptr))
        self._spread = spread
        self._grouped = totals > 0

    def _row(self, scores: Float32) -> Float32:
        if self._gather.shape[0] == 0:
            return np.zeros_like(scores)
        mass = np.exp(np.minimum(self._beta * zscore(scores), np.float32(60)))
        strength = np.log((self._gather @ mass + self._prior) / self._sizes) / self._beta
        result: Float32 = self._spread @ strength
        # Skills without a group get what a skill has on average: no evidence in either direction.
        result[~self._grouped] = result[self._grouped].mean()
        return result


def neighbours(vectors: Float32, k: int, key: dict[str, object]) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest neighbours of each skill by embedding, itself left out.

    Exact, by faiss, cached.

    Parameters
    ----------
    vectors : numpy.ndarray
        float32[n_skills, width], rows of length 1.
    k : int
        Neighbours; n_skills - 1 where that is fewer.
    key : dict
        What the vectors depend on.

    Returns
    -------
    rows, cosines : numpy.ndarray
        int32[n_skills, k] and float32[n_skills, k], best first.
    """
    k = min(k, len(vectors) - 1)
    found: list[tuple[np.ndarray, np.ndarray]] = []

    def search() -> tuple[np.ndarray, np.ndarray]:
        if not found:
            import faiss  # only a cold cache needs it

            index = faiss.IndexFlatIP(vectors.shape[1])
            index.add(np.ascontiguousarray(vectors))
            cosines, rows = index.search(np.ascontiguousarray(vectors), k + 1)
            # Twins may stand before the skill itself: drop it by name, or the last where it is not among them.
            other = rows != np.arange(len(vectors))[:, None]
            other &= np.cumsum(other, axis=1) <= k
            shape = (len(vectors), k)
            found.append((rows[other].reshape(shape).astype(np.int32), cosines[other].reshape(shape)))
        return found[0]

    full = {**key, "k": k}
    rows = cached_array("neighbours", {**full, "part": "rows"}, lambda: search()[0])
    return rows, cached_array("neighbours", {**full, "part": "cosines"}, lambda: search()[1])


class NeighbourLane(Derived):
    """The base scores, averaged over each skill's nearest neighbours, in one or more steps.

    Parameters
    ----------
    name : str
        Feature prefix.
    base_lane : Lane
        A dense lane, or one derived from it: its embeddings make the graph.
    k : int
        Neighbours of a skill.
    steps : int
        How often the scores flow.
    own : float
        Share of its own score that a skill keeps in each step.
    power : float
        Neighbours weigh cosine ** power.
    """

    def __init__(
        self, name: str, *, base_lane: Lane, k: int = 15, steps: int = 1, own: float = 0.0, power: float = 4.0
    ) -> None:
        super().__init__(name, base_lane)
        check_number(k, 1, 1_000, option="k", lane=name, whole=True)
        check_number(steps, 1, 10, option="steps", lane=name, whole=True)
        check_number(own, 0, 1, option="own", lane=name)
        check_number(power, 0, 50, option="power", lane=name)
        self._dense = _dense_ancestor(base_lane, name)
        self._k, self._steps, self._own, self._power = k, steps, np.float32(own), power

    def fit(self, taxonomy: Taxonomy) -> None:
        """Build the graph, from the cache where it is there; the base lane is fitted before."""
        n = len(taxonomy)
        rows, cosines = neighbours(self._dense.vectors, self._k, self._dense.key(taxonomy))
        k = rows.shape[1]
        weights = np.maximum(cosines, np.float32(1e-6)) ** np.float32(self._power)
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.float32(1e-12))
        self._graph = sparse.csr_array(
            (weights.ravel(), np.asarray(rows).ravel(), np.arange(0, n * k + 1, k) if k else np.zeros(n + 1, np.int32)),
            shape=(n, n),
        )

    def _row(self, scores: Float32) -> Float32:
        if self._graph.nnz == 0:
            return scores
        for _ in range(self._steps):
            scores = (1 - self._own) * (self._graph @ scores) + self._own * scores
        return scores


class FeedbackLane(Derived):
    """Pseudo-relevance feedback: cosine to the centre of the query's own best skills (Rocchio 1971).

    The centre is the mean of the `top` best skills' embeddings, weighed exp(sharpness * (z-score - the best z-score)).

    Parameters
    ----------
    name : str
        Feature prefix.
    base_lane : Lane
        A dense lane, or one derived from it.
    top : int
        How many of the best make the centre.
    sharpness : float
        0 weighs them alike.
    """

    def __init__(self, name: str, *, base_lane: Lane, top: int = 20, sharpness: float = 0.5) -> None:
        super().__init__(name, base_lane)
        check_number(top, 1, 10_000, option="top", lane=name, whole=True)
        check_number(sharpness, 0, 100, option="sharpness", lane=name)
        self._dense = _dense_ancestor(base_lane, name)
        self._top, self._sharpness = top, np.float32(sharpness)

    def fit(self, taxonomy: Taxonomy) -> None:
        """Take over the base lane's embeddings; it is fitted before."""
        self._tiles = self._dense.tiles

    def _row(self, scores: Float32) -> Float32:
        z = zscore(scores)
        best = top_rows(z[None], self._top)[0]
        weights = np.exp(self._sharpness * (z[best] - z[best[0]]))
        centre = (weights / weights.sum()) @ self._tiles.take(best)
        centre = (centre / max(float(np.linalg.norm(centre)), 1e-12)).astype(np.float32)
        cosines: Float32 = self._tiles.dot(centre[None])[0]
        return cosines
