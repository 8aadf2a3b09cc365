"""BGE-M3 through FlagEmbedding: one pass over a text gives a dense vector, term weights and token vectors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from lanes.encoder import PRECISIONS, UNREADABLE, EncoderPool, torch_device
from lanes.maxsim import TokenIndex
from lanes.sparse import Index, cached_index
from lanes.threads import one_blas_thread
from lanes.views import TEXT_VIEWS, check, check_number, unfitted, view_identity, view_texts
from ranker.core.artifacts import cached_array, sha256_file
from ranker.core.errors import RankerError, ResourceError, missing_extra
from ranker.core.models import parameter_count, resolve_model, revision
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32

PARTS = ("dense", "sparse", "colbert")
HEADS = ("colbert_linear.pt", "sparse_linear.pt")
_REMEMBERED = 64  # queries: a chunk goes through one lane before the next lane sees it


class M3:
    """A BGE-M3 model, which three lanes share. Loading happens at the first text that no cache answers.

    Parameters
    ----------
    model : str
        See `ranker.core.models.resolve_model`.
    precision : {"float32", "float16", "bfloat16"}

    Raises
    ------
    ResourceError
        If the model or one of its two heads is not there: FlagEmbedding would draw the heads at random instead.
    """

    def __init__(self, model: str, precision: str) -> None:
        self.model, self.precision = model, precision
        self.folder = resolve_model(model)
        missing = [name for name in HEADS if not (self.folder / name).is_file()]
        if missing:
            raise ResourceError(f"model {model}: no {' and no '.join(missing)} in {self.folder}; it is no BGE-M3")
        heads = [sha256_file(self.folder / name)[:8] for name in HEADS]
        self.revision = "-".join((revision(self.folder), *heads, precision))
        self.identity = f"{model}@{self.revision}"
        self._lock = threading.Lock()
        self._memo: OrderedDict[tuple[str, int], dict[str, Any]] = OrderedDict()

    @cached_property
    def _flag(self) -> Any:
        try:
            from FlagEmbedding import BGEM3FlagModel
        except ImportError as error:
            raise missing_extra("FlagEmbedding", "flag") from error
        half = {"use_fp16": self.precision == "float16"}
        if self.precision == "bfloat16":
            half["use_bf16"] = True
        try:
            return BGEM3FlagModel(str(self.folder), devices=[torch_device()], **half)
        except UNREADABLE as error:
            raise ResourceError(f"model {self.model}: FlagEmbedding cannot read it ({error})") from error

    @cached_property
    def parameters(self) -> int:
        """Return the number of parameters, heads included, read from the files and not loaded."""
        import torch

        heads = [torch.load(self.folder / name, map_location="cpu", weights_only=True) for name in HEADS]
        own = sum(int(tensor.numel()) for head in heads for tensor in head.values())
        return own + (parameter_count(self.folder) or 0)

    def encode(self, texts: Sequence[str], parts: Sequence[str], max_length: int) -> dict[str, Any]:
        """Return, per part: dense float32[n_texts, width]; sparse and colbert lists with an entry per text.

        A sparse entry maps token ids, as strings, to weights above 0; a colbert entry is float[n_tokens, width].
        """
        asked = {"dense": "return_dense", "sparse": "return_sparse", "colbert": "return_colbert_vecs"}
        found = self._flag.encode(
            list(texts),
            batch_size=max(2, min(64, len(texts))),  # a progress bar appears where the batch is no larger than 1
            max_length=max_length,
            **{option: part in parts for part, option in asked.items()},
        )
        names = {"dense": "dense_vecs", "sparse": "lexical_weights", "colbert": "colbert_vecs"}
        value = {part: found[names[part]] for part in parts}
        if "dense" in value:
            value["dense"] = np.asarray(value["dense"], dtype=np.float32)
            if not np.isfinite(value["dense"]).all():
                raise RankerError(f"model {self.model}: embeddings that are not finite; its weights are damaged")
        return value

    def query(self, text: str, part: str, max_length: int) -> Any:
        """Return one part of one text, which is encoded alone, once for all parts."""
        with self._lock:  # lanes run side by side: one encodes a query, the others wait and take it
            found = self._memo.get((text, max_length))
            if found is None:
                found = {name: value[0] for name, value in self.encode([text], PARTS, max_length).items()}
                self._memo[text, max_length] = found
                while len(self._memo) > _REMEMBERED:
                    self._memo.popitem(last=False)
            return found[part]


class BgeM3Lane:
    """One of the three scores of BGE-M3 (Chen et al. 2024, section 3.2): cosine, term match, or token match.

    "sparse" is the sum over shared tokens of the products of their weights; "colbert" the mean over the query's tokens
    of the best cosine to a token of the skill.

    Parameters
    ----------
    name : str
        Feature prefix.
    encoders : EncoderPool
        Where lanes share their models.
    model : str
        Path or hub id.
    part : {"dense", "sparse", "colbert"}
        Which of the scores.
    view : str
        One of `lanes.views.TEXT_VIEWS`.
    max_length : int
        Tokens after which a text is cut.
    precision : {"float32", "float16", "bfloat16"}
        Of the model's weights.

    Raises
    ------
    ArgumentError
        For a value that is not allowed.
    ResourceError
        If the model is not there or is no BGE-M3.
    PrerequisiteError
        At the first text, if FlagEmbedding is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        encoders: EncoderPool,
        model: str,
        part: str = "dense",
        view: str = "label",
        max_length: int = 512,
        precision: str = "float32",
    ) -> None:
        check(part, PARTS, option="part", lane=name)
        check(view, TEXT_VIEWS, option="view", lane=name)
        check(precision, PRECISIONS, option="precision", lane=name)
        check_number(max_length, 3, 100_000, option="max_length", lane=name, whole=True)
        self.name = name
        self.encoder = encoders.share(M3, model, precision)
        self._part, self._view, self._max_length = part, view, max_length
        self._fitted: Float32 | Index | TokenIndex | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Encode all skills, from the cache where they are there."""
        one_blas_thread()
        key = {
            "model": self.encoder.revision,
            "part": self._part,
            "view": view_identity(self._view),
            "max_length": self._max_length,
            "fingerprint": taxonomy.fingerprint,
        }

        def encode() -> Any:
            texts = view_texts(taxonomy, self._view)
            return self.encoder.encode(texts, [self._part], self._max_length)[self._part]

        if self._part == "dense":
            vectors = cached_array("m3", key, lambda: encode().astype(np.float16))
            self._fitted = vectors.astype(np.float32)
        elif self._part == "colbert":
            self._fitted = TokenIndex(key, encode)
        else:
            self._fitted = cached_index({"family": "bge_m3", **key}, lambda: _term_weights(encode()))

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]; one query at a time, so that no other can change it."""
        if self._fitted is None:
            raise unfitted(self.name)
        rows = [self._row(self.encoder.query(query, self._part, self._max_length)) for query in queries]
        return np.stack(rows) if rows else np.empty((0, self._skills()), dtype=np.float32)

    def _skills(self) -> int:
        assert self._fitted is not None
        return self._fitted.weights.shape[1] if isinstance(self._fitted, Index) else len(self._fitted)

    def _row(self, query: Any) -> Float32:
        if isinstance(self._fitted, Index):
            known = self._fitted.vocabulary
            return self._fitted.scores({known[term]: float(w) for term, w in query.items() if term in known})
        if isinstance(self._fitted, TokenIndex):
            return self._fitted.score(np.asarray(query, dtype=np.float32)) / np.float32(len(query))
        assert self._fitted is not None
        cosines: Float32 = self._fitted @ query
        return cosines

    def backbones(self) -> Mapping[str, int]:
        """Return the model's parameter count by its identity."""
        return {self.encoder.identity: self.encoder.parameters}


def _term_weights(found: Sequence[Mapping[str, float]]) -> tuple[sparse.csr_array, list[str], np.ndarray]:
    """Return float64[n_skills, n_terms], the terms (token ids as strings), and a weight of 1 for each."""
    vocabulary: dict[str, int] = {}
    columns = [vocabulary.setdefault(term, len(vocabulary)) for weights in found for term in weights]
    data = np.asarray([float(weight) for weights in found for weight in weights.values()], dtype=np.float64)
    ends = np.cumsum([0, *map(len, found)])
    shape = (len(found), len(vocabulary))
    matrix = sparse.csr_array((data, np.asarray(columns, dtype=np.int32), ends.astype(np.int32)), shape=shape)
    return matrix, list(vocabulary), np.ones(len(vocabulary))
