"""Tiny random encoders of the architectures that the field's lanes run, written in the layouts of their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tiny_bert import PIECES
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WIDTH = 32
SIZES = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def _word_pieces(special: Sequence[str], unknown: str, first: str, last: str) -> Tokenizer:
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    words = list(dict.fromkeys([*special, *PIECES, *letters, *(f"##{letter}" for letter in letters)]))
    tokenizer = Tokenizer(models.WordPiece({word: row for row, word in enumerate(words)}, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing((last, words.index(last)), (first, words.index(first)))
    return tokenizer


def _bert_tokenizer(*more: str) -> Any:
    backend = _word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *more], "[UNK]", "[CLS]", "[SEP]")
    return hf.BertTokenizerFast(tokenizer_object=backend, model_max_length=64)


def _mpnet_tokenizer() -> Any:
    backend = _word_pieces(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "<unk>", "<s>", "</s>")
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=62, bos_token="<s>", cls_token="<s>", eos_token="</s>",
        sep_token="</s>", unk_token="<unk>", pad_token="<pad>", mask_token="<mask>",
    )  # fmt: skip


def _randomise(model: Any) -> Any:
    with torch.no_grad():  # wide enough that scores differ by more than rounding
        for name, value in model.named_parameters():
            if value.dim() > 1:
                value.normal_(0, 0.3)
            elif name.endswith("bias"):
                value.normal_(0, 0.1)
    return model.eval()


def _mpnet(seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    tokenizer = _mpnet_tokenizer()
    config = hf.MPNetConfig(**SIZES, vocab_size=len(tokenizer), max_position_embeddings=64, pad_token_id=1)
    return _randomise(hf.MPNetModel(config, add_pooling_layer=False)), tokenizer


def _write(folder: Path, model: Any, tokenizer: Any, modules: Sequence[tuple[str, str, dict[str, Any]]]) -> Path:
    """Write a sentence-transformers folder; `modules` are (folder, class, config) after the transformer."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    rows = [("", "sentence_transformers.models.Transformer", {}), *modules]
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind, _) in enumerate(rows)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48, "do_lower_case": False}))
    for path, _, config in modules:
        (folder / path).mkdir(exist_ok=True)
        (folder / path / "config.json").write_text(json.dumps(config))
    return folder


def _pooling(mode: str) -> tuple[str, str, dict[str, Any]]:
    config = {"word_embedding_dimension": WIDTH, f"pooling_mode_{mode}": True, "include_prompt": True}
    return "1_Pooling", "sentence_transformers.models.Pooling", config


def _dense(folder: Path, width: int, *, activation: str, bias: bool) -> None:
    folder.mkdir(exist_ok=True)
    weights = {"linear.weight": torch.randn(width, WIDTH) / 4}
    if bias:
        weights["linear.bias"] = torch.randn(width) / 4
    save_file(weights, folder / "model.safetensors")
    config = {"in_features": WIDTH, "out_features": width, "bias": bias, "activation_function": activation}
    (folder / "config.json").write_text(json.dumps(config))


def write_mpnet(folder: Path, *, seed: int = 0) -> Path:
    """Write MPNet with mean pooling: all-mpnet-base-v2's and CurriculumMatch's layout."""
    return _write(folder, *_mpnet(seed), [_pooling("mean_tokens")])


def write_jobbert(folder: Path, *, seed: int = 0) -> Path:
    """Write MPNet with mean pooling and two branches, each a layer with tanh: JobBERT-v2's layout."""
    model, tokenizer = _mpnet(seed)
    branches = {"anchor": "anchor_0_Dense", "positive": "positive_0_Dense"}
    config = {
        "types": dict.fromkeys(branches.values(), "sentence_transformers.models.Dense.Dense"),
        "structure": {name: [part] for name, part in branches.items()},
        "parameters": {"allow_empty_key": True},
    }
    asym = ("2_Asym", "sentence_transformers.models.Asym", config)
    _write(folder, model, tokenizer, [_pooling("mean_tokens"), asym])
    for part in branches.values():
        _dense(folder / "2_Asym" / part, 40, activation="torch.nn.modules.activation.Tanh", bias=True)
    return folder


def write_qwen_embedding(folder: Path, *, seed: int = 0) -> Path:
    """Write Qwen3 with last-token pooling over an end token, normalised: Qwen3-Embedding's layout."""
    torch.manual_seed(seed)
    vocabulary = {letter: row for row, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    end = backend.token_to_id("<|endoftext|>")
    backend.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", end)]
    )
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<|endoftext|>", eos_token="<|endoftext|>", padding_side="left"
    )
    config = hf.Qwen3Config(
        **SIZES, vocab_size=len(tokenizer) + 3, num_key_value_heads=1, head_dim=16, max_position_embeddings=128
    )
    normalize = ("2_Normalize", "sentence_transformers.models.Normalize", {})
    return _write(folder, _randomise(hf.Qwen3Model(config)), tokenizer, [_pooling("lasttoken"), normalize])


def write_m3(folder: Path, *, seed: int = 0) -> Path:
    """Write XLM-R with the two heads that BGE-M3 keeps beside it."""
    torch.manual_seed(seed)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = [f"▁{piece.lstrip('#') or piece}" for piece in PIECES]
    pieces = dict.fromkeys([*words, "▁", *(chr(code) for code in range(33, 127))])
    scores = [(token, 0.0) for token in special] + [(p, -2.0 if len(p) > 2 else -6.0) for p in pieces]
    backend = Tokenizer(models.Unigram(scores, unk_id=3))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer = hf.XLMRobertaTokenizerFast(tokenizer_object=backend, model_max_length=64)
    config = hf.XLMRobertaConfig(
        **SIZES, vocab_size=backend.get_vocab_size(), max_position_embeddings=66, type_vocab_size=1, pad_token_id=1,
        bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    _randomise(hf.XLMRobertaModel(config, add_pooling_layer=False)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name, width in (("colbert_linear", WIDTH), ("sparse_linear", 1)):
        torch.save({"weight": torch.randn(width, WIDTH) / 4, "bias": torch.randn(width) / 4}, folder / f"{name}.pt")
    return folder


def write_pylate(folder: Path, *, seed: int = 0, attend: bool = False) -> Path:
    """Write BERT with a layer over its tokens: a ColBERT in PyLate's layout."""
    torch.manual_seed(seed)
    tokenizer = _bert_tokenizer()
    tokenizer.add_tokens(["[Q] ", "[D] "])
    config = hf.BertConfig(**SIZES, vocab_size=len(tokenizer), max_position_embeddings=64)
    model = _randomise(hf.BertModel(config, add_pooling_layer=False))
    _write(folder, model, tokenizer, [("1_Dense", "pylate.models.Dense.Dense", {})])
    _dense(folder / "1_Dense", 24, activation="torch.nn.modules.linear.Identity", bias=False)
    settings = {
        "model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 14,
        "document_length": 20, "attend_to_expansion_tokens": attend, "do_query_expansion": True,
        "skiplist_words": [",", ".", "+"],
    }  # fmt: skip
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def write_stanford(folder: Path, *, seed: int = 0) -> Path:
    """Write a ColBERT as its first authors' code does: the layer inside the model's file, the settings as metadata."""
    torch.manual_seed(seed)
    tokenizer = _bert_tokenizer("[unused0]", "[unused1]")
    config = hf.BertConfig(**SIZES, vocab_size=len(tokenizer), max_position_embeddings=64)
    _randomise(hf.BertModel(config, add_pooling_layer=False)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    weights["linear.weight"] = torch.randn(24, WIDTH) / 4
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    about = {**json.loads((folder / "config.json").read_text()), "architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(about))
    settings = {
        "query_maxlen": 12, "doc_maxlen": 20, "dim": 24, "query_token_id": "[unused0]", "doc_token_id": "[unused1]",
        "mask_punctuation": True, "attend_to_mask_tokens": False,
    }  # fmt: skip
    (folder / "artifact.metadata").write_text(json.dumps(settings))
    return folder
