"""A tiny random BERT sentence encoder, written as files the way sentence-transformers keeps its models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

PIECES = ("weld", "##ing", "##s", "steel", "frame", "paint", "wall", "repair", "engine", "car", "nurse", "care",
          "program", "##m", "##er", "python", "c", "++", "and", "of", "the", "with", "in", "team", "plan", "tool",
          "music", "staff", ".", ",", "/", "#", "+")  # fmt: skip


def write_tiny_bert(
    folder: Path, *, pooling: str = "mean", act: str = "gelu", width: int = 16, layers: int = 2, seed: int = 0
) -> Path:
    """Write the model's folder and return it."""
    folder.mkdir(parents=True)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + [str(digit) for digit in range(10)]
    pieces = dict.fromkeys([*PIECES, *letters, *(f"##{c}" for c in letters)])
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    vocabulary = {word: row for row, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=50))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")

    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": act,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": 2,
        "num_hidden_layers": layers,
        "max_position_embeddings": 40,
        "type_vocab_size": 2,
        "vocab_size": len(words),
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
    }
    draw = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(words), width),
        "embeddings.position_embeddings.weight": (40, width),
        "embeddings.token_type_embeddings.weight": (2, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
        "pooler.dense.weight": (width, width),
        "pooler.dense.bias": (width,),
    }
    for i in range(layers):
        parts = {
            "attention.self.query": (width, width),
            "attention.self.key": (width, width),
            "attention.self.value": (width, width),
            "attention.output.dense": (width, width),
            "attention.output.LayerNorm": (width,),
            "intermediate.dense": (2 * width, width),
            "output.dense": (width, 2 * width),
            "output.LayerNorm": (width,),
        }
        for name, shape in parts.items():
            shapes[f"encoder.layer.{i}.{name}.weight"] = shape
            shapes[f"encoder.layer.{i}.{name}.bias"] = shape[:1]
    weights = {name: draw.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}
    for name in weights:
        if name.endswith("LayerNorm.weight"):
            weights[name] = 1 + 0.1 * weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    pooled = {"word_embedding_dimension": width}
    for mode, key in (("cls", "cls_token"), ("mean", "mean_tokens"), ("max", "max_tokens")):
        pooled[f"pooling_mode_{key}"] = mode == pooling
    (folder / "1_Pooling").mkdir()
    (folder / "2_Normalize").mkdir()
    for path, value in (
        ("config.json", config),
        ("modules.json", modules),
        ("sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": False}),
        ("tokenizer_config.json", {"tokenizer_class": "BertTokenizerFast", "model_max_length": 40}),
        ("1_Pooling/config.json", pooled),
    ):
        (folder / path).write_text(json.dumps(value))
    return folder
