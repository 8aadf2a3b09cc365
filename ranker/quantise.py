"""Cross-encoders in int8: export one for shipping, and measure what it loses: `python -m ranker.quantise`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from ranker.core import metrics
from ranker.core.cli import emit, parser, positive, run, say, table
from ranker.core.config import FusionConfig, load_config
from ranker.core.errors import ArgumentError
from ranker.core.order import top_rows
from ranker.core.sources import load_taxonomy
from ranker.core.tasks import load_tasks
from ranker.core.text import normalise
from ranker.core.types import Float32, Int32

SPEARMAN, LOST = 0.995, 0.003  # what int8 must keep of the order on average, and may lose of nDCG@100


def spearman(a: Float32, b: Float32) -> float:
    """Return the rank correlation of two score vectors, ties at their mean rank; NaN where one is constant."""
    ranks = np.stack([rankdata(a), rankdata(b)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    length = np.sqrt((ranks**2).sum(axis=1)).prod()
    return float((ranks[0] * ranks[1]).sum() / length) if length else float("nan")


def compare(
    reference: Float32, other: Float32, pool: Int32, judged: Sequence[Mapping[int, int]], n_skills: int
) -> dict[str, Any]:
    """Compare two precisions of one column.

    Parameters
    ----------
    reference, other : float32[n_queries, k]
        Scores in fp32 and in the precision to be checked.
    pool : int32[n_queries, k]
        Taxonomy rows that were scored.
    judged : sequence of mapping
        Per query, grade by taxonomy row.
    n_skills : int
        Rows of the taxonomy.

    Returns
    -------
    dict
        queries; spearman and spearman_min, the mean and the lowest over queries; ndcg_reference and ndcg, of the
        scored skills ordered by the column alone, at 100; ndcg_lost; passed.
    """
    correlations = [spearman(a, b) for a, b in zip(reference, other, strict=True)]
    ideal = metrics.ideal_grades([list(grades.values()) for grades in judged])

    def ndcg(scores: Float32) -> float:
        by_row = np.argsort(pool, axis=1, kind="stable")  # the tie rule speaks of taxonomy rows
        best = np.take_along_axis(by_row, top_rows(np.take_along_axis(scores, by_row, axis=1), metrics.WINDOW), axis=1)
        grades = metrics.ranked_grades(np.take_along_axis(pool, best, axis=1), judged, n_skills)
        return float(np.nanmean(metrics.ndcg(grades, ideal, k=metrics.WINDOW)))

    before, after, mean = ndcg(reference), ndcg(other), float(np.nanmean(correlations))
    return {
        "queries": len(pool),
        "spearman": mean,
        "spearman_min": float(np.nanmin(correlations)),
        "ndcg_reference": before,
        "ndcg": after,
        "ndcg_lost": before - after,
        "passed": bool(mean >= SPEARMAN and before - after <= LOST),
    }


def check(system: str, data: str, *, n_queries: int | None = None) -> dict[str, dict[str, Any]]:
    """Score every encoder column of a system in fp32 and in int8, over the head of the pool.

    Parameters
    ----------
    system : str
        Name or path of a config; whatever precision its columns name, both are run.
    data : str
        Folder of graded tasks.
    n_queries : int, optional
        Only the first so many.

    Returns
    -------
    dict
        By column, see `compare`.

    Raises
    ------
    ArgumentError
        If the system has no encoder column, or a column's model is an int8 graph, which has no fp32 form.
    """
    from ranker.pipeline import CHUNK, Pipeline
    from rerankers.registry import build_columns

    config = load_config(system)
    encoders = [column for column in config.columns if column.family == "encoder"]
    if not encoders:
        raise ArgumentError(f"{config.name} has no column of family encoder")
    taxonomy = load_taxonomy(config.taxonomy)
    tasks = load_tasks(data, taxonomy=taxonomy)
    named = [(task, *pair) for task in tasks for pair in zip(task.query_ids, task.queries, strict=True)]
    pairs = [(text, task.qrels[name]) for task, name, text in named[:n_queries]]
    judged = [{taxonomy.index[uri]: grade for uri, grade in row.items() if uri in taxonomy.index} for _, row in pairs]
    pipeline = Pipeline(replace(config, columns=(), fusion=FusionConfig()), taxonomy, fused=False)
    queries = [normalise(text, strip_bullets=config.strip_bullets) for text, _ in pairs]
    chunks = [queries[start : start + CHUNK] for start in range(0, len(queries), CHUNK)]
    pool = np.concatenate([pipeline.inputs(chunk).pool for chunk in chunks])
    found = {}
    for column in encoders:
        head = np.ascontiguousarray(pool[:, : column.depth])
        scores = []
        for precision in ("float32", "int8"):
            spec = replace(column, options={**column.options, "precision": precision})
            stage = build_columns([spec])[column.name]
            stage.fit(taxonomy)
            scores.append(stage.score(queries, head))
        found[column.name] = compare(scores[0], scores[1], head, judged, len(taxonomy))
    return found


def _export(given: argparse.Namespace) -> int:
    from rerankers.classifier import Source
    from rerankers.onnx import FILE, export

    folder = export(Source(given.model, given.adapter), given.out)
    size = (folder / FILE).stat().st_size
    if given.json:
        emit({"folder": str(folder), "bytes": size})
    else:
        say(f"{folder / FILE}: {size / 1e6:.1f} MB; use it as model: {folder}, precision: int8")
    return 0


def _check(given: argparse.Namespace) -> int:
    found = check(given.config, given.data, n_queries=given.queries)
    if given.json:
        emit(found)
        return 0
    names = ("queries", "spearman", "spearman_min", "ndcg_reference", "ndcg", "ndcg_lost", "passed")
    say(table([(column, *(row[name] for name in names)) for column, row in found.items()], ("column", *names)))
    say(f"to pass: mean Spearman of at least {SPEARMAN}, at most {LOST} of nDCG@100 lost")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `--help`."""
    arguments = parser(
        "ranker.quantise",
        "Export a cross-encoder as an int8 graph, or measure int8 against fp32 for the columns of a system.",
        "python -m ranker.quantise export --model build/column --out checkpoints/embedded/column\n"
        "  python -m ranker.quantise check --config embedded --data DIR",
    )
    commands = arguments.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export", help="write graph, tokeniser and manifest")
    export.add_argument("--model", required=True, help="path, package:NAME or hub id of a sequence classifier")
    export.add_argument("--adapter", help="PEFT adapter, merged into the weights")
    export.add_argument("--out", required=True, type=Path, metavar="DIR")
    export.set_defaults(act=_export)
    checks = commands.add_parser("check", help="Spearman per query and nDCG lost, over the head of the pool")
    checks.add_argument("--config", default="embedded", help="name or path of a system (default: embedded)")
    checks.add_argument("--data", required=True, metavar="DIR", help="graded tasks as BEIR folders")
    checks.add_argument("--queries", type=positive, metavar="N", help="only the first N queries")
    checks.set_defaults(act=_check)
    for command in (export, checks):
        command.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    given = arguments.parse_args(argv)
    act: Any = given.act
    return int(act(given))


if __name__ == "__main__":
    raise SystemExit(run(main))
