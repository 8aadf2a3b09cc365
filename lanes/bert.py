"""A BERT encoder's forward pass in NumPy: one query costs milliseconds; neither torch nor transformers is loaded.

Only what sentence encoders need: absolute positions, one segment, exact GELU, post layer norm (Devlin et al. 2019).
Texts of one call have the same number of tokens, so that there is no padding and no mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranker.core.types import Float32

# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: |error| of erf <= 1.5e-7.
_ERF_P = np.float32(0.3275911)
_ERF = tuple(np.float32(a) for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))


def gelu(x: Float32) -> Float32:
    """Return x * Phi(x) with the normal distribution function through an erf that is right to 1.5e-7.

    Parameters
    ----------
    x : numpy.ndarray
        float32 of any shape.
    """
    z = np.abs(x)
    z *= np.float32(np.sqrt(0.5))
    t = 1 / (1 + _ERF_P * z)
    tail = _ERF[0] * t
    for a in _ERF[1:]:
        tail += a
        tail *= t
    z *= z
    np.negative(z, out=z)
    tail *= np.exp(z, out=z)  # 1 - erf(|x| / sqrt 2)
    tail *= np.float32(0.5)
    return np.maximum(x, 0) - np.abs(x) * tail  # type: ignore[no-any-return]


def _layer_norm(x: Float32, weight: Float32, bias: Float32, epsilon: float) -> Float32:
    x = x - x.mean(-1, keepdims=True)
    x *= 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(epsilon))
    x *= weight
    x += bias
    return x


def supports(config: Mapping[str, Any]) -> bool:
    """Return whether a model's config.json describes an encoder that `Bert` computes."""
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act", "gelu") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder", False)
    )


class Bert:
    """The encoder.

    Parameters
    ----------
    config : mapping
        A config.json for which `supports` is true.
    weights : mapping
        Tensor name (with or without the prefix "bert.") to array.
    """

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
        named = {name.removeprefix("bert."): value for name, value in weights.items()}

        def get(name: str) -> Float32:
            return np.asarray(named[name], dtype=np.float32)

        def linear(*names: str) -> tuple[Float32, Float32]:
            weight = np.concatenate([get(f"{name}.weight") for name in names])
            return np.ascontiguousarray(weight.T), np.concatenate([get(f"{name}.bias") for name in names])

        def norm(name: str) -> tuple[Float32, Float32]:
            return get(f"{name}.weight"), get(f"{name}.bias")

        self.heads = int(config["num_attention_heads"])
        self.epsilon = float(config.get("layer_norm_eps", 1e-12))
        self.words = get("embeddings.word_embeddings.weight")
        segment = get("embeddings.token_type_embeddings.weight")[0]
        self.positions = get("embeddings.position_embeddings.weight") + segment
        self.norm = norm("embeddings.LayerNorm")
        self.layers = []
        for i in range(int(config["num_hidden_layers"])):
            at = f"encoder.layer.{i}"
            self.layers.append(
                (
                    linear(*(f"{at}.attention.self.{part}" for part in ("query", "key", "value"))),
                    linear(f"{at}.attention.output.dense"),
                    norm(f"{at}.attention.output.LayerNorm"),
                    linear(f"{at}.intermediate.dense"),
                    linear(f"{at}.output.dense"),
                    norm(f"{at}.output.LayerNorm"),
                )
            )

    @property
    def max_positions(self) -> int:
        """Return the longest input in tokens."""
        return len(self.positions)

    def __call__(self, ids: NDArray[Any]) -> Float32:
        """Return the last hidden states, float32[n_texts, n_tokens, width].

        Parameters
        ----------
        ids : numpy.ndarray
            int[n_texts, n_tokens]: token ids, special tokens included, no padding.
        """
        texts, length = ids.shape
        x = _layer_norm(self.words[ids] + self.positions[:length], *self.norm, self.epsilon)
        width = x.shape[-1]
        x = x.reshape(texts * length, width)
        size = width // self.heads
        scale = np.float32(size**-0.5)
        for qkv, out, out_norm, up, down, down_norm in self.layers:
            mixed = (x @ qkv[0] + qkv[1]).reshape(texts, length, 3, self.heads, size).transpose(2, 0, 3, 1, 4)
            weights = (mixed[0] * scale) @ mixed[1].swapaxes(-1, -2)
            weights -= weights.max(-1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(-1, keepdims=True)
            context = (weights @ mixed[2]).transpose(0, 2, 1, 3).reshape(texts * length, width)
            x = _layer_norm(context @ out[0] + out[1] + x, *out_norm, self.epsilon)
            x = _layer_norm(gelu(x @ up[0] + up[1]) @ down[0] + down[1] + x, *down_norm, self.epsilon)
        return x.reshape(texts, length, width)
