"""PageRank lane: a random walk over the taxonomy's graph that starts again and again at the query's best skills."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy import sparse

from lanes.base import Lane
from lanes.graph import Derived, parents
from lanes.views import check, check_number, unfitted
from ranker.core.errors import ResourceError
from ranker.core.order import top_rows, zscore
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32

RELATIONS = ("group", "broader", "essential", "optional")
_ERROR = 1e-9  # to which the iteration shrinks the error it starts with


def edges(taxonomy: Taxonomy, relations: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of URIs and group codes that the relations join, without repeats.

    "group" joins a skill with its groups, and a group with the one around it; the others are the taxonomy's links:
    "broader" skills, and the occupations to which a skill is "essential" or "optional".

    Raises
    ------
    ResourceError
        If the taxonomy has none of a relation's links.
    """
    found: dict[tuple[str, str], None] = {}
    if "group" in relations:
        for uri, codes in zip(taxonomy.uri, taxonomy.groups, strict=True):
            for code in codes:
                chain = [uri, *parents(code)]
                found.update(dict.fromkeys(pairwise(chain)))
    pairs = ((uri, link) for uri, own in zip(taxonomy.uri, taxonomy.links, strict=True) for link in own)
    links = [(uri, kind, other) for uri, (kind, other) in pairs if kind in relations]
    absent = sorted(set(relations) - {"group"} - {kind for _, kind, _ in links})
    if absent:
        raise ResourceError(
            f"the taxonomy from {taxonomy.source or 'this source'} has no {' and no '.join(absent)} relations; build "
            "it from a folder or zip of official CSVs with broaderRelationsSkillPillar and occupationSkillRelations"
        )
    found.update(dict.fromkeys((uri, other) for uri, _, other in links))
    return list(found)


def transitions(taxonomy: Taxonomy, relations: Sequence[str]) -> sparse.csr_array:
    """Return the walk's matrix over skills (first, in their order) and whatever else the relations join.

    Returns
    -------
    scipy.sparse.csr_array
        float64[n_nodes, n_nodes]: [to, from], the probability of a step; every edge can be walked in both directions.
    """
    pairs = edges(taxonomy, relations)
    node = dict(taxonomy.index)
    for pair in pairs:
        for name in pair:
            node.setdefault(name, len(node))
    ends = np.asarray([(node[a], node[b]) for a, b in pairs], dtype=np.int32).reshape(-1, 2)
    ends = ends[ends[:, 0] != ends[:, 1]]
    to, fro = np.concatenate([ends, ends[:, ::-1]]).T
    graph = sparse.coo_array((np.ones(len(to)), (to, fro)), shape=(len(node), len(node))).tocsr()
    graph.data[:] = 1.0  # an edge that two relations give in opposite directions is one edge
    degree = np.bincount(graph.indices, minlength=len(node))
    graph.data /= degree[graph.indices]
    return graph


def pagerank(walk: sparse.csr_array, start: np.ndarray, damping: float) -> np.ndarray:
    """Return the personalised PageRank, float64[n_nodes], sums to 1, where stuck nodes jump to the start.

    The solution of x = walk x + start, scaled: power iteration with Chebyshev weights (Golub and Varga 1961). Edges are
    walked in both directions, so the eigenvalues are real and lie between -damping and damping; the error then shrinks
    by damping / (1 + sqrt(1 - damping^2)) per step, 0.56 instead of 0.85.

    Parameters
    ----------
    walk : scipy.sparse.csr_array
        float64[n_nodes, n_nodes]: `damping` times the matrix of `transitions`.
    start : numpy.ndarray
        float64[n_nodes], sums to 1.
    damping : float
        Probability of a further step.
    """
    if damping == 0:
        return start
    rate = damping / (1 + math.sqrt(1 - damping**2))
    before, x, weight = start, walk @ start + start, 2.0
    for _ in range(math.ceil(math.log(_ERROR) / math.log(rate))):
        weight = 1 / (1 - damping**2 * weight / 4)
        step = walk @ x
        step += start
        step -= before
        step *= weight
        step += before
        before, x = x, step
    ranks: np.ndarray = x / x.sum()
    return ranks


class PageRankLane(Derived):
    """Personalised PageRank over the taxonomy's graph, seeded by the base lane's best skills.

    A seed's share of the start is proportional to exp(sharpness * (z-score - the best z-score)).

    Parameters
    ----------
    name : str
        Feature prefix.
    base_lane : Lane
        Whose best skills are the seeds.
    top : int
        How many.
    damping : float
        Probability of a further step of the walk, 0 to 0.99: the mean length of a walk is damping / (1 - damping).
    sharpness : float
        0 starts at all seeds alike.
    relations : sequence of str
        Which of `RELATIONS` are edges. A relation that is named must be there.

    Raises
    ------
    ArgumentError
        For a value that is not allowed.
    """

    def __init__(
        self,
        name: str,
        *,
        base_lane: Lane,
        top: int = 64,
        damping: float = 0.85,
        sharpness: float = 1.0,
        relations: Sequence[str] = ("group",),
    ) -> None:
        super().__init__(name, base_lane)
        check_number(top, 1, 10_000, option="top", lane=name, whole=True)
        check_number(damping, 0, 0.99, option="damping", lane=name)
        check_number(sharpness, 0, 100, option="sharpness", lane=name)
        for relation in relations:
            check(relation, RELATIONS, option="relations", lane=name)
        self._top, self._damping, self._sharpness = top, damping, sharpness
        self._relations = tuple(relations)
        self._walk: sparse.csr_array | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Build the graph; nothing to cache."""
        self._walk = transitions(taxonomy, self._relations) * self._damping

    def _row(self, scores: Float32) -> Float32:
        if self._walk is None:
            raise unfitted(self.name)
        z = zscore(scores).astype(np.float64)
        seeds = top_rows(scores[None], self._top)[0]
        start = np.zeros(self._walk.shape[0])
        start[seeds] = np.exp(self._sharpness * (z[seeds] - z[seeds[0]]))
        start /= start.sum()
        return pagerank(self._walk, start, self._damping)[: len(scores)].astype(np.float32)
