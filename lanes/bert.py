"""A BERT encoder's forward pass in NumPy: one query costs milliseconds; neither torch nor transformers is loaded.

Only what sentence encoders need: absolute positions, one segment, exact GELU, post layer norm (Devlin et al. 2019).
Texts of one call have the same number of tokens, so that there is no padding and no mask.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanes.tiles import Tiles
from ranker.core.types import Float32

Linear: TypeAlias = tuple[Tiles, Float32]
Norm: TypeAlias = tuple[Float32, Float32]
Layer: TypeAlias = tuple[Linear, Linear, Norm, Linear, Linear, Norm]

# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: |error| of erf <= 1.5e-7; of x / sqrt 2, halved.
_ERF_P = np.float32(0.3275911 * 0.5**0.5)
_ERF = tuple(np.float32(a / 2) for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))


# How many texts a trunk remembers: a chunk of queries goes through one lane before the next lane sees it.
_TRUNK_TEXTS = 64


def gelu(x: Float32) -> Float32:
    """Return x * Phi(x) with the normal distribution function through an erf that is right to 1.5e-7.

    Parameters
    ----------
    x : numpy.ndarray
        float32 of any shape.
    """
    size = np.abs(x)
    t = size * _ERF_P
    t += 1
    np.reciprocal(t, out=t)
    tail = _ERF[0] * t
    for a in _ERF[1:]:
        tail += a
        tail *= t
    np.multiply(x, x, out=t)
    t *= np.float32(-0.5)
    tail *= np.exp(t, out=t)  # (1 - erf(|x| / sqrt 2)) / 2
    tail *= size
    result: Float32 = np.maximum(x, 0, out=size)
    result -= tail
    return result


def _layer_norm(x: Float32, weight: Float32, bias: Float32, epsilon: float) -> Float32:
    """Normalise the rows of float32[n, width]."""
    mean = np.full(x.shape[1], 1 / x.shape[1], dtype=np.float32)  # a product with it is the quickest mean
    x = x - (x @ mean)[:, None]
    x *= (1 / np.sqrt((x * x) @ mean + np.float32(epsilon)))[:, None]
    x *= weight
    x += bias
    return x


def _linear(weight: Tiles, bias: Float32, x: Float32) -> Float32:
    """Return x @ weight.T + bias."""
    y = weight.dot(x)
    y += bias
    return y


def supports(config: Mapping[str, Any]) -> bool:
    """Return whether a model's config.json describes an encoder that `Bert` computes."""
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act", "gelu") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder", False)
    )


class _Reader:
    """Tensors by name (with or without the prefix "bert."), ready for products."""

    def __init__(self, weights: Mapping[str, NDArray[Any]]) -> None:
        self._named = {name.removeprefix("bert."): value for name, value in weights.items()}

    def get(self, name: str) -> Float32:
        return np.asarray(self._named[name], dtype=np.float32)

    def linear(self, *names: str) -> Linear:
        weight = np.concatenate([self.get(f"{name}.weight") for name in names])
        return Tiles(weight), np.concatenate([self.get(f"{name}.bias") for name in names])

    def norm(self, name: str) -> Norm:
        return self.get(f"{name}.weight"), self.get(f"{name}.bias")

    def layer(self, i: int) -> Layer:
        at = f"encoder.layer.{i}"
        return (
            self.linear(*(f"{at}.attention.self.{part}" for part in ("query", "key", "value"))),
            self.linear(f"{at}.attention.output.dense"),
            self.norm(f"{at}.attention.output.LayerNorm"),
            self.linear(f"{at}.intermediate.dense"),
            self.linear(f"{at}.output.dense"),
            self.norm(f"{at}.output.LayerNorm"),
        )


class _Trunk:
    """Where encoders that share their lower layers part: the states of the last texts, so that one run serves all."""

    def __init__(self) -> None:
        self.depth = 0
        self._states: OrderedDict[bytes, Float32] = OrderedDict()
        self._lock = threading.Lock()

    def branch(self, depth: int) -> None:
        """Remember the input of layer `depth` from here on."""
        with self._lock:
            if depth != self.depth:
                self._states.clear()
                self.depth = depth

    def get(self, key: bytes) -> Float32 | None:
        """Return the states of a text, None where they are not among the last."""
        with self._lock:
            return self._states.get(key)

    def put(self, key: bytes, states: Float32, depth: int) -> None:
        """Keep the states of a text, and drop the oldest."""
        with self._lock:
            if depth == self.depth:
                self._states[key] = states
                while len(self._states) > _TRUNK_TEXTS:
                    self._states.popitem(last=False)


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
        read = _Reader(weights)
        self.heads = int(config["num_attention_heads"])
        self.epsilon = float(config.get("layer_norm_eps", 1e-12))
        self.words = read.get("embeddings.word_embeddings.weight")
        self.positions = read.get("embeddings.position_embeddings.weight")
        self.positions = self.positions + read.get("embeddings.token_type_embeddings.weight")[0]
        self.norm = read.norm("embeddings.LayerNorm")
        self.layers = [read.layer(i) for i in range(int(config["num_hidden_layers"]))]
        self._trunk = _Trunk()

    def with_layers(self, weights: Mapping[str, NDArray[Any]], first: int) -> Bert:
        """Return an encoder that shares everything but the layers from `first` on, which `weights` holds.

        Raises
        ------
        KeyError
            If a tensor is missing.
        """
        self._trunk.branch(first if first < len(self.layers) else 0)
        other = copy.copy(self)
        read = _Reader(weights)
        other.layers = [*self.layers[:first], *(read.layer(i) for i in range(first, len(self.layers)))]
        return other

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
        depth = self._trunk.depth if texts == 1 else 0
        known = self._trunk.get(ids.tobytes()) if depth else None
        if known is None:
            x = (self.words[ids] + self.positions[:length]).reshape(texts * length, -1)
            x = self._run(_layer_norm(x, *self.norm, self.epsilon), self.layers[:depth], texts)
            if depth:
                self._trunk.put(ids.tobytes(), x, depth)
        else:
            x = known
        x = self._run(x, self.layers[depth:], texts)
        return x.reshape(texts, length, -1)

    def _run(self, x: Float32, layers: Sequence[Layer], texts: int) -> Float32:
        """Return the states float32[n_texts * n_tokens, width] after some layers; `x` stays as it is."""
        width, length = x.shape[1], len(x) // texts
        size = width // self.heads
        scale = np.float32(size**-0.5)
        for qkv, out, out_norm, up, down, down_norm in layers:
            mixed = _linear(*qkv, x).reshape(texts, length, 3, self.heads, size).transpose(2, 0, 3, 1, 4)
            query, key, value = mixed  # each [texts, heads, length, size]
            weights = (query * scale) @ key.swapaxes(-1, -2)
            weights -= weights.max(-1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(-1, keepdims=True)
            context = np.empty((texts, length, self.heads, size), dtype=np.float32)
            np.matmul(weights, value, out=context.swapaxes(1, 2))
            attended = _linear(*out, context.reshape(texts * length, width))
            attended += x
            x = _layer_norm(attended, *out_norm, self.epsilon)
            inner = _linear(*down, gelu(_linear(*up, x)))
            inner += x
            x = _layer_norm(inner, *down_norm, self.epsilon)
        return x
