"""How large a system is, beside the published systems of the field: `python -m ranker.size`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ranker.core.artifacts import atomic_path
from ranker.core.cli import emit, parser, run, say, table
from ranker.core.config import SystemConfig, load_config
from ranker.core.errors import ArgumentError, ResourceError, missing_extra

DATA = Path(__file__).parent / "data"
OFFSETS = tuple((side * 6, up, "right" if side < 0 else "left") for up in (-3, 8, -14, 19, -25) for side in (1, -1))
BUDGET = 109_500_000  # parameters of the two trained baselines, CurriculumMatch and ConTeXT-match


class System(NamedTuple):
    """A system and its nDCG@100, macro over the challenge's test tasks; `size` in billions of parameters."""

    name: str
    size: float
    score: float
    at_least: bool = False  # part of its size is not known


def field() -> tuple[System, ...]:
    """Return the published systems, as `data/field.csv` lists them with their source."""
    with (DATA / "field.csv").open(encoding="utf-8", newline="") as stream:
        return tuple(
            System(row["system"], float(row["billions"]), float(row["score"]), at_least=bool(row["at_least"]))
            for row in csv.DictReader(stream)
        )


def backbones(config: SystemConfig) -> dict[str, int]:
    """Return the parameters of each distinct model a system runs, without loading or fetching one.

    Raises
    ------
    ResourceError
        If a model is not on disk and `data/backbones.csv` does not state its size.
    """
    from ranker.plan import stage_models, stated_backbones

    stated = stated_backbones()
    found: dict[str, int] = {}
    for spec in config.stages:
        models, problem = stage_models(config, spec, stated)
        if problem and not models and "base" not in spec.options:  # a derived lane's problem is its base's
            raise ResourceError(problem)
        found.update({name: model.parameters for name, model in models.items()})
    return found


def report(name: str, models: Mapping[str, int], score: float | None = None) -> dict[str, Any]:
    """Return sizes and the field's table as plain values.

    Parameters
    ----------
    name : str
        The system's name.
    models : mapping of str to int
        Parameters of each distinct backbone.
    score : float, optional
        The system's nDCG@100 on the challenge's test tasks; gives it a line in the table.

    Returns
    -------
    dict
        config, backbones, total_parameters, ratio (to `BUDGET`), field (best first; parameters in billions).

    Raises
    ------
    ArgumentError
        If the score is not between 0 and 1.
    """
    if score is not None and not 0 <= score <= 1:
        raise ArgumentError(f"--score {score} is not between 0 and 1")
    total = sum(models.values())
    systems = [*field(), *([] if score is None else [System(name, total / 1e9, score)])]
    systems.sort(key=lambda system: (-system.score, system.name))
    return {
        "config": name,
        "backbones": dict(models),
        "total_parameters": total,
        "ratio": total / BUDGET,
        "score": score,
        "field": [system._asdict() for system in systems],
    }


def render(found: Mapping[str, Any]) -> str:
    """Return a report as two tables."""
    rows = [(identity, f"{count:,}") for identity, count in found["backbones"].items()] or [("none", "0")]
    total = f"{found['config']}: {found['total_parameters']:,} parameters, {found['ratio']:.3f} of {BUDGET:,}"
    systems = [
        (
            system["name"],
            f"{system['size']:.3f}{'+' if system['at_least'] else ''}",
            system["score"],
            "<- this system" if system["name"] == found["config"] else "",
        )
        for system in found["field"]
    ]
    return "\n\n".join(
        [
            table(rows, ("backbone", "parameters")),
            total,
            table(systems, ("system", "B parameters", "nDCG@100", "")),
        ]
    )


def plot(found: Mapping[str, Any], target: Path) -> None:
    """Draw size against score as a PNG or whatever else the file's ending says.

    Raises
    ------
    PrerequisiteError
        If matplotlib is not installed.
    ArgumentError
        If the ending is none that matplotlib writes.
    ResourceError
        If the file cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise missing_extra("matplotlib", "train") from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    endings = figure.canvas.get_supported_filetypes()
    if target.suffix.lstrip(".") not in endings:
        raise ArgumentError(f"--plot {target}: unknown ending; allowed: {', '.join(sorted(endings))}")
    for system in found["field"]:
        ours = system["name"] == found["config"]
        axes.scatter(_place(system), system["score"], color="tab:red" if ours else "tab:blue", zorder=3)
    axes.axvline(BUDGET / 1e9, color="grey", linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="billion parameters", ylabel="nDCG@100 (macro, challenge test)")
    axes.grid(alpha=0.3)
    _label(figure, axes, found)
    with atomic_path(target) as path:
        figure.savefig(path, dpi=150, format=target.suffix.lstrip("."))
    plt.close(figure)


def _place(system: Mapping[str, Any]) -> float:
    """Return where a system is drawn: one without parameters has no place on a logarithmic axis, but at its end."""
    return max(float(system["size"]), 0.005)


def _label(figure: Any, axes: Any, found: Mapping[str, Any]) -> None:
    """Write every system's name beside its point, where it covers no other name and no point."""
    figure.draw_without_rendering()  # fixes where things are
    points = axes.transData.transform([(_place(system), system["score"]) for system in found["field"]])
    taken: list[Any] = []
    for system in found["field"]:
        for dx, dy, side in OFFSETS:
            text = axes.annotate(
                f"{system['name']}{'+' if system['at_least'] else ''}",
                (_place(system), system["score"]),
                xytext=(dx, dy),
                textcoords="offset points",
                ha=side,
                fontsize=8,
                fontweight="bold" if system["name"] == found["config"] else "normal",
            )
            box = text.get_window_extent()
            free = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 and not box.count_contains(points)
            if free and not any(map(box.overlaps, taken)):
                break
            text.remove()
        else:
            axes.add_artist(text)  # nowhere free: the last place
        taken.append(box)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser(
        "ranker.size",
        "Count a system's parameters and set them beside the field's published sizes and scores.",
        "python -m ranker.size --config embedded --score 0.71 --plot build/size.png",
    )
    add = arguments.add_argument
    add("--config", default="embedded", help="name of a system in configs/ or path of a YAML file (default: embedded)")
    add("--score", type=float, help="the system's nDCG@100 on the challenge's test tasks; adds its line")
    add("--plot", type=Path, metavar="FILE", help="draw size against score")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    given = arguments.parse_args(argv)
    config = load_config(given.config)
    found = report(config.name, backbones(config), given.score)
    if given.plot:
        plot(found, given.plot)
    if given.json:
        emit(found)
    else:
        say(render(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
