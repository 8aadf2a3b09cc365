"""Context lane: each word of the query is compared with each skill, and the best-matching words carry the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lanes.encoder import EncoderPool
from lanes.threads import one_blas_thread
from lanes.views import TEXT_VIEWS, check, check_number, unfitted, view_identity, view_texts
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32


class ContextLane:
    """ConTeXT-match scoring (Decorte et al. 2025, IEEE Access 13): token-level attention over the query.

    The weight of a token for a skill is the softmax over tokens of their dot product (divided by `temperature`); the
    score is the weighted sum of the tokens' cosines to the skill.

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
    temperature : float
        Above 1 softer, below 1 sharper.
    max_length : int, optional
        Tokens after which a text is cut.

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
        temperature: float = 1.0,
        max_length: int | None = None,
    ) -> None:
        check(view, TEXT_VIEWS, option="view", lane=name)
        check_number(temperature, 1e-3, 1e3, option="temperature", lane=name)
        if max_length is not None:
            check_number(max_length, 3, 100_000, option="max_length", lane=name, whole=True)
        self.name = name
        self.encoder = encoders.get(model)
        self._view, self._temperature, self._max_length = view, np.float32(temperature), max_length
        self._vectors: Float32 | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Embed the taxonomy as the model gives it, from the cache where it is there."""
        one_blas_thread()
        key: dict[str, Any] = {
            "model": self.encoder.revision,
            "view": view_identity(self._view),
            "prompt": "",
            "max_length": self._max_length,
            "fingerprint": taxonomy.fingerprint,
        }
        self._vectors = self.encoder.documents(
            lambda: view_texts(taxonomy, self._view), key=key, max_length=self._max_length, normalise=False
        )
        self._lengths = np.maximum(np.linalg.norm(self._vectors, axis=1), np.float32(1e-12))

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]."""
        if self._vectors is None:
            raise unfitted(self.name)
        result = np.empty((len(queries), len(self._vectors)), dtype=np.float32)
        for row, query in enumerate(queries):
            states = self.encoder.query_tokens(query, max_length=self._max_length)
            dots = states @ self._vectors.T
            weights = dots / self._temperature
            weights -= weights.max(axis=0)
            np.exp(weights, out=weights)
            dots /= np.maximum(np.linalg.norm(states, axis=1), np.float32(1e-12))[:, None]
            dots *= weights
            result[row] = dots.sum(axis=0) / weights.sum(axis=0) / self._lengths
        return result

    def backbones(self) -> Mapping[str, int]:
        """Return the encoder's parameter count by its identity."""
        return {self.encoder.identity: self.encoder.parameters}
