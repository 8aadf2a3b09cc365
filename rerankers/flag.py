"""Rerankers of the BGE family through FlagEmbedding, as its authors run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ranker.core.errors import RankerError, ResourceError, missing_extra
from ranker.core.options import number, one_of
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32
from ranker.core.views import view_texts
from rerankers.classifier import UNREADABLE, Source
from rerankers.pairs import VIEWS

PRECISIONS = ("float32", "float16")


class FlagColumn:
    """The logit of `FlagReranker` (bge-reranker-base, bge-reranker-v2-m3).

    The weights give the same score through family `encoder`, which tokenises the taxonomy once; this one is the
    authors' own code, to compare with.

    Parameters
    ----------
    name : str
        Feature prefix.
    model : str
        See `ranker.core.models.resolve_model`.
    view : {"label", "label_description"}
        What is read of a skill.
    max_length : int
        Tokens of a pair; a query takes at most three quarters of them.
    precision : {"float32", "float16"}
        float16 on a GPU only; FlagEmbedding runs in float32 on the processor whatever is asked.
    batch_size : int
        Pairs of a batch.

    Raises
    ------
    ArgumentError, ResourceError, PrerequisiteError
        A value that is not allowed; a model that is not there; FlagEmbedding not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        model: str,
        view: str = "label_description",
        max_length: int = 192,
        precision: str = "float32",
        batch_size: int = 128,
    ) -> None:
        one_of(view, VIEWS, "view")
        one_of(precision, PRECISIONS, "precision")
        number(max_length, 8, 8192, "max_length", whole=True)
        number(batch_size, 1, 2**16, "batch_size", whole=True)
        try:
            import FlagEmbedding  # noqa: F401  before the lanes embed a taxonomy
        except ImportError as error:
            raise missing_extra("FlagEmbedding", "flag") from error
        self.name, self.view, self.precision = name, view, precision
        self.max_length, self.batch_size = max_length, batch_size
        self.source = Source(model)
        self._texts: list[str] = []
        self._reranker: Any = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Take the skills' texts and load the network."""
        self._texts = view_texts(taxonomy, self.view)
        if self._reranker is not None:
            return
        import torch
        from FlagEmbedding import FlagReranker

        try:
            self._reranker = FlagReranker(
                str(self.source.folder),
                use_fp16=self.precision == "float16",
                devices=["cuda:0" if torch.cuda.is_available() else "cpu"],
                batch_size=self.batch_size,
                max_length=self.max_length,
            )
        except UNREADABLE as error:
            raise ResourceError(f"model {self.source.model}: FlagEmbedding cannot read it ({error})") from error

    def score(self, queries: Sequence[str], pool: Int32) -> Float32:
        """Return float32 of the pool's shape.

        A call holds the pairs of one query, in the order of their rows: batches depend on nothing else.
        """
        if self._reranker is None:
            raise RankerError(f"column {self.name}: asked for scores before fit(taxonomy)")
        scores = np.empty(pool.shape, dtype=np.float32)
        for i, (query, rows) in enumerate(zip(queries, pool, strict=True)):
            order = np.argsort(rows, kind="stable")
            pairs = [(query, self._texts[row]) for row in rows[order]]
            scores[i, order] = self._reranker.compute_score(pairs, normalize=False) if pairs else ()
        return scores

    def backbones(self) -> dict[str, int]:
        """Return the model's parameters."""
        return self.source.backbones()
