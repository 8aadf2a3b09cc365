"""Where parts run: in this process, in several, or on the workers of a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing.connection import wait
from typing import Any

from ranker.batch.folders import open_folder
from ranker.batch.part import Advance, Job, Tags, tag_part
from ranker.batch.plan import Part
from ranker.core.errors import RankerError, missing_extra

BLOCKS = 1000  # most blocks that Ray is given; finished parts of a block that is run again are passed over


def run_here(job: Job, parts: Sequence[Part], advance: Advance) -> None:
    """Tag parts in this process, one after the other."""
    ranker = job.load()
    for part in parts:
        tag_part(job, ranker, part, advance)


@cache
def _loaded(job: Job) -> Tags:
    """Return this worker process's ranker."""
    return job.load()


def _end_with_parent() -> None:
    """Let a worker process end when the one that started it does, however it does."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(job: Job, part: Part) -> int:
    tag_part(job, _loaded(job), part)
    return part.rows


def run_processes(job: Job, parts: Sequence[Part], advance: Advance, workers: int) -> None:
    """Tag parts in several processes of this machine, each with its own ranker.

    Raises
    ------
    RankerError
        If a process dies, or what one of them raises.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(parts)), mp_context=context, initializer=_end_with_parent) as pool:
        futures = [pool.submit(_work, job, part) for part in parts]
        try:
            for future in as_completed(futures):
                advance(future.result())
        except BrokenProcessPool as error:
            raise RankerError(
                "a worker process died, perhaps for want of memory; finished parts are kept: run the same command "
                "again, with fewer --workers if it repeats itself"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


class RayWorker:
    """What each Ray actor holds: the ranker, loaded once."""

    def __init__(self, job: Job, parts: Sequence[Part]) -> None:
        self.job = job
        self.parts = parts
        self.ranker = job.load()

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[int]]:
        """Tag the parts of a batch that have no file yet; a worker that died may have written some."""
        done = []
        for i in map(int, batch["part"]):
            part = self.parts[i]
            if not open_folder(self.job.out).has(self.job.output(part)):
                tag_part(self.job, self.ranker, part)
            done.append(part.rows)
        return {"rows": done}


def run_ray(job: Job, parts: Sequence[Part], advance: Advance, workers: int) -> None:
    """Tag parts on a Ray cluster: the one that RAY_ADDRESS names, else one started on this machine.

    Source and output must be places that every worker can reach, and this package must be installed there.

    Raises
    ------
    PrerequisiteError
        If Ray is not installed.
    RankerError
        What a worker raises. Workers that die are started again by Ray, and their parts with them.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise missing_extra("ray", "scale") from error
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    numbers = [{"part": i} for i in range(len(parts))]
    done = ray.data.from_items(numbers, override_num_blocks=min(len(parts), BLOCKS)).map_batches(
        RayWorker,
        fn_constructor_args=(job, parts),
        batch_size=1,
        concurrency=min(workers, len(parts)),
    )
    try:
        for row in done.iter_rows():
            advance(row["rows"])
    except ray.exceptions.RayError as error:
        raise RankerError(f"a Ray worker failed: {error}") from error
