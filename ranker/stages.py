"""Stage-wise scoring: each lane's and column's scores on disk as soon as they exist, one model in memory at a time.

The stages here keep the contracts of lanes and columns, so `ranker.pipeline` runs them as it runs any others. A score
that is on disk is read; for one that is not, the stage is built and its model loaded, after the one before is dropped.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from lanes.base import DerivedLane, Lane
from lanes.registry import build_lanes
from ranker.core.artifacts import atomic_path, cache_dir, digest, sha256_file
from ranker.core.config import CONFIG_DIR, ColumnConfig, LaneConfig, SystemConfig
from ranker.core.errors import RankerError
from ranker.core.models import revision
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32
from ranker.core.views import uses_revision
from rerankers.base import Column
from rerankers.registry import ask_once, build_columns

FORMAT = 1


def hosted(spec: LaneConfig | ColumnConfig) -> bool:
    """Tell whether a stage's model runs on a server, so that its name is no checkpoint and its memory not ours."""
    return "url" in spec.options


def lane_chain(config: SystemConfig, name: str) -> list[LaneConfig]:
    """Return the configs of a lane and of the lanes it derives from, these first."""
    lane = next(lane for lane in config.lanes if lane.name == name)
    base = lane.options.get("base")
    return [*(lane_chain(config, base) if base else ()), lane]


def build_stage(config: SystemConfig, name: str) -> tuple[Lane | Column, list[Lane | Column]]:
    """Make one stage of a system alone, not fitted.

    Returns
    -------
    stage : Lane or Column
    parts : list
        What is to be fitted, in this order: the lanes that it derives from, and itself.
    """
    for column in config.columns:
        if column.name == name:
            made: Mapping[str, Lane | Column] = build_columns([column])
            break
    else:
        made = build_lanes(lane_chain(config, name))
    return made[name], list(made.values())


def stage_key(config: SystemConfig, spec: LaneConfig | ColumnConfig, stage: Lane | Column) -> dict[str, Any]:
    """Return everything a stage's score of one query depends on, besides the query, the taxonomy and the pool.

    Models count by the hash of their files and not by their place, so that a folder may move.
    """
    models = sorted(identity.rpartition("@")[2] for identity in stage.backbones())
    chain = lane_chain(config, spec.name) if isinstance(spec, LaneConfig) else [spec]
    options = [
        {
            key: content(value)
            for key, value in part.options.items()
            if key not in {"base", *([] if hosted(part) else ("model", "adapter"))}
        }
        for part in chain
    ]
    return {"format": FORMAT, "families": [part.family for part in chain], "options": options, "models": models,
            "uses": uses_revision()}


def content(value: Any) -> Any:
    """Return the hash of the file or folder that an option names, the option itself where it names none."""
    if isinstance(value, str) and value:
        for path in (Path(value), CONFIG_DIR.parent / "checkpoints" / value):
            if path.is_dir():
                return revision(path)
            if path.is_file():
                return sha256_file(path)
    return value


class Shelf:
    """Room for one stage with its model."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: Kept | None = None
        self._stage: Lane | Column | None = None

    @contextmanager
    def stage(self, owner: Kept) -> Iterator[Any]:
        """Yield the live stage of `owner`; that of another is dropped first."""
        with self._lock:
            if self._owner is not owner:
                self.clear()
                self._stage, self._owner = owner.make(), owner
            yield self._stage

    def clear(self) -> None:
        """Drop the live stage, and give its memory back."""
        with self._lock:
            self._owner = self._stage = None
            gc.collect()
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_initialized():
                torch.cuda.empty_cache()


@dataclass(eq=False)
class Kept:
    """What kept lanes and columns share: a folder with a file per query, and how to make the stage itself.

    Attributes
    ----------
    name : str
        Of the stage.
    folder : Path
        Under the cache; its name holds the hash of all that the scores depend on.
    models : dict of str to int
        The stage's backbones.
    together : bool
        Whether it may be asked for several queries at a time; else the scores are on disk after every one.
    make : callable
        Returns the stage, fitted.
    shelf : Shelf
    """

    name: str
    folder: Path
    models: Mapping[str, int]
    together: bool
    make: Callable[[], Any]
    shelf: Shelf

    def fit(self, taxonomy: Taxonomy) -> None:
        """Do nothing: the stage is fitted where a score is missing."""

    def backbones(self) -> Mapping[str, int]:
        """Return the stage's own."""
        return self.models

    def _rows(self, names: Sequence[str], width: int, compute: Callable[[Any, list[int]], Float32]) -> Float32:
        """Return float32[n_names, width], from disk where it is there; `compute(stage, places)` makes the others."""
        found = {name: self._read(name, width) for name in names}
        left = [place for name, place in {name: i for i, name in enumerate(names)}.items() if found[name] is None]
        step = max(len(left), 1) if self.together else 1
        for start in range(0, len(left), step):
            places = left[start : start + step]
            for place, row in zip(places, self._made(places, compute), strict=True):
                found[names[place]] = row
                with atomic_path(self.folder / f"{names[place]}.npy") as path, path.open("wb") as stream:
                    np.save(stream, row, allow_pickle=False)
        rows = [row for row in map(found.get, names) if row is not None]
        return np.stack(rows) if rows else np.empty((0, width), dtype=np.float32)

    def _made(self, places: list[int], compute: Callable[[Any, list[int]], Float32]) -> Float32:
        """Return freshly scored rows; the stage is not held on to, so that another thread's can take its place."""
        with self.shelf.stage(self) as stage:
            rows = np.asarray(compute(stage, places), dtype=np.float32)
        if not np.isfinite(rows).all():
            raise RankerError(f"{self.name} gave a score that is not finite; nothing of it was kept")
        return rows

    def _read(self, name: str, width: int) -> Float32 | None:
        """Return one query's scores, None where they are not there or the file is damaged."""
        try:
            row: Float32 = np.load(self.folder / f"{name}.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return row if row.shape == (width,) and row.dtype == np.float32 else None


@dataclass(eq=False)
class KeptLane(Kept):
    """A lane whose scores are kept."""

    n_skills: int

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]."""
        names = [_hash(query.encode()) for query in queries]
        return self._rows(names, self.n_skills, lambda lane, places: lane.score([queries[i] for i in places]))


@dataclass(eq=False)
class KeptDerived(Kept):
    """A derived lane whose scores are kept, each under the hash of the base lane's."""

    base_lane: KeptLane | KeptDerived
    base: str

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]."""
        return self.smooth(self.base_lane.score(queries))

    def smooth(self, scores: Float32) -> Float32:
        """Return float32[n_queries, n_skills], given the base lane's scores."""
        names = [_hash(np.ascontiguousarray(row).tobytes()) for row in scores]
        return self._rows(names, scores.shape[1], lambda lane, places: lane.smooth(scores[places]))


@dataclass(eq=False)
class KeptColumn(Kept):
    """A column whose scores are kept, each under the hashes of its query and of its part of the pool."""

    def score(self, queries: Sequence[str], pool: Int32) -> Float32:
        """Return float32 of the shape of `pool`."""
        parts = [_hash(np.ascontiguousarray(rows, dtype=np.int32).tobytes()) for rows in pool]
        names = [f"{_hash(query.encode())}-{part}" for query, part in zip(queries, parts, strict=True)]
        return self._rows(
            names, pool.shape[1], lambda column, places: column.score([queries[i] for i in places], pool[places])
        )


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()[:20]


def kept_stages(
    config: SystemConfig, taxonomy: Taxonomy
) -> tuple[dict[str, KeptLane | KeptDerived], dict[str, KeptColumn], Shelf]:
    """Return the stages of a system with their scores kept on disk, and the shelf that holds the live one.

    Every stage is made once, without its model, so that what a stage refuses shows here.

    Raises
    ------
    RankerError
        As `lanes.registry.build_lanes` and `rerankers.registry.build_columns`.
    """
    shelf = Shelf()

    def maker(name: str) -> Callable[[], Lane | Column]:
        def make() -> Lane | Column:
            stage, parts = build_stage(config, name)
            for part in parts:
                try:
                    part.fit(taxonomy)
                except RankerError as error:
                    raise type(error)(f"{config.name}: {name}: {error}") from error
            return stage

        return make

    def common(spec: LaneConfig | ColumnConfig, stage: Lane | Column) -> dict[str, Any]:
        key = digest({**stage_key(config, spec, stage), "taxonomy": taxonomy.fingerprint})
        models = dict(stage.backbones())
        return {
            "name": spec.name,
            "folder": cache_dir() / "stages" / f"{spec.name}-{key[:16]}",
            "models": models,
            "together": hosted(spec) or not models,
            "make": maker(spec.name),
            "shelf": shelf,
        }

    lanes: dict[str, KeptLane | KeptDerived] = {}
    built = build_lanes(config.lanes)
    for spec in config.lanes:
        lane = built[spec.name]
        if isinstance(lane, DerivedLane):
            lanes[spec.name] = KeptDerived(**common(spec, lane), base_lane=lanes[lane.base], base=lane.base)
        else:
            lanes[spec.name] = KeptLane(**common(spec, lane), n_skills=len(taxonomy))
    made = build_columns(config.columns)
    ask_once(made.values())
    return lanes, {spec.name: KeptColumn(**common(spec, made[spec.name])) for spec in config.columns}, shelf
