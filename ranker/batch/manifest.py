"""The manifest: what a run was begun with. A restart with anything else is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ranker.batch.folders import Folder
from ranker.batch.part import Job
from ranker.batch.plan import Plan
from ranker.core.artifacts import digest, sha256_file
from ranker.core.config import CONFIG_DIR, PATHS, ColumnConfig, LaneConfig, SystemConfig
from ranker.core.errors import ArgumentError, InputError

FORMAT = 1
NAME = "_manifest.json"


def model_identity(config: SystemConfig) -> str:
    """Return a hash of what a system's answers depend on, without loading it.

    It covers lanes, pool, columns and text options, the files of every folder that they and the fusion name, and the
    version of this package. A model of a hub counts by its name, so give its revision in the config.
    """
    named = [config.fusion.checkpoint] if config.fusion.checkpoint else []
    stages: list[LaneConfig | ColumnConfig] = [*config.lanes, *config.columns]
    for stage in stages:
        named += [str(stage.options[key]) for key in PATHS if key in stage.options]
    project = CONFIG_DIR.parent
    files = []
    for name in dict.fromkeys(named):
        for folder in filter(Path.is_dir, (Path(name), project / "checkpoints" / name, project / name)):
            paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            files += [[path.relative_to(folder).as_posix(), sha256_file(path)] for path in paths]
            break
    try:
        release = version("graded-ranker")
    except PackageNotFoundError:
        release = ""
    return digest([config.digest, config.fusion.features, files, release])[:16]


def manifest(job: Job, plan: Plan, *, part_rows: int, config: SystemConfig, taxonomy: str) -> dict[str, Any]:
    """Return the manifest of a run; `taxonomy` is its fingerprint."""
    return {
        "format": FORMAT,
        "input": plan.fingerprint,
        "rows": plan.rows,
        "good_rows": plan.good,
        "parts": len(plan.parts),
        "options": {
            "mode": job.mode,
            "format": job.format,
            "id_column": job.columns.id,
            "text_column": job.columns.text,
            "top_k": job.top_k,
            "min_probability": job.min_probability,
            "part_rows": part_rows,
        },
        "system": config.name,
        "model": model_identity(config),
        "taxonomy": taxonomy,
    }


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != "options"} | dict(value.get("options", {}))


def begin(folder: Folder, now: dict[str, Any], place: str) -> None:
    """Write the manifest of a new run, or check that of one begun earlier.

    Raises
    ------
    ArgumentError
        If the folder holds a run with another input, other options, another model or taxonomy (each named with both
        values), or other files.
    InputError
        If its manifest cannot be read.
    """
    names = folder.names()
    if NAME not in names:
        if names:
            raise ArgumentError(f"--out {place} holds files but no {NAME}, such as {names[0]}; give an empty folder")
        folder.write(NAME, (json.dumps(now, indent=1) + "\n").encode())
        return
    with folder.open(NAME) as stream:
        try:
            before = json.loads(stream.read())
        except ValueError as error:
            raise InputError(f"{place}/{NAME} is no manifest ({error}); give another --out") from error
    old, new = _flat(before), _flat(now)
    differ = [f"{key} {old.get(key)!r}, now {new.get(key)!r}" for key in new if old.get(key) != new.get(key)]
    if differ:
        raise ArgumentError(
            f"--out {place} was begun with {'; '.join(differ)}; run it as it was begun, or give another --out"
        )
