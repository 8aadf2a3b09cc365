"""Yes/no rerankers against the whole language model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_rerankers import TAXONOMY, write_qwen

from ranker.core.errors import ArgumentError, PrerequisiteError, ResourceError
from ranker.core.views import view_texts
from rerankers import causal
from rerankers.causal import CausalColumn

QUERIES = ["Welding of steel frames, with the team.", "teach c++ & python: 語学"]
POOL = np.tile(np.arange(12, dtype=np.int32), (2, 1))
LENGTH = 1500


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_qwen(tmp_path_factory.mktemp("qwen") / "model")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))


def fitted(model: Path, **options) -> CausalColumn:
    column = CausalColumn("c", model=str(model), **{"max_length": LENGTH, **options})
    column.fit(TAXONOMY)
    return column


def whole_text(query: str, document: str, instruction: str) -> str:
    return (
        f"<|im_start|>system\n{causal.SYSTEM}<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n"
        f"<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def by_the_whole_model(network, tokenizer, query: str, document: str, instruction: str) -> float:
    """log P(yes) - log P(no) after the whole prompt, from the whole vocabulary."""
    ids = tokenizer(whole_text(query, document, instruction), return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        logs = network(**ids).logits[0, -1].log_softmax(-1)
    return float(logs[tokenizer.convert_tokens_to_ids("yes")] - logs[tokenizer.convert_tokens_to_ids("no")])


@pytest.mark.parametrize("tied", [True, False], ids=["embeddings tied", "an output layer of its own"])
def test_the_score_is_log_yes_minus_log_no_of_the_whole_model(tmp_path, tied):
    from transformers import AutoModelForCausalLM

    model = write_qwen(tmp_path / "model", tied=tied)
    column = fitted(model, instruction="Does the sentence ask for the skill?", view="label_description")
    network = AutoModelForCausalLM.from_pretrained(model).eval()
    texts = view_texts(TAXONOMY, "label_description")
    scores = column.score(QUERIES, POOL)
    for i, query in enumerate(QUERIES):
        wanted = [
            by_the_whole_model(network, column.tokenizer, query, text, "Does the sentence ask for the skill?")
            for text in texts
        ]
        np.testing.assert_allclose(scores[i], wanted, rtol=0, atol=5e-5)
    other = fitted(model, instruction="Is it the same line of work?").score(QUERIES, POOL)
    assert not np.allclose(other, scores, atol=1e-3)


def test_the_vocabulary_is_not_multiplied(model, monkeypatch):
    column = fitted(model)
    monkeypatch.setattr(torch.nn.Linear, "forward", _no_vocabulary(torch.nn.Linear.forward))
    assert np.isfinite(column.score(QUERIES[:1], POOL[:1])).all()


def _no_vocabulary(forward):
    def checked(self, states):
        assert self.out_features < 200, "the whole output layer was multiplied"
        return forward(self, states)

    return checked


def test_a_long_query_is_cut_and_its_line_ends(model):
    column = fitted(model, max_length=400)
    ids = column.tokenizer(" " + "weld " * 200 + "\n", add_special_tokens=False)["input_ids"]
    joined, _ = column.template.join(ids, [5] * 300)
    assert len(joined) == 400
    text = column.tokenizer.decode(joined)
    assert "\n<Document>:" in text
    assert text.endswith("</think>\n\n")
    with pytest.raises(ArgumentError, match="max_length: 100 is not a whole number from"):
        CausalColumn("c", model=str(model), max_length=100)
    with pytest.raises(ArgumentError, match=r"max_length: 3000 is not a whole number from .* to 2048"):
        CausalColumn("c", model=str(model), max_length=3000)


def test_an_adapter_is_merged(model, tmp_path):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_pretrained(model)
    parts = ["q_proj", "down_proj"]
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=parts, init_lora_weights=False)
    adapted = peft.get_peft_model(network, config).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    column = fitted(model, adapter=str(tmp_path / "adapter"), view="label")
    wanted = by_the_whole_model(adapted, column.tokenizer, QUERIES[0], TAXONOMY.label[3], causal.INSTRUCTION)
    scores = column.score(QUERIES, POOL)
    assert scores[0, 3] == pytest.approx(wanted, abs=5e-5)
    assert not np.allclose(fitted(model, view="label").score(QUERIES, POOL), scores, atol=1e-3)
    assert len(column.backbones()) == 2


def test_other_answers_may_be_named_where_they_are_one_token(tmp_path):
    model = write_qwen(tmp_path / "model", answers=("fits", "bad"))
    with pytest.raises(ResourceError, match="no single token for the answer 'yes'"):
        CausalColumn("c", model=str(model))
    scores = fitted(model, yes="fits", no="bad").score(QUERIES, POOL)
    np.testing.assert_allclose(fitted(model, yes="bad", no="fits").score(QUERIES, POOL), -scores, atol=1e-5)


def test_4_bits_without_what_they_need_are_refused_at_once(model, monkeypatch):
    monkeypatch.setattr(causal.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PrerequisiteError, match=r"bitsandbytes is not installed; .*pip install .*\[gpu\]"):
        CausalColumn("c", model=str(model), precision="4bit")


def test_in_4_bits_it_is_transformers_own_4_bit_model_and_an_adapter_stays_beside_it(tmp_path):
    pytest.importorskip("bitsandbytes", reason="needs the extra gpu")
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    # The kernels take blocks of 64 weights, which every published model's layers are made of.
    model = write_qwen(tmp_path / "wide", head=32, tied=False, hidden_size=64, intermediate_size=128)
    texts = view_texts(TAXONOMY, "label")
    column = fitted(model, precision="4bit", view="label")
    scores = column.score(QUERIES, POOL)
    np.testing.assert_array_equal(column.score(QUERIES[1:], POOL[1:]), scores[1:])
    quantised = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    network = AutoModelForCausalLM.from_pretrained(model, quantization_config=quantised, dtype=torch.bfloat16).eval()
    wanted = [by_the_whole_model(network, column.tokenizer, QUERIES[0], text, causal.INSTRUCTION) for text in texts]
    np.testing.assert_allclose(scores[0], wanted, rtol=0, atol=0.05)
    whole = fitted(model, view="label").score(QUERIES, POOL)
    assert not np.allclose(scores, whole, atol=0.05), "nothing was quantised"

    torch.manual_seed(0)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model), config).save_pretrained(tmp_path / "adapter")
    adapted = fitted(model, precision="4bit", view="label", adapter=str(tmp_path / "adapter"))
    assert not np.allclose(adapted.score(QUERIES, POOL), scores, atol=0.05)
    assert sum(adapted.backbones().values()) > sum(column.backbones().values())
