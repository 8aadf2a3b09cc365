"""Read a board: several systems on the same graded tasks, and what their order rests on: `python -m ranker.board`.

Graded nDCG@100 stands beside binary MAP, which knows gold skills alone: where the two orders differ, the systems differ
in what they put into the other slots of the window. Every pair of neighbours on the board is compared by a paired
bootstrap, with what the queries at hand can show at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ranker.core import metrics
from ranker.core.artifacts import atomic_path
from ranker.core.cli import emit, note, parser, run, say, table
from ranker.core.config import TaxonomyConfig
from ranker.core.errors import EXIT_OK, ArgumentError, InputError
from ranker.core.metrics import Comparison, Float64
from ranker.core.power import EFFECTS, holm, more_queries
from ranker.core.sources import load_taxonomy
from ranker.core.tasks import SPLITS, GradedTask, load_tasks
from ranker.core.taxonomy import Taxonomy
from ranker.probes import Overlap, overlap_by_grade, prior_scores, without_overlap
from ranker.runs import Run, RunGrades, grade_run, read_runs, rows_of
from ranker.size import field

GRADED = f"ndcg@{metrics.WINDOW}"
BINARY = "map_gold"
TOPS = (12, 20)
DEPTHS = (5, 10)


@dataclass(frozen=True)
class System:
    """One system on the board; figures are macro means over tasks.

    Attributes
    ----------
    name : str
        The run's.
    graded, binary : float
        nDCG@100 and mean average precision of the gold skills.
    per_query : dict of str to float64[n_queries]
        nDCG@100 by task.
    by_task : dict of str to float
        Its means.
    composition : dict of str to float
        Mean slots of the window by `metrics.SLOTS`.
    nonsense : dict of int to float
        Share of grade 0 among the first 5 and 10 ranks.
    gold_recall : float
        Share of all skills of grade 4 that are in the window.
    size : float or None
        Billions of parameters, where it is known.
    missing : int
        Queries that the run has no row for; they count 0.
    hard : float or None
        nDCG@100 without the skills that share a word with the query, where labels are known.
    """

    name: str
    graded: float
    binary: float
    per_query: Mapping[str, Float64]
    by_task: Mapping[str, float]
    composition: Mapping[str, float]
    nonsense: Mapping[int, float]
    gold_recall: float
    size: float | None
    missing: int
    hard: float | None = None


@dataclass(frozen=True)
class OrderAgreement:
    """How far the graded and the binary order agree on the systems that are first by the graded one."""

    systems: int
    kendall: float
    spearman: float


@dataclass(frozen=True)
class Duel:
    """Two neighbours on the board, the better one first.

    Attributes
    ----------
    first, second : str
        Their names.
    found : Comparison
        Paired bootstrap on nDCG@100.
    adjusted_p : float
        Holm's, for the number of duels on the board.
    more_queries : dict of float to int or None
        How many more queries a true difference of that size needs.
    """

    first: str
    second: str
    found: Comparison
    adjusted_p: float
    more_queries: Mapping[float, int | None]

    @property
    def too_close(self) -> bool:
        """Whether the difference is smaller than what the queries can show."""
        detectable = self.found.minimum_detectable
        return math.isnan(detectable) or abs(self.found.difference) < detectable


@dataclass(frozen=True)
class Board:
    """Everything a report shows.

    Attributes
    ----------
    systems : tuple of System
        Best first by the graded score, then by name.
    tasks : dict of str to int
        Queries by task.
    orders : dict of str to OrderAgreement
        "all", "top 12" and "top 20", as far as there are so many.
    duels : tuple of Duel
        Each system with the next.
    prior : float
        nDCG@100 of an order that takes no notice of the query.
    overlap : tuple of Overlap
        Words that labels and queries share, by grade; empty where labels are not known.
    """

    systems: tuple[System, ...]
    tasks: Mapping[str, int]
    orders: Mapping[str, OrderAgreement]
    duels: tuple[Duel, ...]
    prior: float
    overlap: tuple[Overlap, ...]


# --- analysis --------------------------------------------------------------------------------------------------------


def _macro_composition(graded: Sequence[RunGrades], k: int) -> Float64:
    """Return the mean slots of the first k ranks, macro over tasks: float64[6]."""
    return np.asarray(np.mean([metrics.composition(one.grades, k=k).mean(axis=0) for one in graded], axis=0))


def measure(name: str, graded: Mapping[str, RunGrades], *, size: float | None = None) -> System:
    """Measure one system.

    Parameters
    ----------
    name : str
        Its name.
    graded : mapping
        Its rankings by task.
    size : float, optional
        Billions of parameters.
    """
    per_query = {task: metrics.ndcg(one.grades, one.ideal, k=metrics.WINDOW) for task, one in graded.items()}
    runs = list(graded.values())

    def macro(values: Sequence[Float64]) -> float:
        return metrics.macro(dict(zip(graded, values, strict=True)))

    return System(
        name=name,
        graded=metrics.macro(per_query),
        binary=macro([metrics.average_precision(r.grades, r.ideal, threshold=metrics.GOLD) for r in runs]),
        per_query=per_query,
        by_task={task: metrics.mean(values) for task, values in per_query.items()},
        composition=dict(zip(metrics.SLOTS, _macro_composition(runs, metrics.WINDOW).tolist(), strict=True)),
        nonsense={k: float(_macro_composition(runs, k)[0] / k) for k in DEPTHS},
        gold_recall=macro(
            [metrics.recall(r.grades, r.ideal, k=metrics.WINDOW, threshold=metrics.GOLD) for r in runs]
        ),
        size=size,
        missing=sum(r.missing for r in runs),
    )


def order_agreement(systems: Sequence[System]) -> dict[str, OrderAgreement]:
    """Compare the graded with the binary order over all systems and the first 12 and 20.

    Kendall's tau-b and Spearman's rho; NaN where one of the scores does not vary. Two systems at least are needed.
    """
    found = {}
    for name, k in {"all": len(systems), **{f"top {top}": top for top in TOPS}}.items():
        if not 2 <= k <= len(systems):
            continue
        graded, binary = ([getattr(system, kind) for system in systems[:k]] for kind in ("graded", "binary"))
        varied = len(set(graded)) > 1 and len(set(binary)) > 1
        found[name] = OrderAgreement(
            systems=k,
            kendall=float(stats.kendalltau(graded, binary).statistic) if varied else math.nan,
            spearman=float(stats.spearmanr(graded, binary).statistic) if varied else math.nan,
        )
    return found


def duels(systems: Sequence[System], *, resamples: int = 10_000) -> tuple[Duel, ...]:
    """Compare each system with the next on the board."""
    pairs = list(pairwise(systems))
    found = [metrics.compare(one.per_query, two.per_query, resamples=resamples) for one, two in pairs]
    adjusted = holm([one.p_value for one in found])
    result = []
    for (one, two), comparison, p in zip(pairs, found, adjusted, strict=True):
        differences = {task: values - two.per_query[task] for task, values in one.per_query.items()}
        needed = {effect: more_queries(differences, effect) for effect in EFFECTS}
        result.append(Duel(one.name, two.name, comparison, p, needed))
    return tuple(result)


def analyse(
    runs: Mapping[str, Run],
    tasks: Sequence[GradedTask],
    *,
    sizes: Mapping[str, float] | None = None,
    taxonomy: Taxonomy | None = None,
    resamples: int = 10_000,
) -> Board:
    """Analyse a board.

    Parameters
    ----------
    runs : mapping of str to Run
        By the names they are shown under.
    tasks : sequence of GradedTask
        Only those that every run has are read.
    sizes : mapping of str to float, optional
        Billions of parameters by name.
    taxonomy : Taxonomy, optional
        Labels for the probes of shared words, which are left out without it.
    resamples : int
        Of the paired bootstrap.

    Raises
    ------
    InputError
        If no task is in every run.
    """
    shared = [task for task in tasks if all(rows_of(run, task.name) is not None for run in runs.values())]
    for task in tasks:
        if task not in shared:
            lacking = ", ".join(name for name, run in runs.items() if rows_of(run, task.name) is None)
            note(f"{task.name}: left out, not in {lacking}")
    if not shared:
        raise InputError(f"no task is in every run; the qrels have {', '.join(task.name for task in tasks)}")
    systems = []
    for name, run_ in runs.items():
        graded = {task.name: grade_run(rows_of(run_, task.name) or {}, task) for task in shared}
        system = measure(name, graded, size=(sizes or {}).get(name))
        if taxonomy is not None:
            hard = {task.name: without_overlap(graded[task.name], task, taxonomy) for task in shared}
            system = replace(system, hard=metrics.macro(hard))
        systems.append(system)
    systems.sort(key=lambda system: (-system.graded, system.name))
    return Board(
        systems=tuple(systems),
        tasks={task.name: len(task) for task in shared},
        orders=order_agreement(systems),
        duels=duels(systems, resamples=resamples),
        prior=metrics.macro(prior_scores(shared)),
        overlap=() if taxonomy is None else tuple(overlap_by_grade(shared, taxonomy)),
    )


# --- what is shown ---------------------------------------------------------------------------------------------------


def plain(board: Board) -> dict[str, Any]:
    """Return a board as values for JSON, without the values per query; NaN becomes null."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): clean(item) for key, item in value.items() if key != "per_query"}
        if isinstance(value, list | tuple):
            return [clean(item) for item in value]
        return None if isinstance(value, float) and math.isnan(value) else value

    found: dict[str, Any] = clean(asdict(board))
    for row, duel in zip(found["duels"], board.duels, strict=True):
        row["too_close"] = duel.too_close
    return found


def _show(board: Board) -> None:
    say(f"{sum(board.tasks.values())} queries of {len(board.tasks)} tasks: {', '.join(board.tasks)}")
    header = ["system", GRADED, "MAP gold", *(f"grade 0 @{k}" for k in DEPTHS), "grade 4 found"]
    rows = [[s.name, s.graded, s.binary, *(s.nonsense[k] for k in DEPTHS), s.gold_recall] for s in board.systems]
    say(table(rows, header))
    for name, order in board.orders.items():
        say(f"graded and binary order, {name} ({order.systems}): tau {order.kendall:.3f}, rho {order.spearman:.3f}")
    say(f"an order that takes no notice of the query: {board.prior:.4f}")
    for duel in board.duels:
        close = "; smaller than these queries can show" if duel.too_close else ""
        say(
            f"{duel.first} minus {duel.second}: {duel.found.difference:+.4f}, 95 % interval {duel.found.low:+.4f} to "
            f"{duel.found.high:+.4f}, p = {duel.adjusted_p:.4f} (Holm), detectable {duel.found.minimum_detectable:.4f}"
            f"{close}"
        )


def read_sizes(given: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Return billions of parameters by run: those given as NAME=BILLIONS, else the published ones of the field.

    Raises
    ------
    ArgumentError
        If one is not of that form, or names no run.
    """
    sizes = {system.name: system.size for system in field() if system.name in names}
    for one in given:
        name, _, value = one.rpartition("=")
        if name not in names:
            raise ArgumentError(f"--size {one}: no run {name!r}; there are: {', '.join(names)}")
        try:
            sizes[name] = float(value)
        except ValueError as error:
            raise ArgumentError(f"--size {one}: {value!r} is not a number of billions") from error
        if not 0 <= sizes[name] < math.inf:
            raise ArgumentError(f"--size {one}: a size is 0 or more")
    return sizes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser(
        "ranker.board",
        "Compare the challenge files of several systems on graded tasks, and write one report.",
        "python -m ranker.board a.zip b.zip --qrels my_tasks --size ours=0.0227 --out build/board.html",
    )
    add = arguments.add_argument
    add("runs", type=Path, nargs="+", metavar="RUN", help="challenge file of a system")
    add("--qrels", required=True, help="graded tasks: a folder in BEIR layout, or 'hub'")
    add("--tasks", nargs="+", metavar="TASK", help="which tasks (default: all that every run has)")
    add("--split", default="validation", choices=SPLITS)
    add("--size", action="append", default=[], metavar="NAME=BILLIONS", help="parameters of a system; again for more")
    add("--taxonomy", metavar="PATH", help="labels for the probes of shared words; 'auto' takes ESCO as it is cached")
    add("--out", type=Path, metavar="F.html", help="write tables and plots as one page")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    given = arguments.parse_args(argv)
    runs = read_runs(given.runs)
    sizes = read_sizes(given.size, list(runs))
    if given.out and given.out.suffix != ".html":
        raise ArgumentError(f"--out {given.out}: the report is a .html")
    taxonomy = None
    if given.taxonomy:
        taxonomy = load_taxonomy(None if given.taxonomy == "auto" else TaxonomyConfig(path=given.taxonomy))
    tasks = load_tasks(given.qrels, given.split, tasks=given.tasks)
    board = analyse(runs, tasks, sizes=sizes, taxonomy=taxonomy)
    if given.out:
        from ranker.board_page import page  # plots need an optional package

        text = page(board)
        with atomic_path(given.out) as path:
            path.write_text(text, encoding="utf-8")
    if given.json:
        emit(plain(board))
    else:
        _show(board)
    return EXIT_OK


if __name__ == "__main__":
    raise SystemExit(run(main))
