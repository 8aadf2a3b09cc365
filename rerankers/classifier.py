"""Sequence classifiers through transformers: loading, adapters, and one batch at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
from packaging.version import Version
from safetensors import SafetensorError

from ranker.core.errors import ResourceError, missing_extra
from ranker.core.models import ADAPTER_FILES, parameter_count, resolve_model, revision
from ranker.core.types import Float32

UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, UnpicklingError, SafetensorError)
"""What transformers, PEFT and FlagEmbedding raise over files that are damaged or of another kind."""


class Source:
    """Which weights a column runs: a model, and an adapter on top of it.

    Parameters
    ----------
    model : str
        See `ranker.core.models.resolve_model`.
    adapter : str, optional
        Folder or hub id of a PEFT adapter.

    Raises
    ------
    ResourceError
        If one of them is not there.
    """

    def __init__(self, model: str, adapter: str | None = None) -> None:
        self.model, self.adapter = model, adapter
        self.folder = resolve_model(model)
        self.adapter_folder = None if adapter is None else resolve_model(adapter, holds=ADAPTER_FILES)
        self.config: dict[str, Any] = _read_config(self.folder)

    @property
    def folders(self) -> dict[str, Path]:
        """Return the folders by the names they are given in the config."""
        found = {self.model: self.folder}
        if self.adapter is not None and self.adapter_folder is not None:
            found[self.adapter] = self.adapter_folder
        return found

    @property
    def identities(self) -> list[str]:
        """Return names that two stages share only if they run the same weights: of the model, then of the adapter."""
        return [f"{name}@{revision(folder)}" for name, folder in self.folders.items()]

    def backbones(self) -> dict[str, int]:
        """Return the parameters of model and adapter by identity: a model that many adapters share counts once.

        Raises
        ------
        ResourceError
            If the weights are not safetensors, whose headers state their sizes.
        """
        found = {}
        for identity, (name, folder) in zip(self.identities, self.folders.items(), strict=True):
            count = parameter_count(folder)
            if count is None:
                raise ResourceError(f"model {name}: no *.safetensors in {folder}; convert its weights first")
            found[identity] = count
        return found

    def tokenizer(self) -> Any:
        """Return the model's fast tokeniser.

        Raises
        ------
        ResourceError
            If there is none that transformers can read.
        """
        import transformers

        auto: Any = transformers.AutoTokenizer
        try:
            tokenizer = auto.from_pretrained(str(self.folder))
        except UNREADABLE as error:
            raise ResourceError(f"model {self.model}: transformers finds no tokeniser ({_short(error)})") from error
        if not tokenizer.is_fast:
            raise ResourceError(f"model {self.model}: {type(tokenizer).__name__} is no fast tokeniser")
        return tokenizer

    def load(self, kind: str, precision: str, **options: Any) -> Any:
        """Return the network in evaluation mode, adapter merged, on the GPU where there is one.

        Parameters
        ----------
        kind : str
            Name of the transformers class that loads it.
        precision : {"float32", "float16", "bfloat16"}
        options
            Further arguments of `from_pretrained`.

        Raises
        ------
        PrerequisiteError
            If an adapter is asked for and peft is not installed.
        ResourceError
            If transformers cannot read the model, PEFT cannot read the adapter, or neither brings some of the weights.
        """
        import torch
        import transformers

        renamed = Version(transformers.__version__) >= Version("4.56")
        options["dtype" if renamed else "torch_dtype"] = getattr(torch, precision)
        try:
            network, info = getattr(transformers, kind).from_pretrained(
                str(self.folder), output_loading_info=True, **options
            )
        except UNREADABLE as error:
            raise ResourceError(f"model {self.model}: transformers cannot read it ({_short(error)})") from error
        missing = {name for name in info["missing_keys"] if not name.endswith("position_ids")}
        if self.adapter_folder is not None:
            network, brought = _with_adapter(network, self.adapter_folder)
            missing -= brought
        if missing:
            raise ResourceError(
                f"model {self.model} brings no weights for {', '.join(sorted(missing)[:4])}: it is no trained "
                "reranker; train one (python -m train.rerankers) or name its adapter"
            )
        if not getattr(network, "is_quantized", False):
            network = network.to("cuda" if torch.cuda.is_available() else "cpu")
        return network.eval()


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResourceError(f"{folder / 'config.json'} cannot be read ({error}); fetch the model again") from error
    return dict(value)


def _with_adapter(network: Any, folder: Path) -> tuple[Any, set[str]]:
    """Return the network with the adapter merged into it, and the names of the weights that it brings whole."""
    try:
        import peft
        from peft.utils import load_peft_weights
    except ImportError as error:
        raise missing_extra("peft", "train") from error
    try:
        brought = {name.removeprefix("base_model.model.") for name in load_peft_weights(str(folder), device="cpu")}
        adapted = peft.PeftModel.from_pretrained(network, str(folder))
        if getattr(network, "is_quantized", False):
            return adapted, brought  # merging into 4-bit weights would round the adapter away
        return adapted.merge_and_unload(), brought
    except UNREADABLE as error:
        raise ResourceError(f"adapter {folder} does not fit its model ({_short(error)})") from error


def load_classifier(source: Source, precision: str, **options: Any) -> Any:
    """Return a cross-encoder; see `Source.load`. A bare encoder gets the one output that its adapter brings.

    Raises
    ------
    ResourceError
        As `Source.load`, and if the model has neither one output nor two (irrelevant, relevant).
    """
    classifies = any("SequenceClassification" in name for name in source.config.get("architectures") or ())
    if not classifies:
        options["num_labels"] = 1
    network = source.load("AutoModelForSequenceClassification", precision, **options)
    if network.config.num_labels not in (1, 2):
        raise ResourceError(f"model {source.model} has {network.config.num_labels} outputs; a reranker has 1 or 2")
    return network


def logits_to_score(logits: Any) -> Any:
    """Return one score per pair: the only logit, or that of the second class minus that of the first."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def padded(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return ids, mask and token types of pairs, int64[n_pairs, longest], padded on the right."""
    longest = max(len(ids) for ids, _ in pairs)
    made = {
        "input_ids": np.full((len(pairs), longest), pad, dtype=np.int64),
        "attention_mask": np.zeros((len(pairs), longest), dtype=np.int64),
        "token_type_ids": np.zeros((len(pairs), longest), dtype=np.int64),
    }
    for i, (ids, types) in enumerate(pairs):
        made["input_ids"][i, : len(ids)] = ids
        made["attention_mask"][i, : len(ids)] = 1
        made["token_type_ids"][i, : len(ids)] = types
    return made


class TorchClassifier:
    """A cross-encoder in torch: one padded batch at a time."""

    def __init__(self, source: Source, precision: str, pad: int) -> None:
        self._network = load_classifier(source, precision)
        self._pad = pad
        self._typed = int(getattr(self._network.config, "type_vocab_size", 0) or 0) > 1

    def __call__(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Float32:
        """Return float32[n_pairs] for pairs of (ids, token types)."""
        import torch

        feed: Mapping[str, Any] = padded(pairs, self._pad)
        tensors = {
            name: torch.from_numpy(value).to(self._network.device)
            for name, value in feed.items()
            if self._typed or name != "token_type_ids"
        }
        with torch.inference_mode():
            score: Float32 = logits_to_score(self._network(**tensors).logits).float().cpu().numpy()
        return score
