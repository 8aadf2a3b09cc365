"""The network that a column is: a cross-encoder with one output, or a language model's "yes" against its "no"."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ranker.core.errors import RankerError, ResourceError, missing_extra
from ranker.core.models import resolve_model
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32
from rerankers.causal import CausalColumn
from rerankers.classifier import padded
from rerankers.encoder import EncoderColumn
from rerankers.pairs import Documents, batches

BATCH_TOKENS = 8_192  # of pairs that are scored at once


class Scorer:
    """Scores pairs of a text and a skill as the column that is served does, and can be trained.

    Parameters
    ----------
    model : str
        See `ranker.core.models.resolve_model`.
    taxonomy : Taxonomy
    view : str
        What is read of a skill: a key of `rerankers.pairs.VIEWS`.
    causal : bool
        A language model whose answer to the pair is read; else a sequence classifier with one output.
    lora : int
        Rank of the adapters that are trained; 0 trains everything.
    max_length : int
        Tokens of a pair.
    seed : int
        Of weights that the model does not bring: a classifier's last layer, adapters.
    """

    def __init__(
        self, model: str, taxonomy: Taxonomy, *, view: str = "label_description", causal: bool = False, lora: int = 0,
        max_length: int = 192, seed: int = 0,
    ) -> None:
        import torch

        self.causal = causal
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        torch.manual_seed(seed)
        kind = CausalColumn if causal else EncoderColumn
        column = kind("trained", model=model, view=view, max_length=max_length)  # which says how a pair is read
        self.tokenizer, self.template = column.tokenizer, column.template
        self.documents = Documents.build(
            taxonomy, self.tokenizer, view=view, max_length=max_length, prefix=" " if causal else ""
        )
        self.answers = column.answers if isinstance(column, CausalColumn) else None
        self.network, fresh = _load(resolve_model(model), causal=causal)
        self._typed = int(getattr(self.network.config, "type_vocab_size", 0) or 0) > 1
        self._queries: dict[str, list[int]] = {}
        if lora:
            self.network = _adapters(self.network, lora, fresh, model, causal=causal)
        self.network.to(self.device)

    def forward(self, pairs: Sequence[tuple[str, int]]) -> Any:
        """Return the scores of (text, taxonomy row) pairs, a float32 tensor[n] that can be differentiated."""
        self.network.train()
        return self._run(pairs)

    def _tokens(self, text: str) -> list[int]:
        if text not in self._queries:
            written = f" {text}\n" if self.causal else text
            self._queries[text] = self.tokenizer(written, add_special_tokens=False, verbose=False)["input_ids"]
        return self._queries[text]

    def _run(self, pairs: Sequence[tuple[str, int]]) -> Any:
        import torch

        joined = [self.template.join(self._tokens(text), self.documents[row]) for text, row in pairs]
        tensors = {
            name: torch.from_numpy(value).to(self.device)
            for name, value in padded(joined, int(self.tokenizer.pad_token_id or 0)).items()
            if self._typed or name != "token_type_ids"
        }
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            if self.answers is None:
                return self.network(**tensors).logits[:, 0].float()
            states = self._causal.base_model(**tensors, use_cache=False).last_hidden_state
        ends = states[torch.arange(len(pairs)), tensors["attention_mask"].sum(dim=1) - 1].float()
        return ends @ self._answer_row()

    @property
    def _causal(self) -> Any:
        return self.network.get_base_model() if hasattr(self.network, "peft_config") else self.network

    def _answer_row(self) -> Any:
        """Return the output layer's row of "yes" minus that of "no"."""
        assert self.answers is not None
        head = self._causal.get_output_embeddings()
        return (head.weight[self.answers[0]] - head.weight[self.answers[1]]).float()

    def predict(self, text: str, rows: Int32) -> Float32:
        """Return the scores of one text with some skills, float32[len(rows)].

        Raises
        ------
        RankerError
            If one is not finite.
        """
        import torch

        self.network.eval()
        scores = np.empty(len(rows), dtype=np.float32)
        extra = self.template.max_length - self.template.room + len(self._tokens(text))
        with torch.inference_mode():
            for part in batches(self.documents.sizes(rows) + extra, rows, BATCH_TOKENS):
                scores[part] = self._run([(text, int(row)) for row in rows[part]]).cpu().numpy()
        if not np.isfinite(scores).all():
            raise RankerError(f"a score of {text[:60]!r} is not finite; lower --rate")
        return scores

    def trainable(self) -> dict[str, Any]:
        """Return the parameters that are trained, by name."""
        return {name: value for name, value in self.network.named_parameters() if value.requires_grad}

    def load(self, weights: Mapping[str, Any]) -> None:
        """Set the trained parameters, as `trainable` names them."""
        import torch

        with torch.no_grad():
            for name, value in self.trainable().items():
                value.copy_(weights[name])

    def save(self, folder: Path) -> None:
        """Write a folder that transformers, or PEFT where adapters were trained, can load."""
        folder.mkdir(parents=True, exist_ok=True)
        options = {"save_embedding_layers": False} if hasattr(self.network, "peft_config") else {}
        self.network.save_pretrained(folder, **options)
        self.tokenizer.save_pretrained(folder)


def _load(folder: Path, *, causal: bool) -> tuple[Any, list[str]]:
    """Return the network, and the names of weights that the folder does not hold."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    kind: Any = AutoModelForCausalLM if causal else AutoModelForSequenceClassification
    options: dict[str, Any] = {} if causal else {"num_labels": 1, "ignore_mismatched_sizes": True}
    try:
        network, found = kind.from_pretrained(folder, output_loading_info=True, **options)
    except (OSError, ValueError, KeyError) as error:
        what = "language model" if causal else "sequence classifier"
        raise ResourceError(f"model {folder}: transformers cannot read it as a {what} ({error})") from error
    return network, sorted([*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])])


def _adapters(network: Any, rank: int, fresh: Sequence[str], model: str, *, causal: bool) -> Any:
    """Return the network with adapters on every linear layer; layers without weights of their own are trained whole."""
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError as error:
        raise missing_extra("peft", "train") from error
    whole = sorted({name.rpartition(".")[0] for name in fresh if name.split(".")[0] not in {"classifier", "score"}})
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM if causal else TaskType.SEQ_CLS, r=rank, lora_alpha=2 * rank, lora_dropout=0.05,
        target_modules="all-linear", exclude_modules=whole or None, modules_to_save=whole or None,
    )
    made = get_peft_model(network, config)
    made.peft_config["default"].base_model_name_or_path = model  # as it was named, not where it lies on this machine
    return made
