"""Tell a system that knew the public answers from one that did not: `python -m ranker.screen`.

Public data sets name a few right skills for each text; a judge finds others that are just as right. A system that never
saw the public answers has little reason to put them before the others. One that did puts them first. The figure is the
probability that a public skill stands before another skill of grade 4 on the same query, ties counted one half: the
Mann-Whitney statistic over the number of pairs (Mann and Whitney 1947), which is the area under the ROC curve. About
one half is clean, one is leaked.

The other sign is a top that holds the public skills and nothing else: on a query with k of them, the first k ranks.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from ranker.core import metrics
from ranker.core.cli import as_float, emit, note, parser, run, say, table
from ranker.core.errors import EXIT_OK, InputError
from ranker.core.sentences import read_sentences
from ranker.core.tasks import SPLITS, GradedTask, load_tasks
from ranker.core.text import normalise
from ranker.runs import Run, Scores, ranked, read_run, rows_of, tail, task_names

THRESHOLD = 0.9
MIN_QUERIES = 5  # fewer than this decide nothing
CLEAN, LEAKED, UNDECIDED = "clean", "leaked", "undecided"


@dataclass(frozen=True)
class Gold:
    """The public answer to one text; `task` is "" where the source does not say."""

    task: str
    query: str
    text: str
    skills: frozenset[str]


@dataclass(frozen=True)
class Screen:
    """What one task says.

    Attributes
    ----------
    task : str
        Its name.
    queries : int
        Queries with a public skill and another one of grade 4, which alone can be read.
    pairs : int
        Pairs of a public skill and another one of grade 4.
    probability : float
        Mean over these queries; NaN where there is none.
    low, high : float
        95 % bootstrap interval over queries.
    filled : float
        Share of the queries with two public skills or more whose top holds these and no other; NaN where there is none.
    filled_queries : int
        How many queries that share is of.
    verdict : str
        "leaked", "clean", or "undecided" where both figures stand on too few queries.
    """

    task: str
    queries: int
    pairs: int
    probability: float
    low: float
    high: float
    filled: float
    filled_queries: int
    verdict: str


def precedence(scores: Scores, first: frozenset[str], second: frozenset[str]) -> float:
    """Return the probability that a skill of the first set outranks one of the second, ties one half.

    A skill without a score stands behind all that have one, and ties with the others that have none. NaN where a set
    is empty.

    Examples
    --------
    >>> precedence({"a": 3.0, "b": 2.0, "c": 1.0}, frozenset("ac"), frozenset("b"))
    0.5
    """
    if not first or not second:
        return math.nan
    values = [scores.get(skill, -math.inf) for skills in (sorted(first), sorted(second)) for skill in skills]
    ranks = stats.rankdata(values)[: len(first)]
    return float((ranks.sum() - len(first) * (len(first) + 1) / 2) / (len(first) * len(second)))


def fills_top(scores: Scores, gold: frozenset[str]) -> bool:
    """Whether the first k ranks hold the k gold skills and nothing else."""
    return set(ranked(scores)[: len(gold)]) == gold


def verdict(probability: float, queries: int, filled: float, filled_queries: int, *, threshold: float) -> str:
    """Return "leaked" where one of the two figures reaches the threshold on enough queries, else "clean".

    "undecided" where neither stands on `MIN_QUERIES` queries.
    """
    read = [value for value, n in ((probability, queries), (filled, filled_queries)) if n >= MIN_QUERIES]
    if not read:
        return UNDECIDED
    return LEAKED if max(read) >= threshold else CLEAN


def screen_task(
    rows: Mapping[str, Scores], task: GradedTask, gold: Mapping[str, frozenset[str]], *, threshold: float = THRESHOLD
) -> Screen:
    """Screen a system on one task.

    Parameters
    ----------
    rows : mapping
        The system's scores by query id and skill, each skill as the last part of its URI.
    task : GradedTask
        Its grade-4 skills are those that a judge or people found.
    gold : mapping
        The public skills by query id, as in `rows`; a query without an entry is left out.
    threshold : float
        From which a figure reads as leaked.
    """
    values, pairs, filled = [], 0, []
    for query in task.query_ids:
        public = gold.get(query, frozenset())
        scores = rows.get(query, {})
        best = frozenset(tail(uri) for uri, grade in task.qrels[query].items() if grade == metrics.GOLD)
        others = best - public
        if public and others:
            values.append(precedence(scores, public, others))
            pairs += len(public) * len(others)
        if len(public) > 1:  # a good system fills a top of one honestly
            filled.append(fills_top(scores, public))
    array = np.array(values)
    probability = metrics.mean(array)
    low, high = metrics.confidence_interval({task.name: array})
    share = float(np.mean(filled)) if filled else math.nan
    return Screen(
        task=task.name,
        queries=len(values),
        pairs=pairs,
        probability=probability,
        low=low,
        high=high,
        filled=share,
        filled_queries=len(filled),
        verdict=verdict(probability, len(values), share, len(filled), threshold=threshold),
    )


def read_gold(source: Path, split: str) -> list[Gold]:
    """Read public answers: a file of sentences with `_id`, `text` and `skills`, or a folder in BEIR layout.

    In a folder every skill with a grade above 0 is a public answer.

    Raises
    ------
    ResourceError, InputError
        If it cannot be read.
    """
    if source.is_dir():
        return [
            Gold(task.name, query, text, frozenset(tail(uri) for uri, grade in task.qrels[query].items() if grade > 0))
            for task in load_tasks(source, split)
            for query, text in zip(task.query_ids, task.queries, strict=True)
        ]
    return [
        Gold("", str(row.get("_id", "")), str(row.get("text", "")), frozenset(map(tail, row["skills"])))
        for row in read_sentences(source)
    ]


def gold_of(task: GradedTask, gold: Sequence[Gold]) -> dict[str, frozenset[str]]:
    """Return the public skills of a task's queries, found by query id, else by text."""
    names = {"", *task_names(task.name)}
    rows = [row for row in gold if row.task in names and row.skills]
    by_id = {row.query: row.skills for row in rows}
    by_text = {text: row.skills for row in rows if (text := normalise(row.text))}
    found = {}
    for query, text in zip(task.query_ids, task.queries, strict=True):
        skills = by_id.get(query) or by_text.get(normalise(text))
        if skills:
            found[query] = skills
    return found


def screen(
    system: Run, tasks: Sequence[GradedTask], gold: Sequence[Gold], *, threshold: float = THRESHOLD
) -> list[Screen]:
    """Screen a system on every task that it, the qrels and the public answers share.

    Raises
    ------
    InputError
        If there is no such task.
    """
    found = []
    for task in tasks:
        rows, public = rows_of(system, task.name), gold_of(task, gold)
        if rows is None or not public:
            note(f"{task.name}: not screened: {'not in the file' if rows is None else 'no query has a public answer'}")
        else:
            found.append(screen_task(rows, task, public, threshold=threshold))
    if not found:
        raise InputError(
            f"nothing to screen: file, qrels and gold share no task; the file has {', '.join(system.tasks)}, "
            f"the qrels {', '.join(task.name for task in tasks)}"
        )
    return found


def _probability(value: str) -> float:
    number = as_float(value)
    if not 0.5 < number <= 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number above 0.5 and at most 1")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 5 where a task reads as leaked."""
    arguments = parser(
        "ranker.screen",
        "Tell whether a challenge file puts the public answers before skills that are just as right.",
        "python -m ranker.screen submission.zip --gold sentences.jsonl --qrels my_tasks",
    )
    add = arguments.add_argument
    add("file", type=Path, help="challenge file")
    add("--gold", type=Path, nargs="+", required=True, help="public answers: JSON lines (_id, text, skills) or BEIR")
    add("--qrels", required=True, help="graded tasks: a folder in BEIR layout, or 'hub'")
    add("--split", default="validation", choices=SPLITS)
    add("--threshold", type=_probability, default=THRESHOLD, help=f"reads as leaked from here (default: {THRESHOLD})")
    add("--json", action="store_true", help="print one JSON object instead of a table")
    given = arguments.parse_args(argv)
    gold = [row for source in given.gold for row in read_gold(source, given.split)]
    system = read_run(given.file)
    found = screen(system, load_tasks(given.qrels, given.split), gold, threshold=given.threshold)
    leaked = [one.task for one in found if one.verdict == LEAKED]
    if given.json:
        rows = [{k: None if v != v else v for k, v in asdict(one).items()} for one in found]  # JSON has no NaN
        emit({"model": system.name, "threshold": given.threshold, "leaked": leaked, "tasks": rows})
    else:
        header = ["task", "queries", "pairs", "P(gold first)", "95 %", "top = gold", "of", "verdict"]
        cells = [
            (
                *(one.task, one.queries, one.pairs, one.probability, f"{one.low:.2f}-{one.high:.2f}"),
                *(one.filled, one.filled_queries, one.verdict),
            )
            for one in found
        ]
        say(f"{system.name}: leaked from {given.threshold:g}, on {MIN_QUERIES} queries or more; about 0.5 is clean")
        say(table(cells, header))
    return InputError.exit_code if leaked else EXIT_OK


if __name__ == "__main__":
    raise SystemExit(run(main))
