"""The contract every lane keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32


@runtime_checkable
class Lane(Protocol):
    """A retrieval lane.

    Attributes
    ----------
    name : str
        Feature prefix, from the config.
    """

    name: str

    def fit(self, taxonomy: Taxonomy) -> None:
        """Index the taxonomy, from the cache where it is there."""

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]: higher is better, finite, each row independent of the others."""

    def backbones(self) -> Mapping[str, int]:
        """Return the parameter count of each neural model the lane runs, by an identity shared between lanes."""


@runtime_checkable
class DerivedLane(Lane, Protocol):
    """A lane computed from another lane's scores."""

    base: str

    def smooth(self, scores: Float32) -> Float32:
        """Return this lane's scores, given those of the lane named `base`, same shape."""
