"""Tuned lane: a query tower trained on graded relevance over frozen skill embeddings.

The skills' side is the plain encoder's and the taxonomy's groups, so that nothing of it is trained and any taxonomy can
be ranked. The query's side is the same encoder with its top layers trained, and one linear head per view of the skills:

    score(q, s) = scale * sum over views v of (q W_v + b_v) . s_v

where q is the tuned query embedding of length 1. The sum over views is taken once per taxonomy, so that a query costs
one matrix-vector product however many views there are. `train.lanes` trains it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lanes import bert
from lanes.checkpoint import checkpoint_folder, read_about
from lanes.dense import DenseLane
from lanes.encoder import EncoderPool, NumpyBackend, unit
from lanes.graph import neighbours, parents
from lanes.tiles import Tiles
from lanes.views import unfitted, view_identity
from ranker.core.artifacts import cached_array, sha256_file
from ranker.core.errors import InputError
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32

FORMAT = 2
VIEWS = ("label", "label_description", "description", "alt_mean", "who", "use", "neighbours")  # and the groups, last
NEIGHBOURS = 14
GROUP_SIZE = 3


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
    groups : tuple of str
        Codes of the taxonomy's groups, in the order of the last view.
    heads : float32[width, n_views * width + n_groups]
        W_v side by side, in the order of `VIEWS`, then the groups'.
    bias : float32[n_views * width + n_groups]
    scale : float
    layers : dict of str to float32 array
        Tensors of the layers from `first_layer` on, by their names in the encoder.
    """

    model: str
    first_layer: int
    max_length: int
    groups: tuple[str, ...]
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
            "groups": list(self.groups),
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

        missing = f"run: python -m train.lanes --out {folder}"
        try:
            about = read_about(folder, "tower.safetensors", FORMAT, missing=missing, changed="fetch it anew")
            if tuple(about["views"]) != VIEWS:
                raise InputError(f"{folder}/tower.json is of another format; train it anew")
            tensors = {name: t.astype(np.float32) for name, t in load_file(folder / "tower.safetensors").items()}
            return cls(
                model=about["model"],
                first_layer=about["first_layer"],
                max_length=about["max_length"],
                groups=tuple(about["groups"]),
                heads=tensors.pop("heads"),
                bias=tensors.pop("bias"),
                scale=float(about["scale"]),
                layers=tensors,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder} holds no readable tower ({error}); train it anew") from error


def group_codes(taxonomy: Taxonomy) -> tuple[str, ...]:
    """Return the codes of the taxonomy's groups, and of those around them, that hold at least `GROUP_SIZE` skills."""
    sizes = Counter(code for codes in _codes(taxonomy) for code in codes)
    return tuple(sorted(code for code, size in sizes.items() if size >= GROUP_SIZE))


def _codes(taxonomy: Taxonomy) -> list[set[str]]:
    return [{code for own in codes for code in parents(own)} for codes in taxonomy.groups]


def view_vectors(model: str, encoders: EncoderPool, taxonomy: Taxonomy, groups: Sequence[str]) -> list[Float32]:
    """Return the skills' vectors of each view, float32[n_skills, width], and their groups, float32[n_skills, n_groups].

    "neighbours" is the mean embedding of a skill and its nearest neighbours (label and description), which says what
    surrounds it. Groups are ones among zeros. Rows are scaled to length 1; a skill without group has zeros.
    """
    lanes = [DenseLane(view, encoders=encoders, model=model, view=view) for view in VIEWS[:-1]]
    for lane in lanes:
        lane.fit(taxonomy)
    both = unit(lanes[0].vectors + lanes[1].vectors)
    key = {"lanes": [lane.key(taxonomy) for lane in lanes[:2]], "k": NEIGHBOURS}

    def around() -> Float32:
        rows, _ = neighbours(both, NEIGHBOURS, {**key, "of": "sum"})
        return unit(both + both[rows].sum(axis=1))

    column = {code: i for i, code in enumerate(groups)}
    member = np.zeros((len(taxonomy), len(groups)), dtype=np.float32)
    for row, codes in enumerate(_codes(taxonomy)):
        member[row, [column[code] for code in codes if code in column]] = 1
    return [*(np.asarray(lane.vectors) for lane in lanes), cached_array("around", key, around), unit(member)]


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
        folder = checkpoint_folder(checkpoint)
        self.tower = Tower.load(folder)
        self._weights = sha256_file(folder / "tower.safetensors")
        self._encoders = encoders
        self.encoder = encoders.get(self.tower.model)
        self._skills: Tiles | None = None
        self._bert: bert.Bert | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Sum the views through their heads, from the cache where that is there."""
        tower = self.tower

        def summed() -> Float32:
            views = np.concatenate(view_vectors(tower.model, self._encoders, taxonomy, tower.groups), axis=1)
            # float16 halves the file; fresh rows are rounded alike, so that nothing depends on where they came from.
            return np.concatenate([views @ tower.heads.T, (views @ tower.bias)[:, None]], axis=1).astype(np.float16)

        key = {
            "tower": self._weights, "encoder": self.encoder.revision, "fingerprint": taxonomy.fingerprint,
            "views": [view_identity(view) for view in VIEWS],
        }
        self._skills = Tiles(cached_array("tuned", key, summed))

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
        if self._skills is None:
            raise unfitted(self.name)
        result = np.empty((len(queries), len(self._skills)), dtype=np.float32)
        for row, query in enumerate(queries):
            result[row] = self._skills.dot(np.append(self.embed(query), np.float32(1))[None])[0]
        return result * np.float32(self.tower.scale)

    def backbones(self) -> Mapping[str, int]:
        """Return the parameters of the shared encoder, and those of the tower on top of it."""
        own = self.tower.heads.size + self.tower.bias.size + sum(t.size for t in self.tower.layers.values())
        return {self.encoder.identity: self.encoder.parameters, f"tower {self.name}": int(own)}
