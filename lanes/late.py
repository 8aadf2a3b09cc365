"""Late-interaction lane: MaxSim between the tokens of a query and of a skill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lanes.colbert import Colbert, read_settings
from lanes.encoder import PRECISIONS, Encoder, EncoderPool, unit
from lanes.maxsim import TokenIndex
from lanes.threads import one_blas_thread
from lanes.views import TEXT_VIEWS, check, check_number, unfitted, view_identity, view_texts
from ranker.core.models import resolve_model
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32


class LateLane:
    """The sum, over the query's tokens, of their best cosine to a token of the skill (Khattab and Zaharia 2020).

    A ColBERT checkpoint (PyLate's layout or the first authors') is read with its own prefixes, lengths and query
    expansion; any other sentence encoder gives the states of its tokens.

    Parameters
    ----------
    name : str
        Feature prefix.
    encoders : EncoderPool
        Where lanes share their models.
    model : str
        Path, "package:NAME" or hub id.
    view : str
        One of `lanes.views.TEXT_VIEWS`.
    candidates : int, optional
        Score only so many skills exactly, found through a faiss index; for taxonomies much larger than ESCO.
    precision : {"float32", "float16", "bfloat16"}
        Of the model's weights.

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
        candidates: int | None = None,
        precision: str = "float32",
    ) -> None:
        check(view, TEXT_VIEWS, option="view", lane=name)
        check(precision, PRECISIONS, option="precision", lane=name)
        if candidates is not None:
            check_number(candidates, 1, 1_000_000, option="candidates", lane=name, whole=True)
        self.name = name
        self.encoder: Encoder | Colbert
        if read_settings(resolve_model(model)) is None:
            self.encoder = encoders.get(model, precision)
        else:
            self.encoder = encoders.share(Colbert, model, precision)
        self._view, self._candidates = view, candidates
        self._index: TokenIndex | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Embed the tokens of all skills, from the cache where they are there."""
        one_blas_thread()
        key: dict[str, Any] = {
            "model": self.encoder.revision,
            "view": view_identity(self._view),
            "fingerprint": taxonomy.fingerprint,
        }

        def rows() -> Iterable[Float32]:
            texts = view_texts(taxonomy, self._view)
            if isinstance(self.encoder, Colbert):
                return self.encoder.documents(texts)
            return map(self.encoder.query_tokens, texts)

        self._index = TokenIndex(key, rows, candidates=self._candidates)

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]; one query at a time, so that no other can change it."""
        if self._index is None:
            raise unfitted(self.name)
        result = np.empty((len(queries), len(self._index)), dtype=np.float32)
        for row, query in enumerate(queries):
            if isinstance(self.encoder, Colbert):
                tokens = self.encoder.query(query)
            else:
                tokens = unit(self.encoder.query_tokens(query))
            result[row] = self._index.score(tokens)
        return result

    def backbones(self) -> Mapping[str, int]:
        """Return the encoder's parameter count by its identity."""
        return {self.encoder.identity: self.encoder.parameters}
