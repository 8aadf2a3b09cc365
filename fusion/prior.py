"""How often a skill, its groups and its neighbours were relevant in the pools of training queries."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion.padded import Padded
from ranker.core.artifacts import atomic_path
from ranker.core.errors import InputError, ResourceError
from ranker.core.types import Float32

SMOOTHING = {"relevant": (1.0, 4.0), "high": (0.5, 8.0), "gain": (1.0, 4.0)}
"""Pseudo-counts: (successes, trials) added before dividing."""

NEIGHBOUR_MASS = 10
"""How many skills the neighbourhood, whose weights sum to 1, counts for beside the pseudo-counts."""


def outcomes(grades: NDArray[np.int8]) -> Float32:
    """Return float32[..., 4] per judgement: judged, grade >= 2, grade >= 3, gain / 15; zeros where unjudged (-1)."""
    judged = grades >= 0
    gain = (np.exp2(np.maximum(grades, 0).astype(np.float32)) - 1) / 15
    return np.stack([judged, grades >= 2, grades >= 3, gain], axis=-1).astype(np.float32)


@dataclass(frozen=True)
class SkillPrior:
    """Smoothed relevance counts over training pools.

    Attributes
    ----------
    counts : float32[n_skills, 4]
        Judged, grade >= 2, grade >= 3 and gain / 15, summed over the pools of the training queries.
    levels : tuple of Padded[n_skills, n_groups]
        Group membership, coarse to fine; carries the counts to skills that no training query saw.
    graph : Padded[n_skills, n_skills] or None
        Row-normalised similarity graph; carries them to neighbours.
    """

    counts: Float32
    levels: tuple[Padded, ...]
    graph: Padded | None = None

    @classmethod
    def fit(
        cls,
        pool: NDArray[np.integer],
        grades: NDArray[np.int8],
        levels: Sequence[Padded],
        graph: Padded | None = None,
    ) -> SkillPrior:
        """Count over the pools of training queries.

        Parameters
        ----------
        pool : int[n_queries, k]
            Rows of the skills.
        grades : int8[n_queries, k]
            Their grades, -1 where unjudged.
        levels, graph
            As in the attributes; they fix the number of skills.
        """
        n = len(levels[0])
        made = outcomes(grades).reshape(-1, 4)
        rows = pool.ravel()
        counts = np.stack([np.bincount(rows, weights=made[:, i], minlength=n) for i in range(4)], axis=1)
        return cls(counts.astype(np.float32), tuple(levels), graph)

    def columns(self, pool: NDArray[np.integer], own: NDArray[np.int8] | None = None) -> list[tuple[str, Float32]]:
        """Return the prior's features at one query's pool.

        Parameters
        ----------
        pool : int[k]
            Rows of the skills.
        own : int8[k], optional
            This query's own grades where it was counted: taken out of every count before it is used.

        Returns
        -------
        list of (str, float32[k])
            Per skill, group level and neighbourhood: smoothed rates of grade >= 2, grade >= 3 and gain, and log count.
        """
        if own is None:
            names, values = self._everywhere
            return list(zip(names, values.take(pool, axis=0).T, strict=True))
        counts = self.counts.copy()
        lost = np.minimum(outcomes(own), counts[pool])
        counts[pool] -= lost
        totals = [
            total - membership.rows(pool).spread(lost)
            for membership, total in zip(self.levels, self._totals, strict=True)
        ]
        return self._at(counts, totals, pool)

    @cached_property
    def _totals(self) -> list[Float32]:
        """Counts of every group, level by level."""
        return [membership.spread(self.counts) for membership in self.levels]

    @cached_property
    def _everywhere(self) -> tuple[list[str], Float32]:
        """Names, and float32[n_skills, n_names], of every skill's features where nothing has to be left out."""
        made = self._at(self.counts, self._totals, np.arange(len(self.counts)))
        return [name for name, _ in made], np.stack([values for _, values in made], axis=1)

    def _at(
        self, counts: Float32, totals: Sequence[Float32], pool: NDArray[np.integer]
    ) -> list[tuple[str, Float32]]:
        made = _rates("skill", counts[pool])
        for level, (membership, total) in enumerate(zip(self.levels, totals, strict=True)):
            part = membership.rows(pool)
            # What the skill itself gave to its groups is already in its own rate.
            others = np.maximum(part.dot(total) - part.squares()[:, None] * counts[pool], 0)
            made += _rates(f"group{level}", others)
        if self.graph is not None:
            made += _rates("near", self.graph.rows(pool).dot(counts) * np.float32(NEIGHBOUR_MASS))
        return made

    def save(self, path: Path) -> None:
        """Write counts and graph as npz; groups come from the taxonomy. The same prior gives the same bytes."""
        arrays: dict[str, Any] = {"counts": self.counts}
        if self.graph is not None:
            arrays |= {"graph_index": self.graph.index, "graph_weight": self.graph.weight.astype(np.float16)}
        with atomic_path(path) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **arrays)

    @classmethod
    def load(
        cls, path: Path, levels: Sequence[Padded], graph: Padded | None = None
    ) -> SkillPrior:
        """Read the counts that `save` wrote.

        Raises
        ------
        ResourceError
            If the file is not there.
        InputError
            If it is damaged or counts another number of skills.
        """
        counts = _arrays(path).get("counts")
        if counts is None or counts.shape != (len(levels[0]), 4):
            found = None if counts is None else counts.shape
            raise InputError(f"{path} holds counts of shape {found}, expected {(len(levels[0]), 4)}; train it anew")
        return cls(counts.astype(np.float32), tuple(levels), graph)

    @staticmethod
    def read_graph(path: Path) -> Padded | None:
        """Return the similarity graph stored with a prior, None where there is none."""
        arrays = _arrays(path)
        if "graph_index" not in arrays:
            return None
        index, weight = arrays["graph_index"], arrays["graph_weight"].astype(np.float32)
        if index.shape != weight.shape or index.max(initial=0) >= len(index):
            raise InputError(f"{path} holds a similarity graph that does not fit; train it anew")
        return Padded(index, weight, len(index)).normalised()


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise ResourceError(f"no {path.name} in {path.parent}; run python -m train.fusion --out {path.parent}")
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is damaged ({error}); train it anew") from error


def _rates(name: str, counts: Float32) -> list[tuple[str, Float32]]:
    seen = counts[:, 0]
    made = [
        (f"prior.{name}.{what}", ((counts[:, i] + up) / (seen + down)).astype(np.float32))
        for i, (what, (up, down)) in enumerate(SMOOTHING.items(), start=1)
    ]
    return [*made, (f"prior.{name}.seen", np.log1p(seen).astype(np.float32))]
