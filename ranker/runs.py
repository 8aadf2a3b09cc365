"""Runs: what a challenge file says, set beside graded tasks. Read by the board and the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ranker.core import metrics
from ranker.core.errors import ArgumentError, InputError
from ranker.core.metrics import Int8
from ranker.core.tasks import OFFICIAL_TASKS, GradedTask
from ranker.submit import faults, read_submission

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Run:
    """One system's scores.

    Attributes
    ----------
    name : str
        The model's name in the file.
    tasks : mapping
        By task and query id: score by skill, each skill as the last part of its URI.
    """

    name: str
    tasks: Mapping[str, Mapping[str, Scores]]


@dataclass(frozen=True)
class RunGrades:
    """A run on one task, as grades in ranked order: see `ranker.core.metrics`.

    Attributes
    ----------
    order : tuple of tuple of str
        Skills by query, best first: score descending, then skill.
    grades, ideal : int8[n_queries, depth]
        Grade at each rank, and all judged grades in descending order.
    missing : int
        Queries of the task that the run has no row for; they count as empty rankings.
    """

    order: tuple[tuple[str, ...], ...]
    grades: Int8
    ideal: Int8
    missing: int


def tail(uri: str) -> str:
    """Return the last part of a URI: what stands for a skill in a challenge file."""
    return uri.rsplit("/", 1)[-1]


def read_run(file: Path) -> Run:
    """Read a challenge file, a zip or its JSON alone.

    Raises
    ------
    ResourceError, InputError
        If it cannot be read, holds several models, or a score or count is not one. Ids of skills that are no ESCO ids
        are accepted: an organisation may rank a taxonomy of its own.
    """
    value = read_submission(file)
    wrong = [fault for fault in faults(value) if "short id" not in fault.fault and "whole URI" not in fault.fault]
    if wrong:
        place, what = wrong[0]
        raise InputError(
            f"{file} is no challenge file: {place or '/'}: {what} ({len(wrong)} fault(s)); "
            f"python -m ranker.submit --validate {file} lists all"
        )
    ((name, tasks),) = value.items()
    return Run(name.strip(), {task: _tails(languages) for task, languages in tasks.items()})


def _tails(languages: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    (payload,) = languages.values()
    return {query: {tail(skill): float(s) for skill, s in row.items()} for query, row in payload["scores"].items()}


def read_runs(files: Sequence[Path]) -> dict[str, Run]:
    """Read several runs by name; where two models share a name, the file's stem is added.

    Raises
    ------
    ArgumentError
        If a name is still not unique.
    """
    runs = [read_run(file) for file in files]
    shared = Counter(run.name for run in runs)
    names = [
        run.name if shared[run.name] == 1 else f"{run.name} ({file.stem})"
        for run, file in zip(runs, files, strict=True)
    ]
    if len(set(names)) < len(names):
        raise ArgumentError(f"two runs share model and file name: {', '.join(map(str, files))}; rename a file")
    return {name: Run(name, run.tasks) for name, run in zip(names, runs, strict=True)}


def task_names(task: str) -> frozenset[str]:
    """Return the names a task goes by: its own and, for an official one, its key and official name."""
    return frozenset({task}).union(
        *({official.key, official.name} for official in OFFICIAL_TASKS if task in {official.key, official.name})
    )


def rows_of(run: Run, task: str) -> Mapping[str, Scores] | None:
    """Return a run's scores on a task by any of its names, None where it has none."""
    return next((run.tasks[name] for name in sorted(task_names(task)) if name in run.tasks), None)


def ranked(scores: Scores) -> list[str]:
    """Return the skills best first: score descending, then skill."""
    return sorted(scores, key=lambda skill: (-scores[skill], skill))


def grade_run(rows: Mapping[str, Scores], task: GradedTask) -> RunGrades:
    """Set a run beside the qrels of a task.

    Parameters
    ----------
    rows : mapping
        Scores by query id and skill.
    task : GradedTask
        Skills are matched by the last part of their URI.

    Raises
    ------
    InputError
        If the run has none of the task's queries.
    """
    missing = [query for query in task.query_ids if query not in rows]
    if len(missing) == len(task):
        raise InputError(f"the run has none of the {len(task)} queries of {task.name}, such as {missing[0]!r}")
    order = [ranked(rows.get(query, {})) for query in task.query_ids]
    judged = [{tail(uri): grade for uri, grade in task.qrels[query].items()} for query in task.query_ids]
    return RunGrades(
        order=tuple(map(tuple, order)),
        grades=grades_in_order(order, judged),
        ideal=metrics.ideal_grades([list(known.values()) for known in judged]),
        missing=len(missing),
    )


def grades_in_order(order: Sequence[Sequence[str]], judged: Sequence[Mapping[str, int]]) -> Int8:
    """Return int8[n_queries, depth]: the grade at each rank, `UNJUDGED` or `ABSENT` as in `ranker.core.metrics`.

    The matrix is at least as wide as the metrics' window, so that every metric reads the ranks it speaks of.
    """
    depth = max(metrics.WINDOW, *map(len, order)) if order else metrics.WINDOW
    grades = np.full((len(order), depth), metrics.ABSENT, dtype=np.int8)
    for query, (skills, known) in enumerate(zip(order, judged, strict=True)):
        grades[query, : len(skills)] = [known.get(skill, metrics.UNJUDGED) for skill in skills]
    return grades
