"""The contract every column keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32


@runtime_checkable
class Column(Protocol):
    """A reranker whose score of the pool's best skills becomes a feature.

    Attributes
    ----------
    name : str
        Feature prefix, from the config.
    """

    name: str

    def fit(self, taxonomy: Taxonomy) -> None:
        """Prepare the document side, from the cache where it is there."""

    def score(self, queries: Sequence[str], pool: Int32) -> Float32:
        """Return float32 of the shape of `pool` (taxonomy rows): higher is better, finite, each row independent."""

    def backbones(self) -> Mapping[str, int]:
        """Return the parameter count of each neural model the column runs, by an identity shared between stages."""
