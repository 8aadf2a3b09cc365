"""ColBERT checkpoints, as PyLate and the first authors' own code write them: how their texts become token vectors."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lanes.encoder import UNREADABLE, torch_device, torch_dtype, unit
from ranker.core.errors import RankerError, ResourceError
from ranker.core.models import parameter_count, resolve_model, revision
from ranker.core.types import Float32

_BATCH = 64


@dataclass(frozen=True)
class Settings:
    """What a checkpoint says of its texts.

    Attributes
    ----------
    query_prefix, document_prefix : str
        The token after the first one, which says what the text is; "" for none.
    query_length, document_length : int
        Tokens after which a text is cut, prefix and special tokens included.
    expand, attend : bool
        Whether a query is filled up to its length with mask tokens, and whether its words may look at those.
    skip : tuple of str
        Tokens of a skill that are left out.
    """

    query_prefix: str = "[Q] "
    document_prefix: str = "[D] "
    query_length: int = 32
    document_length: int = 180
    expand: bool = True
    attend: bool = False
    skip: tuple[str, ...] = tuple(string.punctuation)


def _json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return value


def read_settings(folder: Path) -> Settings | None:
    """Return a checkpoint's settings, None where the folder holds no ColBERT."""
    pylate, stanford = _json(folder / "config_sentence_transformers.json"), _json(folder / "artifact.metadata")
    if "query_prefix" in pylate:
        names = {"do_query_expansion": "expand", "attend_to_expansion_tokens": "attend", "skiplist_words": "skip"}
        given = {names.get(key, key): value for key, value in pylate.items() if value is not None}
        known = {key: value for key, value in given.items() if key in Settings.__annotations__}
        return Settings(**{**known, "skip": tuple(known.get("skip", Settings.skip))})
    if stanford or "HF_ColBERT" in _json(folder / "config.json").get("architectures", ()):
        return Settings(
            query_prefix=stanford.get("query_token_id") or "[unused0]",
            document_prefix=stanford.get("doc_token_id") or "[unused1]",
            query_length=stanford.get("query_maxlen") or 32,
            document_length=stanford.get("doc_maxlen") or 180,
            attend=bool(stanford.get("attend_to_mask_tokens")),
            skip=Settings.skip if stanford.get("mask_punctuation", True) else (),
        )
    return None


_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU")


class _Head:
    """A layer over the token states: activation(W x + b), plus x or R x where the checkpoint has a residual."""

    def __init__(self, weights: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self.activation = str(config.get("activation_function", "Identity")).rsplit(".", 1)[-1]
        if self.activation not in _ACTIVATIONS:
            raise ValueError(f"activation {self.activation} is none of {', '.join(_ACTIVATIONS)}")
        self.weights = dict(weights)
        self.residual = bool(config.get("use_residual"))

    def to(self, device: str, dtype: Any) -> _Head:
        """Move the weights, and return the layer."""
        self.weights = {name: tensor.to(device, dtype) for name, tensor in self.weights.items()}
        return self

    def __call__(self, x: Any) -> Any:
        """Return the states after the layer."""
        from torch import nn

        y = nn.functional.linear(x, self.weights["linear.weight"], self.weights.get("linear.bias"))
        y = getattr(nn, self.activation)()(y)
        if not self.residual:
            return y
        rest = self.weights.get("residual.weight")
        return y + (x if rest is None else nn.functional.linear(x, rest))


class Colbert:
    """A ColBERT model. Loading happens at the first text that no cache answers.

    Parameters
    ----------
    model : str
        See `ranker.core.models.resolve_model`.
    precision : {"float32", "float16", "bfloat16"}

    Raises
    ------
    ResourceError
        If the model is not there, or is no ColBERT.
    """

    def __init__(self, model: str, precision: str) -> None:
        self.model, self.precision = model, precision
        self.folder = resolve_model(model)
        settings = read_settings(self.folder)
        if settings is None:
            raise ResourceError(f"model {model}: {self.folder} holds no ColBERT")
        self.settings = settings
        self.revision = revision(self.folder) + ("" if precision == "float32" else f"-{precision}")
        self.identity = f"{model}@{self.revision}"

    @cached_property
    def parameters(self) -> int:
        """Return the number of parameters, heads included, read from the files where they state it."""
        return parameter_count(self.folder) or 0

    @cached_property
    def _tokenizer(self) -> Any:
        import transformers

        loader: Any = transformers.AutoTokenizer
        try:
            tokenizer = loader.from_pretrained(str(self.folder))
        except UNREADABLE as error:
            raise ResourceError(f"model {self.model}: no tokeniser that transformers reads ({error})") from error
        prefixes = [p for p in (self.settings.query_prefix, self.settings.document_prefix) if p]
        missing = [p for p in prefixes if p not in tokenizer.get_vocab()]
        if missing or (self.settings.expand and tokenizer.mask_token_id is None):
            what = f"token {', '.join(map(repr, missing))}" if missing else "mask token"
            raise ResourceError(f"model {self.model}: its tokeniser has no {what}; fetch the checkpoint again")
        return tokenizer

    @cached_property
    def _networks(self) -> tuple[Any, list[_Head]]:
        """Return the transformer, and the linear layers over its states."""
        import torch
        from transformers import AutoModel

        try:
            dtype = torch_dtype(self.precision)
            network = AutoModel.from_pretrained(str(self.folder), **dtype)
            heads = self._heads()
        except UNREADABLE as error:
            raise ResourceError(f"model {self.model}: transformers cannot read it ({error})") from error
        if len(self._tokenizer) > network.config.vocab_size:
            raise ResourceError(f"model {self.model}: its tokeniser knows more tokens than the network has vectors for")
        kind = getattr(torch, self.precision)
        return network.to(torch_device()).eval(), [head.to(torch_device(), kind) for head in heads]

    def _heads(self) -> list[_Head]:
        from safetensors.torch import load_file

        modules = json.loads(path.read_text()) if (path := self.folder / "modules.json").is_file() else []
        if not modules:
            return [_Head(self._stanford_weight(), {})]
        folders = [self.folder / module["path"] for module in modules if module["type"].rsplit(".", 1)[-1] == "Dense"]
        return [_Head(load_file(at / "model.safetensors"), _json(at / "config.json")) for at in folders]

    def _stanford_weight(self) -> dict[str, Any]:
        from safetensors.torch import load_file

        if (file := self.folder / "model.safetensors").is_file():
            weights = load_file(file)
        else:
            import torch

            weights = torch.load(self.folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
        return {"linear.weight": weights["linear.weight"]}

    def _ids(self, text: str, *, query: bool) -> list[int]:
        prefix = self.settings.query_prefix if query else self.settings.document_prefix
        limit = self.settings.query_length if query else self.settings.document_length
        ids: list[int] = self._tokenizer(text, truncation=True, max_length=limit - bool(prefix))["input_ids"]
        return [ids[0], self._tokenizer.get_vocab()[prefix], *ids[1:]] if prefix else ids

    def _run(self, ids: Any, mask: Any) -> Float32:
        """Return float32[n_texts, n_tokens, width], rows of length 1."""
        import torch

        network, heads = self._networks
        device = torch_device()
        with torch.inference_mode():
            states = network(
                input_ids=torch.tensor(ids, device=device), attention_mask=torch.tensor(mask, device=device)
            ).last_hidden_state
            for head in heads:
                states = head(states)
        vectors: Float32 = unit(states.float().cpu().numpy())
        if not np.isfinite(vectors).all():
            raise RankerError(f"model {self.model}: token vectors that are not finite; its weights are damaged")
        return vectors

    def query(self, text: str) -> Float32:
        """Return float32[n_tokens, width], rows of length 1; the mask tokens of the expansion are among them."""
        ids = self._ids(text, query=True)
        blanks = self.settings.query_length - len(ids) if self.settings.expand else 0
        mask = [1] * len(ids) + [int(self.settings.attend)] * blanks
        vectors: Float32 = self._run([ids + [self._tokenizer.mask_token_id] * blanks], [mask])[0]
        return vectors

    def documents(self, texts: Sequence[str]) -> Iterator[Float32]:
        """Yield float32[n_tokens, width] of each text, rows of length 1, without the tokens that are skipped."""
        vocabulary = self._tokenizer.get_vocab()
        skip = [vocabulary[word] for word in self.settings.skip if word in vocabulary]
        for start in range(0, len(texts), _BATCH):
            ids = [self._ids(text, query=False) for text in texts[start : start + _BATCH]]
            longest = max(map(len, ids))
            padded = [row + [self._tokenizer.pad_token_id or 0] * (longest - len(row)) for row in ids]
            mask = [[1] * len(row) + [0] * (longest - len(row)) for row in ids]
            for row, vectors in zip(ids, self._run(padded, mask), strict=True):
                yield vectors[: len(row)][~np.isin(row, skip)]
