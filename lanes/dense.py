"""Dense lane: cosine of a query's and a skill's sentence embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from lanes.encoder import PRECISIONS, EncoderPool, unit
from lanes.threads import one_blas_thread
from lanes.tiles import Tiles
from lanes.views import TEXT_VIEWS, check, check_number, unfitted, view_identity, view_texts
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32

VIEWS = (*TEXT_VIEWS, "alt_mean", "alt_max")


class DenseLane:
    """A sentence encoder over one view of the skills.

    Parameters
    ----------
    name : str
        Feature prefix.
    encoders : EncoderPool
        Where lanes share their models.
    model : str
        Path, "package:NAME" or hub id, see `ranker.core.models.resolve_model`.
    view : str
        One of `ranker.core.views.TEXT_VIEWS`: one text per skill; "alt_mean": the mean of the embeddings of label and
        alt labels; "alt_max": the best of their scores (seven times the work per query).
    query_prompt, document_prompt : str
        Put before the text: "query: " for E5, an instruction for Qwen3-Embedding.
    query_branch, document_branch : str, optional
        For models whose last layers differ between kinds of text, such as JobBERT-v2's "anchor" and "positive".
    max_length : int, optional
        Tokens after which a text is cut; the model's own limit by default.
    precision : {"float32", "float16", "bfloat16"}
        Of the model's weights; the halves are for large models on a GPU.
    stored : {"float16", "float32"}
        Of the skills' embeddings. float16 is half the size, and moves a cosine by less than 0.0005.

    Raises
    ------
    ArgumentError
        For a value that is not allowed.
    ResourceError
        If the model is not there.
    """

    def __init__(
        self,
        name: str,
        *,
        encoders: EncoderPool,
        model: str,
        view: str = "label",
        query_prompt: str = "",
        document_prompt: str = "",
        query_branch: str | None = None,
        document_branch: str | None = None,
        max_length: int | None = None,
        precision: str = "float32",
        stored: str = "float16",
    ) -> None:
        check(view, VIEWS, option="view", lane=name)
        check(precision, PRECISIONS, option="precision", lane=name)
        check(stored, ("float16", "float32"), option="stored", lane=name)
        if max_length is not None:
            check_number(max_length, 3, 100_000, option="max_length", lane=name, whole=True)
        self.name = name
        self.encoder = encoders.get(model, precision)
        for option, branch in (("query_branch", query_branch), ("document_branch", document_branch)):
            self.encoder.check_branch(branch, f"lane {name}: {option}")
        self._query_branch, self._document_branch = query_branch, document_branch
        self._stored = stored
        self._view = view
        self._query_prompt = query_prompt
        self._document_prompt = document_prompt
        self._max_length = max_length
        self._tiles: Tiles | None = None
        self._names: Tiles | None = None
        self._starts: np.ndarray | None = None

    @property
    def vectors(self) -> Float32:
        """Return float32[n_skills, width], rows of length 1; for "alt_max" the labels' own."""
        return self.tiles.matrix()

    @property
    def tiles(self) -> Tiles:
        """Return the same as `vectors`, laid out for products."""
        if self._tiles is None:
            raise unfitted(self.name)
        return self._tiles

    def key(self, taxonomy: Taxonomy) -> dict[str, Any]:
        """Return everything the embeddings depend on."""
        key = {
            "model": self.encoder.revision,
            "view": view_identity(self._view),
            "prompt": self._document_prompt,
            "max_length": self._max_length,
            "fingerprint": taxonomy.fingerprint,
            "stored": self._stored,
        }
        return key if self._document_branch is None else {**key, "branch": self._document_branch}

    def fit(self, taxonomy: Taxonomy) -> None:
        """Embed the taxonomy, from the cache where it is there."""
        one_blas_thread()
        names = [(label, *alts) for label, alts in zip(taxonomy.label, taxonomy.alt_labels, strict=True)]
        starts = np.cumsum([0, *map(len, names)])[:-1]

        def texts() -> list[str]:
            several = self._view in {"alt_mean", "alt_max"}
            plain = chain.from_iterable(names) if several else view_texts(taxonomy, self._view)
            return [self._document_prompt + text for text in plain]

        def mean(rows: Float32) -> Float32:
            return unit(np.add.reduceat(rows, starts))

        reduce = mean if self._view == "alt_mean" else None
        self._starts = starts if self._view == "alt_max" else None
        vectors = self.encoder.documents(
            texts,
            key=self.key(taxonomy),
            max_length=self._max_length,
            reduce=reduce,
            branch=self._document_branch,
            exact=self._stored == "float32",
        )
        self._names = Tiles(vectors)
        self._tiles = self._names if self._starts is None else Tiles(vectors[self._starts])

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]: cosines. One matrix-vector product per query, whatever the batch."""
        if self._names is None:
            raise unfitted(self.name)
        result = np.empty((len(queries), len(self.tiles)), dtype=np.float32)
        for row, query in enumerate(queries):
            text = self._query_prompt + query
            vector = self.encoder.query(text, max_length=self._max_length, branch=self._query_branch)
            cosines = self._names.dot(vector[None])[0]
            result[row] = cosines if self._starts is None else np.maximum.reduceat(cosines, self._starts)
        return result

    def backbones(self) -> Mapping[str, int]:
        """Return the encoder's parameter count by its identity."""
        return {self.encoder.identity: self.encoder.parameters}
