"""Tiny random rerankers of the real architectures, with real tokenisers, written as transformers writes its models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tiny_bert import PIECES
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ranker.core.taxonomy import Skill, Taxonomy

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
LABELS = ("weld steel frames", "paint walls", "repair car engines", "C++", "care for the elderly", "plan teamwork",
          "use Python (computer programming)", "music", "staff planning", "ICT system programming", "cut glass",
          "assemble wooden furniture")  # fmt: skip
TAXONOMY = Taxonomy.from_skills(
    Skill(f"u:{i:02d}", label, description="" if i % 3 == 0 else f"Be able to {label}, alone and with the team. " * i)
    for i, label in enumerate(LABELS)
)


def _unigram(special: dict[str, int]) -> Tokenizer:
    letters = [chr(code) for code in range(33, 127)]
    words = [f"▁{piece.lstrip('#') or piece}" for piece in PIECES]
    vocabulary = [(token, 0.0) for token in special] + [
        (piece, -2.0 if len(piece) > 2 else -6.0) for piece in dict.fromkeys([*words, "▁", *letters])
    ]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=special["<unk>" if "<unk>" in special else "[UNK]"]))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _save(model: Any, tokenizer: Any, folder: Path, scale: float) -> Path:
    with torch.no_grad():  # wide enough that scores differ by more than rounding
        for name, value in model.named_parameters():
            if value.dim() > 1:
                value.normal_(0, scale)
            elif name.endswith("bias"):
                value.normal_(0, 0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_bert(folder: Path, *, labels: int = 1, seed: int = 0, positions: int = 96) -> Path:
    torch.manual_seed(seed)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]
    words += [f"{mark}{chr(code)}" for code in range(97, 123) for mark in ("", "##")]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(dict.fromkeys(words))}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = hf.BertTokenizerFast(tokenizer_object=backend, model_max_length=positions)
    config = hf.BertConfig(
        **SIZES, vocab_size=backend.get_vocab_size(), num_labels=labels, max_position_embeddings=positions
    )
    return _save(hf.BertForSequenceClassification(config), tokenizer, folder, 0.3)


def write_xlmr(folder: Path, *, seed: int = 0, positions: int = 96) -> Path:
    torch.manual_seed(seed)
    backend = _unigram({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4})
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer = hf.XLMRobertaTokenizerFast(tokenizer_object=backend, model_max_length=positions)
    config = hf.XLMRobertaConfig(
        **SIZES, vocab_size=backend.get_vocab_size(), num_labels=1, max_position_embeddings=positions + 2,
        type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )
    return _save(hf.XLMRobertaForSequenceClassification(config), tokenizer, folder, 0.3)


def write_deberta(folder: Path, *, seed: int = 0, positions: int = 96) -> Path:
    torch.manual_seed(seed)
    backend = _unigram({"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 4})
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer = hf.DebertaV2TokenizerFast(tokenizer_object=backend, model_max_length=positions)
    config = hf.DebertaV2Config(
        **SIZES, vocab_size=backend.get_vocab_size(), num_labels=1, max_position_embeddings=positions,
        type_vocab_size=0, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16,
        norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False,
    )
    return _save(hf.DebertaV2ForSequenceClassification(config), tokenizer, folder, 0.2)


def write_qwen(
    folder: Path, *, seed: int = 0, answers: tuple[str, ...] = ("yes", "no"), head: int = 16,
    tied: bool = True, **sizes: int,
) -> Path:
    """Write a Qwen3; `answers` are the words its vocabulary holds as one token."""
    torch.manual_seed(seed)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary, merges = {letter: i for i, letter in enumerate(alphabet)}, []
    for word in answers:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                merges.append((word[: end - 1], word[end - 1]))
                vocabulary[word[:end]] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = hf.Qwen2TokenizerFast(tokenizer_object=backend, unk_token=None, pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(["<think>", "</think>"])
    config = hf.Qwen3Config(
        **{**SIZES, "tie_word_embeddings": tied, **sizes}, vocab_size=len(tokenizer) + 5, num_key_value_heads=1,
        head_dim=head, max_position_embeddings=2048,
    )
    return _save(hf.Qwen3ForCausalLM(config), tokenizer, folder, 0.2)
