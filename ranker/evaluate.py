"""Measure systems on graded tasks: nDCG@100 and friends, what the window holds, and how sure a difference is."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ranker.core import metrics
from ranker.core.artifacts import atomic_path
from ranker.core.cli import emit, note, parser, run, say, table
from ranker.core.config import SystemConfig, load_config
from ranker.core.errors import EXIT_OK, EXIT_PARTIAL, ArgumentError, missing_extra
from ranker.core.metrics import Comparison, Float64
from ranker.core.power import EFFECTS, more_queries
from ranker.core.sources import load_taxonomy
from ranker.core.tasks import SPLITS, GradedTask, TaskSet, load_tasks
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADLINE = f"ndcg@{metrics.WINDOW}"
SHOWN = (HEADLINE, "map_gold", "mrr_gold", "rp@10_gold", "recall@100_gold", "recall@1000_gold", "recall@100_ge2")
MAX_PROBLEMS = 10  # named per task on the terminal; --json has them all
# Best first, as the bars are stacked.
COLORS = {"4": "#1b7837", "3": "#7fbf7b", "2": "#d9f0d3", "1": "#fee08b", "0": "#d73027", "holes": "#bdbdbd"}


class Orders(Protocol):
    """What is measured: a system with a taxonomy that orders its rows for texts."""

    @property
    def taxonomy(self) -> Taxonomy:
        """The skills that are ranked."""

    def order(self, texts: Sequence[object], top_k: int | None = None) -> tuple[Int32, Float32]:
        """Return taxonomy rows, best first and -1 where there is none, and their scores."""


@dataclass(frozen=True)
class TaskScores:
    """One system on one task, a value per query.

    Attributes
    ----------
    values : dict of str to float64[n_queries]
        By metric name; NaN where a query has nothing to find.
    composition : float64[n_queries, 6]
        Slots of the window by `metrics.SLOTS`.
    """

    query_ids: tuple[str, ...]
    values: dict[str, Float64]
    composition: Float64


@dataclass(frozen=True)
class SystemScores:
    """One system on all tasks, and how long it took.

    Attributes
    ----------
    ms_per_query : float
        Milliseconds from texts to order, on average, without loading and after one query to warm up.
    """

    tasks: dict[str, TaskScores]
    ms_per_query: float

    def per_query(self, metric: str) -> dict[str, Float64]:
        """Return one metric's values by task."""
        return {name: task.values[metric] for name, task in self.tasks.items()}

    def macro(self) -> dict[str, float]:
        """Return every metric as the mean over tasks of each task's mean over queries."""
        names = next(iter(self.tasks.values())).values
        return {metric: metrics.macro(self.per_query(metric)) for metric in names}

    def composition(self) -> dict[str, float]:
        """Return the mean slots of the window, macro over tasks like every other figure."""
        means = np.mean([task.composition.mean(axis=0) for task in self.tasks.values()], axis=0)
        return dict(zip(metrics.SLOTS, means.tolist(), strict=True))


def score_order(order: Int32, task: GradedTask, taxonomy: Taxonomy) -> TaskScores:
    """Score rankings of a task's queries.

    Parameters
    ----------
    order : int32[n_queries, depth]
        Taxonomy rows, best first; -1 where a ranking has ended.
    task : GradedTask
        Judged skills that the taxonomy lacks count in the ideal ranking and are never retrieved.
    taxonomy : Taxonomy
        Whose rows `order` speaks of.
    """
    qrels = [task.qrels[query] for query in task.query_ids]
    rows = [{taxonomy.index[uri]: grade for uri, grade in judged.items() if uri in taxonomy.index} for judged in qrels]
    grades = metrics.ranked_grades(order, rows, len(taxonomy))
    ideal = metrics.ideal_grades([list(judged.values()) for judged in qrels])
    return TaskScores(
        query_ids=task.query_ids,
        values=metrics.all_metrics(grades, ideal),
        composition=metrics.composition(grades),
    )


def evaluate(system: Orders, tasks: Sequence[GradedTask]) -> SystemScores:
    """Rank every task's queries and score the rankings.

    Rankings are read down to rank 1,000 or to the end of the system's pool; deeper skills count as not retrieved.
    """
    system.order([tasks[0].queries[0]], metrics.DEPTH)  # warm-up: first use of caches, kernels and thread pools
    scores: dict[str, TaskScores] = {}
    seconds = 0.0
    for task in tasks:
        start = time.perf_counter()
        order, _ = system.order(task.queries, metrics.DEPTH)
        seconds += time.perf_counter() - start
        scores[task.name] = score_order(order, task, system.taxonomy)
    return SystemScores(scores, ms_per_query=1000 * seconds / sum(map(len, tasks)))


def compare_all(systems: Mapping[str, SystemScores]) -> dict[str, Comparison]:
    """Compare each system with the first one, on nDCG@100."""
    (_, baseline), *others = systems.items()
    return {name: metrics.compare(other.per_query(HEADLINE), baseline.per_query(HEADLINE)) for name, other in others}


# --- what is printed and written -------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return the value ready for JSON, which has no NaN: NaN becomes null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def report(systems: Mapping[str, SystemScores], tasks: TaskSet, *, data: str, split: str) -> dict[str, Any]:
    """Return everything that was measured as one JSON-ready object.

    Returns
    -------
    dict
        `configs` by name: `macro`, `macro_ci95` (of nDCG@100), `tasks`, `composition`, `ms_per_query`; `comparisons`:
        each further config against the first; `failed` and `problems` of the data.
    """
    configs: dict[str, Any] = {}
    for name, system in systems.items():
        by_task: dict[str, Any] = {}
        for task, scores in system.tasks.items():
            by_task[task] = {metric: metrics.mean(values) for metric, values in scores.values.items()}
            by_task[task]["n_queries"] = len(scores.query_ids)
            slots = scores.composition.mean(axis=0).tolist()
            by_task[task]["composition"] = dict(zip(metrics.SLOTS, slots, strict=True))
        configs[name] = {
            "macro": system.macro(),
            "macro_ci95": metrics.confidence_interval(system.per_query(HEADLINE)),
            "tasks": by_task,
            "composition": system.composition(),
            "ms_per_query": system.ms_per_query,
        }
    baseline = next(iter(systems))
    comparisons = []
    for name, found in compare_all(systems).items():
        differences = {
            task: values - systems[baseline].tasks[task].values[HEADLINE]
            for task, values in systems[name].per_query(HEADLINE).items()
        }
        comparisons.append(
            {
                "config": name,
                "baseline": baseline,
                "metric": HEADLINE,
                **asdict(found),
                "more_queries": {f"{effect:g}": more_queries(differences, effect) for effect in EFFECTS},
                "tasks": {task: metrics.mean(values) for task, values in differences.items()},
            }
        )
    value = {
        "data": data,
        "split": split,
        "configs": configs,
        "comparisons": comparisons,
        "failed": dict(tasks.failed),
        "problems": {task.name: list(task.problems) for task in tasks if task.problems},
    }
    plain: dict[str, Any] = _plain(value)
    return plain


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def show(value: Mapping[str, Any]) -> None:
    """Print a report as tables."""
    configs = value["configs"]
    for name, config in configs.items():
        total = {**config["macro"], "n_queries": sum(scores["n_queries"] for scores in config["tasks"].values())}
        rows: list[list[object]] = [
            [task, scores["n_queries"], *(math.nan if scores[m] is None else scores[m] for m in SHOWN)]
            for task, scores in {**config["tasks"], "macro": total}.items()
        ]
        say(f"{name}: {value['split']} of {value['data']}")
        say(table(rows, ["task", "queries", *SHOWN]))
        low, high = config["macro_ci95"]
        say(f"{HEADLINE} 95 % interval {_number(low)} to {_number(high)}; {config['ms_per_query']:.1f} ms per query\n")
    say(f"mean slots of the window (top {metrics.WINDOW}) by grade; holes = unjudged")
    order = tuple(COLORS)
    say(
        table(
            [[name, *(_number(c["composition"][slot], 1) for slot in order)] for name, c in configs.items()],
            ["config", *order],
        )
    )
    for found in value["comparisons"]:
        say(
            f"\n{found['config']} minus {found['baseline']}, {HEADLINE}: {found['difference']:+.4f}, "
            f"95 % interval {found['low']:+.4f} to {found['high']:+.4f}, p = {found['p_value']:.4f} "
            f"(paired bootstrap, {found['n_queries']} queries, resampled within tasks); "
            f"smallest effect found at 80 % power: {_number(found['minimum_detectable'])}"
        )
        needed = ", ".join(f"{effect}: {'-' if n is None else n}" for effect, n in found["more_queries"].items())
        say(f"more queries needed for a true difference of {needed}")


def warn_of_close(value: Mapping[str, Any]) -> None:
    """Name, on standard error, each comparison whose difference is smaller than what the queries can show."""
    for found in value["comparisons"]:
        detectable = found["minimum_detectable"]
        if detectable is not None and abs(found["difference"]) < detectable:
            note(
                f"warning: {found['config']} and {found['baseline']} differ by less than these queries can show "
                f"({abs(found['difference']):.4f} < {detectable:.4f}); do not read it as an order"
            )


def write_per_query(path: Path, systems: Mapping[str, SystemScores]) -> None:
    """Write a CSV with one row per config, task and query: all metrics and the window's composition."""
    names = list(next(iter(next(iter(systems.values())).tasks.values())).values)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["config", "task", "query_id", *names, *(f"slots_{slot}" for slot in metrics.SLOTS)])
        for config, system in systems.items():
            for task, scores in system.tasks.items():
                for i, query in enumerate(scores.query_ids):
                    values = [scores.values[name][i] for name in names]
                    cells = ["" if math.isnan(value) else repr(float(value)) for value in values]
                    writer.writerow([config, task, query, *cells, *map(int, scores.composition[i])])


def _figure(path: Path, *, bars: int) -> Figure:
    """Return an empty figure for a file, or say why that file cannot be drawn."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", "train") from error
    figure = Figure(figsize=(9, 1.4 + 0.5 * bars), layout="constrained")
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise ArgumentError(f"--plot {path}: unknown format {path.suffix!r}; allowed: {', '.join(sorted(formats))}")
    return figure


def draw_composition(figure: Figure, compositions: Mapping[str, Mapping[str, float]]) -> None:
    """Draw one stacked bar per config onto an empty figure: mean slots by `metrics.SLOTS`."""
    axes = figure.add_subplot()
    left = np.zeros(len(compositions))
    for slot, color in COLORS.items():
        widths = np.array([slots[slot] for slots in compositions.values()])
        label = slot if slot == "holes" else f"grade {slot}"
        bars = axes.barh(list(compositions), widths, left=left, color=color, label=label)
        # A number in a bar narrower than two slots would run into its neighbours.
        axes.bar_label(bars, [f"{w:.0f}" if w >= 2 else "" for w in widths], label_type="center", fontsize=8)
        left += widths
    axes.invert_yaxis()  # the first config on top
    axes.set_xlim(0, metrics.WINDOW)
    axes.set_xlabel(f"slots of the top {metrics.WINDOW}, mean over tasks")
    figure.legend(loc="outside upper center", ncols=len(COLORS), frameon=False, fontsize=8)


def plot_composition(path: Path, compositions: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the window's composition as one stacked bar per config.

    Parameters
    ----------
    path : Path
        Its ending chooses the format (png, svg, pdf).
    compositions : mapping of str to mapping of str to float
        Mean slots by `metrics.SLOTS`, by config.

    Raises
    ------
    PrerequisiteError
        If matplotlib is not installed.
    ArgumentError
        If the ending is no format that matplotlib writes.
    """
    figure = _figure(path, bars=len(compositions))
    draw_composition(figure, compositions)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


# --- the command -----------------------------------------------------------------------------------------------------


def named_configs(arguments: Sequence[str]) -> dict[str, SystemConfig]:
    """Load each config, under its file's name; where two files share a name, under the argument.

    Raises
    ------
    ArgumentError
        If a config is given twice.
    """
    stems = [Path(argument).stem if argument.endswith((".yaml", ".yml")) else argument for argument in arguments]
    names = [argument if stems.count(stem) > 1 else stem for stem, argument in zip(stems, arguments, strict=True)]
    if len(set(names)) < len(names):
        raise ArgumentError(f"a config is given twice: {', '.join(arguments)}")
    return {name: load_config(argument) for name, argument in zip(names, arguments, strict=True)}


def _check_outputs(plot: Path | None, per_query: Path | None) -> None:
    """Fail before the work, not after it, where a result could not be written."""
    for option, path in (("--plot", plot), ("--per-query", per_query)):
        if path is None:
            continue
        if path.is_dir():
            raise ArgumentError(f"{option} {path} is a folder; give the name of a file")
        probe = path.with_name(f".{path.name}.probe")
        with atomic_path(probe):
            pass
        probe.unlink()
    if plot is not None:
        _figure(plot, bars=1)


def _announce(tasks: TaskSet) -> None:
    """Name the tasks that are missing and the rows that were left out."""
    for name, reason in tasks.failed.items():
        note(f"not evaluated: {name}: {reason}")
    for task in tasks:
        for problem in task.problems[:MAX_PROBLEMS]:
            note(f"{task.name}: {problem}")
        if len(task.problems) > MAX_PROBLEMS:
            note(f"{task.name}: and {len(task.problems) - MAX_PROBLEMS} more; --json lists them all")


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate one or more systems on graded tasks."""
    arguments = parser(
        "ranker.evaluate",
        "Measure systems on graded tasks and compare them with the first. Figures are macro means over tasks.",
        "python -m ranker.evaluate --config baseline-minilm --config embedded --data my_tasks --plot window.png",
    )
    add = arguments.add_argument
    add("--config", action="append", help="config name or YAML file; again for more, the first is the baseline")
    add("--data", required=True, help="folder in BEIR layout, 'hub' for the official tasks, 'esco' for skill names")
    add("--split", default="validation", choices=SPLITS, help="default: validation")
    add("--tasks", nargs="+", metavar="TASK", help="which tasks; default all that have the split")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    add("--plot", type=Path, metavar="F.png", help="draw the composition of the window as stacked bars")
    add("--per-query", type=Path, metavar="OUT.csv", help="write every metric of every query")
    options = arguments.parse_args(argv)
    configs = named_configs(options.config or ["embedded"])
    _check_outputs(options.plot, options.per_query)

    from ranker.pipeline import SkillRanker  # seconds of imports, which --help must not cost

    taxonomies = {settings: load_taxonomy(settings) for settings in {c.taxonomy for c in configs.values()}}
    first = next(iter(configs.values()))
    tasks = load_tasks(options.data, options.split, tasks=options.tasks, taxonomy=taxonomies[first.taxonomy])
    _announce(tasks)
    systems: dict[str, SystemScores] = {}
    for name, config in configs.items():
        note(f"{name}: ranking {sum(map(len, tasks))} queries of {len(tasks)} tasks")
        systems[name] = evaluate(SkillRanker(config, taxonomies[config.taxonomy]), tasks)
    value = report(systems, tasks, data=options.data, split=options.split)
    if options.plot is not None:
        plot_composition(options.plot, {name: system.composition() for name, system in systems.items()})
    if options.per_query is not None:
        write_per_query(options.per_query, systems)
    warn_of_close(value)
    if options.json:
        emit(value)
    else:
        show(value)
    return EXIT_PARTIAL if tasks.failed else EXIT_OK


if __name__ == "__main__":
    raise SystemExit(run(main))
