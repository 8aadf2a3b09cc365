"""Yes/no rerankers: a language model is asked whether a skill fits, and its "yes" is weighed against its "no".

The prompt is that of Qwen3-Reranker (Zhang et al., "Qwen3 Embedding", 2025, and its model card): a fixed system
message, an instruction that the user words, the query, the document, and an empty thought before the answer. The score
is the difference of the two logits, which is log P(yes) - log P(no). Only these two rows of the output layer are
multiplied, not the whole vocabulary.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from ranker.core.errors import RankerError, ResourceError, missing_extra
from ranker.core.options import number, one_of
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32
from rerankers.classifier import Source, padded
from rerankers.pairs import VIEWS, Documents, Template, batches

PRECISIONS = ("float32", "float16", "bfloat16", "4bit")
SYSTEM = (  # the words that the published models were trained with
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a sentence from a vacancy or a CV, decide whether the skill in the document is what it asks for"


def prompt(tokenizer: Any, instruction: str, max_length: int) -> Template:
    """Return the prompt around query and document, as token ids.

    The pieces meet where no tokeniser of this kind joins two of them: after a colon that a space follows, after the end
    of a line, and before a control token. So they can be tokenised apart.
    """
    pieces = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n<Query>:",
        "<Document>:",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    )
    before, between, after = (tuple(tokenizer(piece, add_special_tokens=False)["input_ids"]) for piece in pieces)
    return Template(before, between, after, max_length, ending=1)  # the end of the query's line


def answer_token(tokenizer: Any, word: str) -> int:
    """Return the id of an answer.

    Raises
    ------
    ResourceError
        If the vocabulary has no single token for it.
    """
    ids = tokenizer(word, add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        pieces = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(ids)))
        raise ResourceError(
            f"the tokeniser has no single token for the answer {word!r} but {pieces}; name two others (yes, no)"
        )
    return int(ids[0])


class CausalColumn:
    """The logit of "yes" minus that of "no".

    Parameters
    ----------
    name : str
        Feature prefix.
    model : str
        A causal language model; see `ranker.core.models.resolve_model`.
    adapter : str, optional
        Folder or hub id of a PEFT adapter; merged into the weights, beside them in 4 bits.
    view : {"label", "label_description"}
        What is read of a skill.
    instruction : str
        What the model is to decide, in a sentence.
    yes, no : str
        The two answers; each one token of the vocabulary.
    max_length : int
        Tokens of a prompt; of query and document the longer one is cut first.
    precision : {"float32", "float16", "bfloat16", "4bit"}
        On the GPU where there is one; 4 bits (NF4, computed in bfloat16) need bitsandbytes.
    token_budget : int
        Tokens of a batch, padding included.

    Raises
    ------
    ArgumentError, ResourceError, PrerequisiteError
        A value that is not allowed; a model, adapter or answer that is not there; 4 bits without bitsandbytes.
    """

    def __init__(
        self,
        name: str,
        *,
        model: str,
        adapter: str | None = None,
        view: str = "label_description",
        instruction: str = INSTRUCTION,
        yes: str = "yes",
        no: str = "no",
        max_length: int = 512,
        precision: str = "float32",
        token_budget: int = 8192,
    ) -> None:
        one_of(view, VIEWS, "view")
        one_of(precision, PRECISIONS, "precision")
        number(token_budget, 1, 2**24, "token_budget", whole=True)
        self.name, self.view, self.precision, self.token_budget = name, view, precision, token_budget
        if precision == "4bit" and importlib.util.find_spec("bitsandbytes") is None:
            raise missing_extra("bitsandbytes", "gpu")
        self.source = Source(model, adapter)
        self.tokenizer = self.source.tokenizer()
        self.answers = answer_token(self.tokenizer, yes), answer_token(self.tokenizer, no)
        self.template = prompt(self.tokenizer, instruction, max_length)
        fixed = max_length - self.template.room
        most = self.source.config.get("max_position_embeddings", 2**20)
        number(max_length, fixed + 8, most, "max_length", whole=True)
        self._documents: Documents | None = None
        self._network: Any = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Tokenise the taxonomy and load the network."""
        self._documents = Documents.build(
            taxonomy, self.tokenizer, view=self.view, max_length=self.template.max_length, prefix=" "
        )
        if self._network is None:
            self._network = _Difference(self.source, self.precision, self.answers)

    def score(self, queries: Sequence[str], pool: Int32) -> Float32:
        """Return float32 of the pool's shape."""
        if self._documents is None or self._network is None:
            raise RankerError(f"column {self.name}: asked for scores before fit(taxonomy)")
        scores = np.empty(pool.shape, dtype=np.float32)
        for i, (query, rows) in enumerate(zip(queries, pool, strict=True)):
            ids = self.tokenizer(f" {query}\n", add_special_tokens=False, verbose=False)["input_ids"]
            pairs: list[Any] = [self.template.join(ids, self._documents[row]) for row in rows]
            sizes = np.array([len(tokens) for tokens, _ in pairs], dtype=np.intp)
            for places in batches(sizes, rows, self.token_budget):
                scores[i, places] = self._network([pairs[place] for place in places])
        return scores

    def backbones(self) -> dict[str, int]:
        """Return the parameters of model and adapter, as they are before quantisation."""
        return self.source.backbones()


class _Difference:
    """The body of a causal model, and the difference of two rows of its output layer."""

    def __init__(self, source: Source, precision: str, answers: tuple[int, int]) -> None:
        import torch

        options: dict[str, Any] = {}
        if precision == "4bit":
            import transformers

            config: Any = transformers.BitsAndBytesConfig
            options = {
                "quantization_config": config(
                    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
                ),
                "device_map": {"": torch.cuda.current_device() if torch.cuda.is_available() else "cpu"},
            }
        network = source.load("AutoModelForCausalLM", "bfloat16" if precision == "4bit" else precision, **options)
        causal = network.get_base_model() if hasattr(network, "get_base_model") else network
        head = causal.get_output_embeddings()
        if hasattr(head, "lora_A"):
            raise ResourceError(f"adapter {source.adapter} changes the output layer, where 4 bits cannot take it in")
        yes, no = answers
        rows = len(head.weight)
        if max(answers) >= rows:
            raise ResourceError(f"model {source.model}: of the {rows} rows of its output layer none is for an answer")
        # In float32: of two near numbers in half precision the difference would be mostly rounding.
        self._row = head.weight[yes].detach().float() - head.weight[no].detach().float()
        bias = getattr(head, "bias", None)
        self._bias = 0.0 if bias is None else float(bias[yes] - bias[no])
        self._body = causal.base_model

    def __call__(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Float32:
        """Return float32[n_pairs].

        Padding stands on the right, where a causal model never looks, and the state that is read is that of each
        prompt's own last token: so it cannot change a score, as padding on the left would through the positions.
        """
        import torch

        feed = padded(pairs, 0)
        tensors = {
            name: torch.from_numpy(feed[name]).to(self._row.device) for name in ("input_ids", "attention_mask")
        }
        last = tensors["attention_mask"].sum(dim=1) - 1
        with torch.inference_mode():
            states = self._body(**tensors, use_cache=False).last_hidden_state
            ends = states[torch.arange(len(pairs), device=states.device), last].float()
            score: Float32 = (ends @ self._row + self._bias).cpu().numpy()
        return score
