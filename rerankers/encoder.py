"""Cross-encoders: query and skill read together by a sequence classifier (BERT, XLM-R, DeBERTa-v3 and their like)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ranker.core.errors import ArgumentError, RankerError
from ranker.core.options import number, one_of
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32
from rerankers.classifier import Source, TorchClassifier
from rerankers.onnx import OnnxClassifier, cached_export, is_exported, read_manifest
from rerankers.pairs import VIEWS, Documents, Template, batches

PRECISIONS = ("float32", "float16", "bfloat16", "int8")


class EncoderColumn:
    """The logit of a cross-encoder.

    Parameters
    ----------
    name : str
        Feature prefix.
    model : str
        See `ranker.core.models.resolve_model`; with one output, or two (irrelevant, relevant). Or a folder that
        `ranker.quantise` wrote, for `precision: int8`.
    adapter : str, optional
        Folder or hub id of a PEFT adapter for the model.
    view : {"label", "label_description"}
        What is read of a skill.
    max_length : int
        Tokens of a pair; the longer text is cut first.
    precision : {"float32", "float16", "bfloat16", "int8"}
        The first three run in torch, on the GPU where there is one; int8 runs in ONNX Runtime on the processor, and is
        exported and kept in the cache at first use.
    token_budget : int
        Tokens of a batch in torch, padding included.

    Raises
    ------
    ArgumentError, ResourceError
        A value that is not allowed; a model, adapter or tokeniser that is not there.
    """

    def __init__(
        self,
        name: str,
        *,
        model: str,
        adapter: str | None = None,
        view: str = "label_description",
        max_length: int = 192,
        precision: str = "float32",
        token_budget: int = 8192,
    ) -> None:
        one_of(view, VIEWS, "view")
        one_of(precision, PRECISIONS, "precision")
        number(max_length, 8, 8192, "max_length", whole=True)
        number(token_budget, 1, 2**24, "token_budget", whole=True)
        self.name, self.view, self.precision, self.token_budget = name, view, precision, token_budget
        self.source = Source(model, adapter)
        self._exported = is_exported(self.source.folder)
        if self._exported and (precision != "int8" or adapter is not None):
            raise ArgumentError(f"{model} is an int8 graph: it takes precision: int8 and no adapter")
        positions = self.source.config.get("max_position_embeddings", max_length)
        # RoBERTa's positions start after that of the padding.
        roberta = "roberta" in str(self.source.config.get("model_type"))
        limit = positions - self.source.config.get("pad_token_id", 1) - 1 if roberta else positions
        if max_length > limit:
            raise ArgumentError(f"max_length: {model} reads at most {limit} tokens, not {max_length}")
        self.tokenizer = self.source.tokenizer()
        self.template = Template.of_tokenizer(self.tokenizer, max_length)
        self._documents: Documents | None = None
        self._network: TorchClassifier | OnnxClassifier | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Tokenise the taxonomy and load the network."""
        self._documents = Documents.build(
            taxonomy, self.tokenizer, view=self.view, max_length=self.template.max_length
        )
        if self._network is None:
            self._network = self._load()

    def _load(self) -> TorchClassifier | OnnxClassifier:
        pad = int(self.tokenizer.pad_token_id or 0)
        if self.precision != "int8":
            return TorchClassifier(self.source, self.precision, pad)
        if self._exported:
            read_manifest(self.source.folder)
            return OnnxClassifier(self.source.folder, pad)
        return OnnxClassifier(cached_export(self.source), pad)

    def score(self, queries: Sequence[str], pool: Int32) -> Float32:
        """Return float32 of the pool's shape: the logit, or the difference of the two."""
        if self._documents is None or self._network is None:
            raise RankerError(f"column {self.name}: asked for scores before fit(taxonomy)")
        scores = np.empty(pool.shape, dtype=np.float32)
        for i, (query, rows) in enumerate(zip(queries, pool, strict=True)):
            ids = self.tokenizer(query, add_special_tokens=False, verbose=False)["input_ids"]
            pairs: list[Any] = [self.template.join(ids, self._documents[row]) for row in rows]
            sizes = np.array([len(tokens) for tokens, _ in pairs], dtype=np.intp)
            # An int8 run holds one pair, whatever the batch.
            whole = [np.arange(len(pairs))]
            for places in whole if self.precision == "int8" else batches(sizes, rows, self.token_budget):
                scores[i, places] = self._network([pairs[place] for place in places])
        return scores

    def backbones(self) -> dict[str, int]:
        """Return the parameters of model and adapter; an int8 graph states those it was made of."""
        if self._exported:
            return dict(read_manifest(self.source.folder)["backbones"])
        return self.source.backbones()
