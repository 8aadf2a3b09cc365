"""Tuned lane: a query tower trained on graded relevance over frozen skill embeddings.

The skills' side is the plain encoder's, so nothing of it is shipped or trained, and any taxonomy can be ranked. The
query's side is the same encoder with its top layers trained, and one linear head per view of the skills:

    score(q, s) = scale * sum over views v of (q W_v + b_v) . s_v

where q is the tuned query embedding of length 1. `train.lanes` trains it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lanes import bert
from lanes.dense import DenseLane
from lanes.encoder import EncoderPool, NumpyBackend, unit
from lanes.graph import neighbours
from lanes.views import unfitted
from ranker.core.artifacts import cached_array, sha256_file
from ranker.core.config import CONFIG_DIR
from ranker.core.errors import InputError, ResourceError
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32

FORMAT = 1
VIEWS = ("label", "label_description", "neighbours")
NEIGHBOURS = 14


@dataclass(frozen=True)
class Tower:
    """What is trained.

    Attributes
    ----------
    model : str
        The encoder it grew from.
    first_layer : int
        The first layer with weights of its own; the number of layers where there is none.
    max_length : int
        Tokens after which a query is cut.
    heads : float32[n_views, width, width]
        W_v, in the order of `VIEWS`.
    bias : float32[n_views, width]
    scale : float
    layers : dict of str to float32 array
        Tensors of the layers from `first_layer` on, by their names in the encoder.
    """

    model: str
    first_layer: int
    max_length: int
    heads: Float32
    bias: Float32
    scale: float
    layers: Mapping[str, Float32]

    def save(self, folder: Path) -> None:
        """Write tower.json and tower.safetensors (float16)."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"heads": self.heads, "bias": self.bias, **self.layers}
        small = {name: np.ascontiguousarray(tensor, np.float16) for name, tensor in tensors.items()}
        save_file(small, folder / "tower.safetensors")
        about = {
            "format": FORMAT,
            "model": self.model,
            "first_layer": self.first_layer,
            "max_length": self.max_length,
            "scale": self.scale,
            "views": list(VIEWS),
            "sha256": sha256_file(folder / "tower.safetensors"),
        }
        (folder / "tower.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Tower:
        """Read what `save` wrote.

        Raises
        ------
        ResourceError
            If a file is not there.
        InputError
            If it is of another format or damaged.
        """
        from safetensors.numpy import load_file

        for name in ("tower.json", "tower.safetensors"):
            if not (folder / name).is_file():
                raise ResourceError(f"no {name} in {folder}; run: python -m train.lanes --out {folder}")
        try:
            about = json.loads((folder / "tower.json").read_text(encoding="utf-8"))
            if about["format"] != FORMAT or tuple(about["views"]) != VIEWS:
                raise InputError(f"{folder}/tower.json is of another format; train it anew")
            if sha256_file(folder / "tower.safetensors") != about["sha256"]:
                raise InputError(f"{folder}/tower.safetensors is not the file that tower.json describes; fetch it anew")
            tensors = {name: t.astype(np.float32) for name, t in load_file(folder / "tower.safetensors").items()}
            return cls(
                model=about["model"],
                first_layer=about["first_layer"],
                max_length=about["max_length"],
                heads=tensors.pop("heads"),
                bias=tensors.pop("bias"),
                scale=float(about["scale"]),
                layers=tensors,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder} holds no readable tower ({error}); train it anew") from error


def view_vectors(model: str, encoders: EncoderPool, taxonomy: Taxonomy) -> list[Float32]:
    """Return the skills' embeddings of each view, float32[n_skills, width] with rows of length 1.

    "neighbours" is the mean embedding of a skill and its nearest neighbours (label and description), which says what
    surrounds it.
    """
    lanes = [DenseLane(view, encoders=encoders, model=model, view=view) for view in VIEWS[:2]]
    for lane in lanes:
        lane.fit(taxonomy)
    both = unit(lanes[0].vectors + lanes[1].vectors)
    key = {"lanes": [lane.key(taxonomy) for lane in lanes], "k": NEIGHBOURS}

    def around() -> Float32:
        rows, _ = neighbours(both, NEIGHBOURS, {**key, "of": "sum"})
        return unit(both + both[rows].sum(axis=1))

    return [*(np.asarray(lane.vectors) for lane in lanes), cached_array("around", key, around)]


class TunedLane:
    """A trained query tower over the plain encoder's skills.

    Parameters
    ----------
    name : str
        Feature prefix.
    encoders : EncoderPool
        Where lanes share their models.
    checkpoint : str
        Folder of the tower, absolute, from the working folder, or under checkpoints/.

    Raises
    ------
    ResourceError, InputError
        If the tower or its encoder is not there or does not fit.
    """

    def __init__(self, name: str, *, encoders: EncoderPool, checkpoint: str) -> None:
        self.name = name
        folder = Path(checkpoint)
        self.tower = Tower.load(folder if folder.is_dir() else CONFIG_DIR.parent / "checkpoints" / checkpoint)
        self._encoders = encoders
        self.encoder = encoders.get(self.tower.model)
        self._views: list[Float32] | None = None
        self._bert: bert.Bert | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Embed the taxonomy with the plain encoder, from the cache where it is there."""
        self._views = view_vectors(self.tower.model, self._encoders, taxonomy)

    def embed(self, query: str) -> Float32:
        """Return float32[width], length 1: the tuned embedding of a query."""
        with self.encoder.lock:  # the tokeniser's limit is shared
            backend = self.encoder.backend
            if not isinstance(backend, NumpyBackend):
                raise InputError(f"lane {self.name}: {self.tower.model} is no BERT encoder, which a tower needs")
            if self._bert is None:
                self._bert = backend.model.with_layers(self.tower.layers, self.tower.first_layer)
            backend.tokenizer.enable_truncation(min(self.tower.max_length, backend.max_length))
            ids = np.asarray([backend.tokenizer.encode(query).ids])
        return unit(backend.pool(self._bert(ids)[0]))

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]; one query at a time, so that no other can change it."""
        if self._views is None:
            raise unfitted(self.name)
        result = np.zeros((len(queries), len(self._views[0])), dtype=np.float32)
        for row, query in enumerate(queries):
            vector = self.embed(query)
            for head, bias, view in zip(self.tower.heads, self.tower.bias, self._views, strict=True):
                result[row] += view @ (vector @ head + bias)
        return result * np.float32(self.tower.scale)

    def backbones(self) -> Mapping[str, int]:
        """Return the parameters of the shared encoder, and those of the tower on top of it."""
        own = self.tower.heads.size + self.tower.bias.size + sum(t.size for t in self.tower.layers.values())
        return {self.encoder.identity: self.encoder.parameters, f"tower {self.name}": int(own)}
