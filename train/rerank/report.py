"""Figures of a trained column: its plot and its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ranker.core.artifacts import atomic_path
from ranker.core.errors import missing_extra
from ranker.core.types import Float32, Int32
from train.lanes import Graded, figures


def plot(logs: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> None:
    """Draw loss and held-out nDCG of every fit against its steps, as a PNG.

    Raises
    ------
    PrerequisiteError
        If matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", "train") from error
    figure = Figure(figsize=(9, 4), layout="constrained")
    loss, ndcg = figure.subplots(1, 2)
    for name, log in logs.items():
        loss.plot([line["step"] for line in log], [line["loss"] for line in log], label=name)
        seen = [line for line in log if "ndcg" in line]
        if seen:
            ndcg.plot([line["step"] for line in seen], [line["ndcg"] for line in seen], marker="o", label=name)
    loss.set(xlabel="step", ylabel="loss", yscale="log")
    ndcg.set(xlabel="step", ylabel="nDCG of held-out lists")
    loss.legend()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def out_of_fold(graded: Graded, pool: Int32, scores: Float32) -> dict[str, Any]:
    """Return the figures of the pool as it stands, and in the order of a column.

    Parameters
    ----------
    graded : Graded
    pool : int32[n_queries, k]
    scores : float32[n_queries, n_skills]
        NaN where the column did not score; such skills follow in the pool's order.
    """
    ordered = np.full(graded.grades.shape, np.float32(-2e9))
    places = -1e9 - 1e3 * np.arange(pool.shape[1])
    np.put_along_axis(ordered, pool.astype(np.intp), np.broadcast_to(places.astype(np.float32), pool.shape), axis=1)
    every = np.arange(len(graded.texts))
    return {
        "pool": figures(graded, ordered, every),
        "column": figures(graded, np.where(np.isnan(scores), ordered, scores), every),
    }


def card(report: Mapping[str, Any]) -> str:
    """Return the model card as Markdown."""
    recipe, counts = report["recipe"], report["counts"]
    trained = f"adapters of rank {recipe['lora']}" if recipe["lora"] else "all weights"
    queries = counts["queries"] - counts["queries_with_one_grade"]
    kind = 'language model whose "yes" is weighed against its "no"' if recipe["causal"] else "cross-encoder"
    stage = f" after {counts['sentences']} sentences with gold skills" if "sentences" in counts else ""
    lines = [
        "# Column",
        "",
        f"A {kind}, grown from `{recipe['model']}` ({trained}). It scores a text about work with a skill.",
        f"It reads the skill's {recipe['view'].replace('_', ' and ')}. Scores of different texts do not compare.",
        "",
        "## Use",
        "",
        "Reordering the pool of a text, as a feature of the fusion. English. Not for deciding about people.",
        "",
        "## Training",
        "",
        f"{queries} graded queries ({recipe['targets']} targets, {recipe['loss']} loss){stage}.",
        f"Data fingerprint `{report['data']}`, seed {recipe['seed']}, steps {report['steps']}.",
        "It holds weights and no text.",
    ]
    if "out_of_fold" in report:
        pool, column = report["out_of_fold"]["pool"], report["out_of_fold"]["column"]
        rows = [f"| {task} | {pool['tasks'][task]:.4f} | {value:.4f} |" for task, value in column["tasks"].items()]
        lines += [
            "",
            "## Figures",
            "",
            f"nDCG@100 out of fold, the column alone over the first {recipe['depth']} of the pool:",
            "",
            "| task | pool | column |",
            "|---|---|---|",
            *rows,
            f"| macro | {pool['macro']:.4f} | {column['macro']:.4f} |",
            f"| nonsense of 100 | {pool['nonsense']:.1f} | {column['nonsense']:.1f} |",
        ]
    return "\n".join(lines) + "\n"
