"""Systems as YAML: one file per system, validated, with errors that list what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from ranker.core.artifacts import digest
from ranker.core.errors import ArgumentError, ResourceError

CONFIG_DIR = Path(__file__).resolve().parents[2] / "configs"
BASE = "base"  # the name of the pool's own score, where columns are named
PATHS = ("checkpoint", "model", "adapter", "examples")  # options of lanes and columns that may name a folder or file
IN_FOLDER = "config.yaml"  # what a folder that holds a whole system calls its config


@dataclass(frozen=True)
class TaxonomyConfig:
    """Which taxonomy a system ranks: a source, where it lies, and an optional extension CSV."""

    source: str = "auto"
    path: str | None = None
    extension: str | None = None


@dataclass(frozen=True)
class LaneConfig:
    """One lane: its name (the feature prefix), its family, and the family's own options."""

    name: str
    family: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PoolConfig:
    """The pool: the top `size` of the weighted sum of per-query z-scores of the named lanes."""

    size: int = 500
    weights: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ColumnConfig:
    """One reranker column: name, family, how many of the pool's best it scores, and the family's options.

    `after` says what "best" means: weights of z-scores of earlier columns and of "base"; empty for the base score. In
    YAML the name of one column is enough.
    """

    name: str
    family: str
    depth: int = 100
    after: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FusionConfig:
    """How the pool is ordered.

    `checkpoint` names a trained bag (a folder, or one under checkpoints/). Without one, `order` names the column that
    orders what it scored, before the rest; without either the pool's own score ranks.
    """

    checkpoint: str | None = None
    features: tuple[str, ...] | None = None
    order: str | None = None


@dataclass(frozen=True)
class SystemConfig:
    """A whole system. `digest` identifies everything that changes a feature's value.

    `folder` is where the config was read from, "" for one that was not. Paths that lie in it are absolute in the other
    fields, and count as they were written in the digest: a system keeps it wherever its folder is moved.
    """

    name: str
    lanes: tuple[LaneConfig, ...]
    pool: PoolConfig
    taxonomy: TaxonomyConfig = TaxonomyConfig()
    columns: tuple[ColumnConfig, ...] = ()
    fusion: FusionConfig = FusionConfig()
    strip_bullets: bool = True
    top_k: int = 100
    folder: str = ""

    @property
    def stages(self) -> tuple[LaneConfig | ColumnConfig, ...]:
        """Return the lanes, then the columns."""
        return (*self.lanes, *self.columns)

    @property
    def digest(self) -> str:
        """Hash of lanes, pool, columns and text options: what a trained bag depends on."""
        value = asdict(self)
        for key in ("name", "taxonomy", "fusion", "top_k", "folder"):
            value.pop(key)
        if self.folder:
            for stage in (*value["lanes"], *value["columns"]):
                for key in PATHS:
                    if isinstance(stage["options"].get(key), str):
                        stage["options"][key] = stage["options"][key].removeprefix(f"{self.folder}/")
        return digest(value)[:16]


def _build(kind: type, value: Any, where: str, *, free: bool = False) -> Any:
    """Build a dataclass from a mapping; unknown keys are an error, or become `options` where `free`."""
    if not isinstance(value, dict):
        raise ArgumentError(f"{where}: expected a mapping, found {type(value).__name__}")
    known = [f.name for f in dataclass_fields(kind) if f.name not in {"options", "folder"}]
    given = {key: item for key, item in value.items() if key in known}
    rest = {key: item for key, item in value.items() if key not in known}
    if free:
        given["options"] = rest
    elif rest:
        raise ArgumentError(f"{where}: unknown key {', '.join(map(repr, rest))}; known keys: {', '.join(known)}")
    for name, item in given.items():
        _check_type(item, get_type_hints(kind)[name], f"{where}: {name}")
    try:
        return kind(**given)
    except TypeError as error:
        required = [name for name in known if name not in given]
        raise ArgumentError(f"{where}: {error}; keys that may be missing: {', '.join(required)}") from error


def _check_type(item: Any, wanted: Any, where: str) -> None:
    """Raise where a value from YAML is not what its field holds; lists stand for tuples, and true is no number."""
    if wanted == dict[str, float]:
        good = isinstance(item, dict) and all(
            isinstance(k, str) and type(v) in {int, float} and math.isfinite(v) for k, v in item.items()
        )
    elif get_origin(wanted) is UnionType:  # the only unions are "something or None"
        wanted = get_args(wanted)[0]
        if item is None:
            return
        good = isinstance(item, str if wanted is str else list | tuple)
        good = good and (wanted is str or all(isinstance(part, str) for part in item))
    elif wanted in {str, int, bool}:
        good = type(item) is wanted
    else:
        good = True  # dataclasses, built and checked on their own
    if not good:
        name = getattr(wanted, "__name__", str(wanted)) if wanted in {str, int, bool} else str(wanted)
        raise ArgumentError(f"{where}: expected {name}, found {item!r}")


def _spelled_out(column: Any) -> Any:
    """Return a column's mapping with `after: NAME` written as weights."""
    if isinstance(column, dict) and isinstance(column.get("after"), str):
        return {**column, "after": {column["after"]: 1.0}}
    return column


def _check_cascade(columns: Sequence[ColumnConfig], where: str) -> None:
    """Raise where a column has no depth, or comes after something that is no earlier column."""
    earlier = [BASE]
    for column in columns:
        if column.depth < 1:
            raise ArgumentError(f"{where}: column {column.name}: depth must be at least 1, found {column.depth}")
        if column.name == BASE:
            raise ArgumentError(f"{where}: a column may not be called {BASE!r}, the name of the pool's own score")
        unknown = sorted(set(column.after) - set(earlier))
        if unknown:
            raise ArgumentError(
                f"{where}: column {column.name}: after: {', '.join(unknown)} is no column before it; "
                f"allowed: {', '.join(earlier)}"
            )
        earlier.append(column.name)


def parse_config(value: Any, where: str = "config") -> SystemConfig:
    """Validate a mapping as a system.

    Raises
    ------
    ArgumentError
        Unknown or missing keys, wrong types, a repeated lane name, a pool weight for a lane that does not exist.
    """
    if not isinstance(value, dict):
        raise ArgumentError(f"{where}: expected a mapping with name, lanes and pool")
    value = dict(value)
    parts: dict[str, Any] = {}
    for key, kind in (("taxonomy", TaxonomyConfig), ("pool", PoolConfig), ("fusion", FusionConfig)):
        if key in value:
            parts[key] = _build(kind, value.pop(key), f"{where}: {key}")
    for key, entry in (("lanes", LaneConfig), ("columns", ColumnConfig)):
        items = value.pop(key, [])
        if not isinstance(items, list):
            raise ArgumentError(f"{where}: {key} must be a list")
        if entry is ColumnConfig:
            items = [_spelled_out(item) for item in items]
        parts[key] = tuple(_build(entry, item, f"{where}: {key}[{i}]", free=True) for i, item in enumerate(items))
    if "pool" not in parts:
        parts["pool"] = PoolConfig()
    features = getattr(parts.get("fusion"), "features", None)
    if features is not None:
        parts["fusion"] = replace(parts["fusion"], features=tuple(features))
    config: SystemConfig = _build(SystemConfig, {**value, **parts}, where)
    names = [lane.name for lane in config.lanes] + [column.name for column in config.columns]
    if not config.lanes:
        raise ArgumentError(f"{where}: at least one lane is needed")
    if len(set(names)) < len(names):
        raise ArgumentError(f"{where}: lane and column names must differ; found {names}")
    _check_cascade(config.columns, where)
    order, columns = config.fusion.order, [column.name for column in config.columns]
    if order is not None and (config.fusion.checkpoint is not None or order not in columns):
        raise ArgumentError(
            f"{where}: fusion: order: {order!r}: names a column, and only where there is no checkpoint; "
            f"columns: {', '.join(columns) or 'none'}"
        )
    unknown = set(config.pool.weights) - {lane.name for lane in config.lanes}
    if unknown or not config.pool.weights:
        raise ArgumentError(
            f"{where}: pool weights must name lanes ({', '.join(lane.name for lane in config.lanes)}); "
            f"found {sorted(unknown) or 'none'}"
        )
    if config.pool.size < 1 or config.top_k < 1:
        raise ArgumentError(f"{where}: pool size and top_k must be at least 1")
    return config


def _located(config: SystemConfig, folder: str) -> SystemConfig:
    """Return the config with the paths that lie in its folder made absolute; others stay as they are."""

    def here(path: Any) -> Any:
        inside = f"{folder}/{path}"
        return inside if isinstance(path, str) and path and Path(inside).exists() else path

    def stage(entry: Any) -> Any:
        options = {key: here(value) if key in PATHS else value for key, value in entry.options.items()}
        return replace(entry, options=options)

    taxonomy, fusion = config.taxonomy, config.fusion
    return replace(
        config,
        lanes=tuple(map(stage, config.lanes)),
        columns=tuple(map(stage, config.columns)),
        taxonomy=replace(taxonomy, path=here(taxonomy.path), extension=here(taxonomy.extension)),
        fusion=replace(fusion, checkpoint=here(fusion.checkpoint)),
        folder=folder,
    )


def load_config(name_or_path: str | Path) -> SystemConfig:
    """Load a system by the name of a file in configs/, or by the path of a YAML file or of a folder with config.yaml.

    Paths in it (taxonomy, checkpoints, models) are looked for beside the file first, so that a folder can hold a whole
    system.

    Raises
    ------
    ResourceError
        If there is no such config; the message lists those there are.
    ArgumentError
        If it is not valid.
    """
    path = CONFIG_DIR / f"{name_or_path}.yaml"
    if not path.is_file():  # a name comes before a folder of that name
        path = Path(name_or_path) / IN_FOLDER if Path(name_or_path).is_dir() else Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"} or not path.is_file():
        there = ", ".join(sorted(p.stem for p in CONFIG_DIR.glob("*.yaml")))
        raise ResourceError(
            f"no config {name_or_path}; there are: {there}; or give the path of a YAML file or of a folder that holds "
            f"{IN_FOLDER}"
        )
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} is not valid YAML: {error}") from error
    return _located(parse_config(value, where=path.name), path.parent.absolute().as_posix())
