"""Grades that somebody gave: read from a folder or from a manifest, and set side by side pair by pair.

A manifest is a CSV that people grade blind: it holds text and skill of each pair and an empty column for the grade, and
nothing that tells what anybody gave before. The same as a page opens in any browser and needs no network.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ranker.core.artifacts import atomic_path
from ranker.core.cli import note
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.metrics import GRADES
from ranker.core.shares import largest_remainder
from ranker.core.tasks import GradedTask, load_tasks
from ranker.core.taxonomy import Taxonomy
from ranker.runs import tail, task_names

COLUMNS = ("task", "query_id", "skill_id", "query", "label", "description", "grade")
MAX_PROBLEMS = 10


class Pair(NamedTuple):
    """A query and a skill, the latter as the last part of its URI."""

    query: str
    skill: str


Labels = Mapping[str, Mapping[Pair, int]]  # by task


class Item(NamedTuple):
    """A pair to be graded, as a row of a manifest without its grade."""

    task: str
    query_id: str
    skill_id: str
    query: str
    label: str
    description: str


@dataclass(frozen=True)
class Aligned:
    """The pairs that several people or judges graded.

    Attributes
    ----------
    grades : int64[n_sources, n_pairs]
        A row per source.
    task, query : int64[n_pairs]
        Number of the pair's task, and of its query over all tasks.
    """

    grades: NDArray[np.int64]
    task: NDArray[np.int64]
    query: NDArray[np.int64]


# --- reading ---------------------------------------------------------------------------------------------------------


def read_labels(source: Path, split: str = "validation") -> Labels:
    """Read grades from a folder in BEIR layout or a manifest that was filled in.

    Raises
    ------
    ResourceError, InputError
        If it cannot be read or holds no grade. A row that is no grade is named on standard error and left out.
    """
    if not source.is_dir():
        return _read_manifest(source)
    tasks = load_tasks(source, split)
    _name([problem for task in tasks for problem in task.problems])
    return {
        task.name: {
            Pair(query, tail(uri)): grade for query, judged in task.qrels.items() for uri, grade in judged.items()
        }
        for task in tasks
    }


def _name(problems: Sequence[str]) -> None:
    for problem in problems[:MAX_PROBLEMS]:
        note(problem)
    if len(problems) > MAX_PROBLEMS:
        note(f"and {len(problems) - MAX_PROBLEMS} more")


def _read_manifest(source: Path) -> Labels:
    try:
        rows = csv.DictReader(io.StringIO(source.read_text(encoding="utf-8-sig"), newline=""))
        missing = {"task", "query_id", "skill_id", "grade"}.difference(rows.fieldnames or ())
        if missing:
            raise InputError(f"{source}: column missing: {', '.join(sorted(missing))}; a manifest has {COLUMNS}")
        found: dict[str, dict[Pair, int]] = {}
        problems, empty = [], 0
        for row in rows:
            grade = (row["grade"] or "").strip()
            if not grade:
                empty += 1
            elif grade not in map(str, GRADES):
                problems.append(f"{source}, line {rows.line_num}: {grade!r} is not a grade; allowed: 0, 1, 2, 3, 4")
            else:
                found.setdefault(row["task"], {})[Pair(row["query_id"], tail(row["skill_id"]))] = int(grade)
    except OSError as error:
        raise ResourceError(f"cannot read {source}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{source} is not a UTF-8 CSV ({error}); save it as UTF-8, with commas") from error
    _name(problems)
    if empty:
        note(f"{source}: {empty} pairs are not graded yet")
    if not found:
        raise InputError(f"{source} holds no grade; fill in the column 'grade' with 0 to 4")
    return found


def _shared_tasks(sources: Sequence[Labels]) -> list[list[str]]:
    """Return, for each task that all sources have, its name in each; single tasks match whatever they are called."""
    if all(len(source) == 1 for source in sources):
        return [[next(iter(source)) for source in sources]]
    shared = []
    for name in sources[0]:
        names = [next((n for n in source if n in task_names(name)), None) for source in sources]
        if None not in names:
            shared.append([n for n in names if n is not None])
    return shared


def align(sources: Sequence[Labels]) -> Aligned:
    """Return the grades of the pairs that every source has, in a fixed order.

    Raises
    ------
    InputError
        If there is no such pair.
    """
    grades: list[list[int]] = []
    tasks: list[int] = []
    queries: list[int] = []
    numbers: dict[tuple[int, str], int] = {}
    for number, names in enumerate(_shared_tasks(sources)):
        parts = [source[name] for source, name in zip(sources, names, strict=True)]
        for pair in sorted(set(parts[0]).intersection(*parts[1:])):
            grades.append([part[pair] for part in parts])
            tasks.append(number)
            queries.append(numbers.setdefault((number, pair.query), len(numbers)))
    if not grades:
        raise InputError("the labels share no pair of query and skill; they must name the same tasks and queries")
    return Aligned(np.array(grades, dtype=np.int64).T, np.array(tasks), np.array(queries))


# --- manifests -------------------------------------------------------------------------------------------------------


def draw_items(
    tasks: Sequence[GradedTask], taxonomy: Taxonomy, *, per_grade: int, seed: int = 0
) -> tuple[list[Item], dict[int, int]]:
    """Draw pairs to be graded again, the same number of each grade, shared over the tasks in proportion.

    Parameters
    ----------
    tasks : sequence of GradedTask
        Whose grades decide the strata, and are not passed on.
    taxonomy : Taxonomy
        Gives label and description; a skill that it lacks is not drawn.
    per_grade : int
        Pairs of each grade; a grade that has fewer gives all it has.
    seed : int
        The same seed draws the same pairs in the same order.

    Returns
    -------
    items : list of Item
        In random order, but the pairs of one query together, so that its text is read once.
    drawn : dict of int to int
        Pairs by grade.
    """
    rng = random.Random(seed)
    rows = {tail(uri): row for row, uri in enumerate(taxonomy.uri)}
    texts = {(t, q): text for t, task in enumerate(tasks) for q, text in zip(task.query_ids, task.queries, strict=True)}
    strata: dict[tuple[int, int], list[tuple[int, str, str]]] = {
        (grade, t): [] for grade in GRADES for t in range(len(tasks))
    }
    for t, task in enumerate(tasks):
        for query in task.query_ids:
            for uri, grade in sorted(task.qrels[query].items()):
                if tail(uri) in rows:
                    strata[grade, t].append((t, query, tail(uri)))
    chosen: list[tuple[int, str, str]] = []
    drawn: dict[int, int] = {}
    for grade in GRADES:
        parts = [strata[grade, t] for t in range(len(tasks))]
        sizes = list(map(len, parts))
        drawn[grade] = min(per_grade, sum(sizes))
        for part, share in zip(parts, largest_remainder(sizes, drawn[grade]), strict=True):
            chosen += rng.sample(part, share)
    place = {key: rng.random() for key in sorted({(t, query) for t, query, _ in chosen})}
    rng.shuffle(chosen)
    chosen.sort(key=lambda pair: place[pair[:2]])
    items = [
        Item(
            task=tasks[t].name,
            query_id=query,
            skill_id=skill,
            query=texts[t, query],
            label=taxonomy.label[rows[skill]],
            description=taxonomy.description[rows[skill]],
        )
        for t, query, skill in chosen
    ]
    return items, drawn


def write_manifest(out: Path, items: Sequence[Item]) -> None:
    """Write a manifest, a CSV or a page by the file's ending.

    Raises
    ------
    ArgumentError
        If the ending is neither .csv nor .html.
    ResourceError
        If the file cannot be written.
    """
    if out.suffix not in {".csv", ".html"}:
        raise ArgumentError(f"{out}: a manifest is a .csv or a .html")
    with atomic_path(out) as path:
        if out.suffix == ".html":
            page = resources.files("ranker").joinpath("templates", "grade.html").read_text(encoding="utf-8")
            data = json.dumps({"columns": COLUMNS, "items": items}, ensure_ascii=False)
            # A text must not be able to end the script it stands in.
            path.write_text(page.replace("__DATA__", data.replace("<", "\\u003c")), encoding="utf-8")
        else:
            # With a byte order mark spreadsheets take the file for what it is, UTF-8.
            with path.open("w", encoding="utf-8-sig", newline="") as stream:
                writer = csv.writer(stream, lineterminator="\n")
                writer.writerow(COLUMNS)
                writer.writerows([*item, ""] for item in items)
