"""A whole run: plan, manifest, the parts that are missing, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ranker.batch.engines import run_here, run_processes, run_ray
from ranker.batch.folders import open_folder
from ranker.batch.manifest import begin, manifest
from ranker.batch.part import Advance, Job
from ranker.batch.plan import input_files, make_plan
from ranker.batch.rows import Columns
from ranker.core.config import load_config
from ranker.core.errors import ArgumentError
from ranker.core.sources import load_taxonomy

ENGINES = ("local", "ray")

Progress = Callable[[int, int], AbstractContextManager[Advance]]


def tag_rows(
    source: str,
    out: str,
    *,
    system: str,
    mode: str,
    output_format: str,
    columns: Columns,
    top_k: int,
    min_probability: float | None,
    part_rows: int,
    engine: str,
    workers: int,
    progress: Progress,
) -> dict[str, Any]:
    """Tag every row of the input that has no answer in the output yet.

    Parameters
    ----------
    source : str
        A file or folder of JSON Lines, CSV or Parquet, or a URL of either.
    out : str
        A folder, or its URL. It is made where it is missing.
    system, mode, output_format, columns, top_k, min_probability
        See `ranker.batch.part.Job`.
    part_rows : int
        Rows of one output file, at most.
    engine : {"local", "ray"}
    workers : int
        Processes or Ray actors, each with its own ranker.
    progress : callable
        Given the rows in all and those done earlier, a context manager of a function that is told the rows done since.

    Returns
    -------
    dict
        rows, tagged, bad, parts, parts_before (those of earlier runs), seconds, rows_per_second (of this run; None
        where nothing was left to do), out.

    Raises
    ------
    ArgumentError
        If the output lies in the input.
    RankerError
        See `make_plan`, `begin` and the engines.
    """
    begun = time.perf_counter()
    if f"{out}/".startswith(f"{source}/"):
        raise ArgumentError(f"--out {out} lies in {source}: its files would be read as input; give another --out")
    plan = make_plan(source, columns, part_rows)
    config = load_config(system)
    job = Job(input_files(source)[0], out, system, mode, output_format, columns, top_k, min_probability)
    taxonomy = load_taxonomy(config.taxonomy).fingerprint
    folder = open_folder(out)
    begin(folder, manifest(job, plan, part_rows=part_rows, config=config, taxonomy=taxonomy), out)
    there = set(folder.names())
    todo = [part for part in plan.parts if job.output(part) not in there]
    left = sum(part.rows for part in todo)
    if todo:
        with progress(plan.rows, plan.rows - left) as advance:
            if engine == "ray":
                run_ray(job, todo, advance, workers)
            elif workers > 1:
                run_processes(job, todo, advance, workers)
            else:
                run_here(job, todo, advance)
    folder.sweep()
    seconds = time.perf_counter() - begun
    bad = 0
    for name in folder.names():
        if name.startswith("_bad/"):
            with folder.open(name) as stream:
                bad += sum(1 for _ in stream)
    return {
        "rows": plan.rows,
        "tagged": plan.rows - bad,
        "bad": bad,
        "parts": len(plan.parts),
        "parts_before": len(plan.parts) - len(todo),
        "seconds": round(seconds, 2),
        "rows_per_second": round(left / seconds, 2) if todo else None,
        "out": out,
    }
