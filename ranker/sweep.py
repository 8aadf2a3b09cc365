"""Which instruction serves a lane best: each of a file is scored on graded queries, and the choice is made in folds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lanes.base import Lane
from lanes.encoder import EncoderPool
from lanes.registry import build_lanes
from ranker.core import metrics
from ranker.core.artifacts import atomic_path
from ranker.core.cli import emit, note, parser, run, say, table
from ranker.core.config import LaneConfig, SystemConfig, load_config
from ranker.core.errors import EXIT_OK, EXIT_PARTIAL, ArgumentError, InputError, ResourceError, missing_extra
from ranker.core.metrics import Comparison, Float64
from ranker.core.order import top_rows
from ranker.core.sources import load_taxonomy
from ranker.core.tasks import SPLITS, GradedTask, load_tasks
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise
from ranker.evaluate import HEADLINE, score_order

NONE = ""  # no instruction: what every other one has to beat
OPTIONS = ("query_prompt", "document_prompt")
Values = Mapping[str, Float64]  # nDCG@100 per query, by task
_CHUNK = 32  # queries held in memory at a time


@dataclass(frozen=True)
class Sweep:
    """What a sweep found.

    Attributes
    ----------
    values : dict of str to dict of str to float64[n_queries]
        nDCG@100 per query, by instruction, by task; the first instruction is `NONE`.
    chosen : tuple of str
        The instruction that each fold got: the best one on the queries of the other folds.
    honest : dict of str to float64[n_queries]
        Each query's value under the instruction that its fold got, which was chosen without it.
    """

    values: Mapping[str, Values]
    chosen: tuple[str, ...]
    honest: Values

    @property
    def best(self) -> str:
        """Return the instruction with the highest macro mean over all queries, the first of equals."""
        return max(self.values, key=lambda name: metrics.macro(self.values[name]))


def read_instructions(path: Path) -> list[str]:
    r"""Return the instructions of a file: one a line, "\n" in it for a line break; blank lines and repeats left out.

    Raises
    ------
    ResourceError
        If there is no such file.
    InputError
        If it holds no instruction, or is not UTF-8.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ResourceError(f"no instructions at {path} ({error.strerror}); give a text file, one a line") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 ({error}); save it anew") from error
    found = list(dict.fromkeys(line.replace("\\n", "\n") for line in lines if line.strip()))
    if not found:
        raise InputError(f"{path} holds no instruction; write one a line")
    return found


def lane_values(lane: Lane, tasks: Sequence[GradedTask], taxonomy: Taxonomy, *, strip_bullets: bool) -> Values:
    """Return nDCG@100 per query, by task, of a fitted lane alone."""
    values = {}
    for task in tasks:
        queries = [normalise(text, strip_bullets=strip_bullets) for text in task.queries]
        parts = [queries[at : at + _CHUNK] for at in range(0, len(queries), _CHUNK)]
        order = np.concatenate([top_rows(lane.score(part), metrics.WINDOW) for part in parts])
        values[task.name] = score_order(order, task, taxonomy).values[HEADLINE]
    return values


def choose_in_folds(values: Mapping[str, Values], *, folds: int, seed: int = 0) -> Sweep:
    """Choose, for each fold of the queries, the instruction that is best on the other folds.

    The figure of the best of many is too high: it was chosen on the queries that it is reported on. The honest figure
    scores each query under an instruction that was chosen without it.

    Parameters
    ----------
    values : mapping
        nDCG@100 per query, by instruction, by task.
    folds : int
        Each task's queries are dealt out at random, evenly.
    seed : int
        Of the dealing.

    Raises
    ------
    ArgumentError
        If a task has fewer queries than there are folds.
    """
    draw = np.random.default_rng(seed)
    sizes = {task: len(of) for task, of in next(iter(values.values())).items()}
    if min(sizes.values()) < folds:
        raise ArgumentError(f"{folds} folds of {min(sizes, key=sizes.__getitem__)} leave some empty; take fewer folds")
    fold = {task: draw.permutation(np.arange(size) % folds) for task, size in sizes.items()}
    honest = {task: np.empty(size) for task, size in sizes.items()}
    chosen = []
    for k in range(folds):
        others = {
            name: metrics.macro({task: of[fold[task] != k] for task, of in by_task.items()})
            for name, by_task in values.items()
        }
        chosen.append(max(others, key=others.__getitem__))
        for task, of in values[chosen[-1]].items():
            honest[task][fold[task] == k] = of[fold[task] == k]
    return Sweep(values=values, chosen=tuple(chosen), honest=honest)


def sweep(
    config: SystemConfig,
    lane: str,
    instructions: Sequence[str],
    tasks: Sequence[GradedTask],
    taxonomy: Taxonomy,
    *,
    option: str = "query_prompt",
    template: str = "{}",
    folds: int = 4,
    progress: Callable[[str], None] = note,
) -> Sweep:
    """Score a lane alone under each instruction, and under none.

    Parameters
    ----------
    config : SystemConfig
        Holds the lane.
    lane : str
        Its name.
    instructions : sequence of str
    option : {"query_prompt", "document_prompt"}
        Where the instruction goes. The document side is embedded anew for each, unless the cache has it.
    template : str
        What stands around the instruction, which takes the place of "{}". No instruction means no template either.
    folds : int
        See `choose_in_folds`.

    Raises
    ------
    ArgumentError
        If there is no such lane, its family takes no instruction, or the template has no place for it.
    """
    named = {spec.name: spec for spec in config.lanes}
    if lane not in named:
        raise ArgumentError(f"{config.name} has no lane {lane!r}; allowed: {', '.join(named)}")
    if "{}" not in template:
        raise ArgumentError(f"template {template!r} has no {{}} where the instruction goes")
    encoders, values = EncoderPool(), {}
    for number, instruction in enumerate([NONE, *instructions]):
        progress(f"{number} of {len(instructions)}: {instruction or 'no instruction'}")
        text = template.replace("{}", instruction) if instruction else NONE
        spec: LaneConfig = replace(named[lane], options={**named[lane].options, option: text})
        made = build_lanes([spec], encoders=encoders)[lane]
        made.fit(taxonomy)
        values[instruction] = lane_values(made, tasks, taxonomy, strip_bullets=config.strip_bullets)
    return choose_in_folds(values, folds=folds)


def report(found: Sweep) -> dict[str, Any]:
    """Return the figures, JSON-ready.

    Returns
    -------
    dict
        `instructions`: per instruction, best first: `macro`, `tasks`, `against_none` and `against_best` (paired
        bootstrap); `honest`: the same of the choice in folds, and `chosen`, the instruction of each fold.
    """

    def figures(values: Values) -> dict[str, Any]:
        def against(name: str) -> dict[str, Any]:
            compared: Comparison = metrics.compare(values, found.values[name])
            return asdict(compared)

        return {
            "macro": metrics.macro(values),
            "tasks": {task: metrics.mean(of) for task, of in values.items()},
            "against_none": against(NONE),
            "against_best": against(found.best),
        }

    rows = [{"instruction": name, **figures(values)} for name, values in found.values.items()]
    rows.sort(key=lambda row: -row["macro"])
    return {"instructions": rows, "honest": {"chosen": list(found.chosen), **figures(found.honest)}}


def show(value: Mapping[str, Any]) -> None:
    """Print a report as a table."""
    honest = value["honest"]
    rows = [(row["instruction"] or "(none)", row) for row in value["instructions"]]
    rows.append(("chosen in folds", honest))
    cells = [
        [
            name.replace("\n", "\\n")[:60],
            *row["tasks"].values(),
            row["macro"],
            f"{row['against_none']['difference']:+.4f}",
            f"{row['against_none']['low']:+.4f} to {row['against_none']['high']:+.4f}",
            f"{row['against_none']['p_value']:.4f}",
            f"{row['against_best']['difference']:+.4f}",
        ]
        for name, row in rows
    ]
    header = ["instruction", *honest["tasks"], "macro", "to none", "95 % interval", "p", "to best"]
    say(f"{HEADLINE} of the lane alone; paired bootstrap over queries, within tasks")
    say(table(cells, header))
    say("The last row is the figure to report: each query under the instruction chosen on the other folds.")
    for number, instruction in enumerate(honest["chosen"]):
        say(f"fold {number}: {instruction or '(none)'}")


def plot(path: Path, value: Mapping[str, Any]) -> None:
    """Draw the macro figure of each instruction as a dot, and the choice in folds as a line.

    Raises
    ------
    PrerequisiteError
        If matplotlib is not installed.
    ArgumentError
        If the file's ending is no format that matplotlib writes.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", "train") from error
    rows = value["instructions"]
    figure = Figure(figsize=(9, 1.4 + 0.3 * len(rows)), layout="constrained")
    if path.suffix.lstrip(".").lower() not in (formats := figure.canvas.get_supported_filetypes()):
        raise ArgumentError(f"--plot {path}: unknown format {path.suffix!r}; allowed: {', '.join(sorted(formats))}")
    axes = figure.add_subplot()
    names = [f"{at + 1}. {(row['instruction'] or '(none)').splitlines()[0][:60]}" for at, row in enumerate(rows)]
    colors = ["#1b7837" if row["instruction"] else "#757575" for row in rows]
    axes.scatter([row["macro"] for row in rows], names, color=colors)
    axes.axvline(value["honest"]["macro"], color="#d73027", label="chosen in folds")
    axes.invert_yaxis()
    axes.set_xlabel(f"macro {HEADLINE} of the lane alone")
    figure.legend(loc="outside upper right", frameon=False, fontsize=8)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep a lane's instructions."""
    arguments = parser(
        "ranker.sweep",
        "Score each instruction of a file on graded queries, one lane alone, and choose inside folds.",
        "python -m ranker.sweep --config my_qwen.yaml --lane qwen --instructions lines.txt --data my_tasks "
        "--template 'Instruct: {}\\nQuery:'",
    )
    add = arguments.add_argument
    add("--config", required=True, help="config name or YAML file that holds the lane")
    add("--lane", required=True, help="name of the lane")
    add("--instructions", type=Path, required=True, metavar="FILE", help=r"one a line; \n for a line break")
    add("--data", required=True, help="folder in BEIR layout, or 'hub' for the official tasks")
    add("--split", default="validation", choices=SPLITS, help="default: validation")
    add("--tasks", nargs="+", metavar="TASK", help="which tasks; default all that have the split")
    add("--option", default=OPTIONS[0], choices=OPTIONS, help="where the instruction goes; default: query_prompt")
    add("--template", default="{}", help=r"text around the instruction; \n for a line break")
    add("--folds", type=int, default=4, help="folds of the choice; default 4")
    add("--json", action="store_true", help="print one JSON object instead of a table")
    add("--plot", type=Path, metavar="F.png", help="draw the figures")
    options = arguments.parse_args(argv)
    if options.folds < 2:
        raise ArgumentError(f"--folds: {options.folds} is too few; at least 2")
    config = load_config(options.config)
    instructions = read_instructions(options.instructions)
    taxonomy = load_taxonomy(config.taxonomy)
    tasks = load_tasks(options.data, options.split, tasks=options.tasks, taxonomy=taxonomy)
    for name, reason in tasks.failed.items():
        note(f"not measured: {name}: {reason}")
    found = sweep(
        config,
        options.lane,
        instructions,
        tasks,
        taxonomy,
        option=options.option,
        template=options.template.replace("\\n", "\n"),
        folds=options.folds,
    )
    value = {"lane": options.lane, "data": options.data, "split": options.split, **report(found)}
    if options.plot is not None:
        plot(options.plot, value)
    if options.json:
        emit(value)
    else:
        show(value)
    return EXIT_PARTIAL if tasks.failed else EXIT_OK


if __name__ == "__main__":
    raise SystemExit(run(main))
