"""Train the learned fusion: score the lanes, cross-validate, price every feature group, refit on everything, save.

`python -m train.fusion --config embedded --data DIR --out checkpoints/embedded`
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion.bag import EXPECTED_GAIN, LAMBDARANK
from fusion.calibration import THRESHOLDS, Calibration, choose_calibration, threshold_table
from fusion.features import GROUPS, FeatureTable, PoolInputs, Statics, load_statics
from fusion.model import FusionModel
from fusion.override import apply_override, exact_names
from fusion.padded import Padded
from lanes.dense import DenseLane
from lanes.graph import neighbours
from ranker.core import metrics
from ranker.core.artifacts import cache_dir, cached_array, write_json
from ranker.core.cli import emit, note, parser, positive, run, say, table
from ranker.core.config import ColumnConfig, SystemConfig, load_config
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.order import top_rows
from ranker.core.sources import load_taxonomy
from ranker.core.tasks import GradedTask, load_tasks
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise
from ranker.core.types import Float32, Int32
from ranker.pipeline import Pipeline
from rerankers.cascade import run_columns
from train.card import fusion_card
from train.crossval import (
    HELPER_TASK,
    GradedPool,
    Recipe,
    cross_validate,
    design,
    evaluate,
    fit,
    spread,
    static_table,
    without,
)
from train.folds import duplicate_clusters, make_folds, read_folds, task_folds

CHUNK = 16


@dataclass(frozen=True)
class Study:
    """Everything a run works on: the graded pool, its features, and the folds of every repetition."""

    pool: GradedPool
    static: FeatureTable
    statics: Statics
    folds: tuple[NDArray[np.intp], ...]
    workers: int

    def scores(self, recipe: Recipe, repetition: int = 0) -> Float32:
        """Return out-of-fold scores under one repetition's folds and seeds."""
        return cross_validate(
            self.pool, self.static, self.statics, recipe, self.folds[repetition], seed=repetition, workers=self.workers
        )

    def task_scores(self, recipe: Recipe) -> Float32:
        """Return scores where each task was left out of training as a whole."""
        judged = np.array([task != HELPER_TASK for task in self.pool.tasks])
        folds = np.full(len(judged), -1, dtype=np.intp)
        folds[judged] = task_folds([task for task in self.pool.tasks if task != HELPER_TASK])
        return cross_validate(self.pool, self.static, self.statics, recipe, folds, workers=self.workers)


def score_lanes(
    pipeline: Pipeline, queries: Sequence[str], replaced: Mapping[str, Float32], key: Mapping[str, Any]
) -> dict[str, Float32]:
    """Return every lane's scores for the training queries, cached lane by lane.

    Parameters
    ----------
    pipeline : Pipeline
        Without its bag.
    queries : sequence of str
        Normalised.
    replaced : mapping of str to float32[n_queries, n_skills]
        Out-of-fold scores of lanes that were trained on these queries' grades.
    key : mapping
        Of the cache.
    """
    lanes = {lane.name: {"family": lane.family, **lane.options} for lane in pipeline.config.lanes}
    where = cache_dir() / "arrays"
    parts = {name: {**key, "lane": name, "options": lanes, "queries": list(queries)} for name in pipeline.lanes}
    found: dict[str, Float32] = {}

    def everything() -> dict[str, Float32]:
        if not found:
            made = []
            for start in range(0, len(queries), CHUNK):
                made.append(pipeline.lane_scores(queries[start : start + CHUNK]))
                note(f"lanes: {min(start + CHUNK, len(queries))} of {len(queries)} queries")
            found.update({name: np.concatenate([part[name] for part in made]) for name in made[0]})
        return found

    scores = {}
    for name in pipeline.lanes:
        if name in replaced:
            scores[name] = replaced[name]
        else:
            scores[name] = cached_array("lane-scores", parts[name], lambda name=name: everything()[name], where)
    return scores


def read_scores(arguments: Sequence[str], names: Sequence[str], n_queries: int) -> dict[str, Float32]:
    """Read NAME=FILE.npy arguments: out-of-fold scores, one row per training query.

    Raises
    ------
    ArgumentError
        Not of that form, or a name that is no lane or column of the config.
    ResourceError, InputError
        A file that is not there, or has another number of rows, or holds a value that is not finite.
    """
    found: dict[str, Float32] = {}
    for argument in arguments:
        name, _, file = argument.partition("=")
        if not file:
            raise ArgumentError(f"--oof {argument!r}: write NAME=FILE.npy")
        if name not in names:
            raise ArgumentError(f"--oof {name}: no such lane or column; there are: {', '.join(names)}")
        if not Path(file).is_file():
            raise ResourceError(f"--oof {name}: no file {file}")
        array = np.load(file, allow_pickle=False).astype(np.float32)
        if array.ndim != 2 or len(array) != n_queries:
            raise InputError(f"--oof {name}: {file} has shape {array.shape}; expected one row for {n_queries} queries")
        found[name] = array
    return found


def gather(
    pipeline: Pipeline, tasks: Sequence[GradedTask], helpers: Sequence[GradedTask], oof: Sequence[str]
) -> GradedPool:
    """Score lanes, pool and columns of all training queries and look their grades up.

    Tasks are taken in the order of their names, queries in the order of their file; helpers come after them.
    """
    config, taxonomy = pipeline.config, pipeline.taxonomy
    ordered = [*sorted(tasks, key=lambda task: task.name), *sorted(helpers, key=lambda task: task.name)]
    names = [task.name if number < len(tasks) else HELPER_TASK for number, task in enumerate(ordered)]
    raw = [query for task in ordered for query in task.queries]
    queries = [normalise(text, strip_bullets=config.strip_bullets) for text in raw]
    labels = [task.qrels[query_id] for task in ordered for query_id in task.query_ids]
    judged = [{taxonomy.index[uri]: grade for uri, grade in row.items() if uri in taxonomy.index} for row in labels]
    known = [*pipeline.lanes, *pipeline.columns]
    replaced = read_scores(oof, known, len(queries))
    key = {"taxonomy": taxonomy.fingerprint}
    lanes = score_lanes(pipeline, queries, {k: v for k, v in replaced.items() if k in pipeline.lanes}, key)
    base = pipeline.base(lanes)
    pool = top_rows(base, config.pool.size)

    def column(spec: ColumnConfig, part: Int32) -> Float32:
        """Return a column's scores of its part of the pool: the out-of-fold ones where they are given."""
        given = replaced.get(spec.name)
        if given is not None:
            if given.shape[1] != len(taxonomy):
                raise InputError(f"--oof {spec.name}: expected a column per skill ({len(taxonomy)})")
            return np.take_along_axis(given, part, axis=1)
        return cached_array(
            "column-scores",
            {**key, "column": spec.name, "options": spec.options, "queries": queries,
             "models": sorted(pipeline.columns[spec.name].backbones()),
             "pool": hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest()},
            lambda: pipeline.columns[spec.name].score(queries, part),
        )

    columns = run_columns(config.columns, base, pool, column)
    order = hashlib.sha256()
    for array in (*lanes.values(), base, *columns.values()):
        order.update(np.ascontiguousarray(array[:, ::97] if array.shape[1] > 1000 else array).tobytes())
    grades = metrics.ranked_grades(pool, judged, len(taxonomy))
    ideal = metrics.ideal_grades([list(row.values()) for row in labels])
    for integers in (pool, grades, ideal):
        order.update(integers.tobytes())
    order.update(json.dumps([queries, names, list(lanes), list(columns)]).encode())
    return GradedPool(
        inputs=PoolInputs(queries, lanes, base, pool, columns),
        grades=grades,
        ideal=ideal,
        tasks=tuple(name for task, name in zip(ordered, names, strict=True) for _ in range(len(task))),
        query_ids=tuple(query_id for task in ordered for query_id in task.query_ids),
        fingerprint=order.hexdigest()[:16],
    )


def skill_graph(pipeline: Pipeline, *, k: int = 20, power: float = 4.0) -> Padded | None:
    """Return the similarity graph of the skills over all dense lanes of the system, rows summing to 1.

    Parameters
    ----------
    pipeline : Pipeline
        Its dense lanes' embeddings of a skill are put side by side.
    k : int
        Neighbours of a skill.
    power : float
        A neighbour weighs its cosine to this power.

    Returns
    -------
    Padded[n_skills, n_skills] or None
        None for a system without dense lanes.
    """
    lanes = [lane for lane in pipeline.lanes.values() if isinstance(lane, DenseLane)]
    if not lanes:
        return None
    vectors = np.concatenate([lane.vectors for lane in lanes], axis=1) / np.sqrt(np.float32(len(lanes)))
    rows, cosines = neighbours(vectors, k, {"lanes": [lane.key(pipeline.taxonomy) for lane in lanes]})
    weight = np.maximum(cosines, 0) ** np.float32(power)
    stored = weight.astype(np.float16).astype(np.float32)  # as it will be read back
    return Padded(np.asarray(rows, np.int32), stored, len(vectors)).normalised()


def query_folds(pool: GradedPool, embeddings: Float32 | None, repetitions: int, file: Path | None) -> list[Any]:
    """Return one fold assignment per repetition; those of `file` come first, queries that only train get -1."""
    judged = np.flatnonzero(np.array(pool.tasks) != HELPER_TASK)
    texts = [pool.inputs.queries[i] for i in judged]
    tasks = [pool.tasks[i] for i in judged]
    clusters = duplicate_clusters(texts, None if embeddings is None else embeddings[judged])
    made = []
    for seed in range(repetitions):
        folds = np.full(len(pool.tasks), -1, dtype=np.intp)
        if seed == 0 and file is not None:
            folds[judged] = read_folds(file, [pool.query_ids[i] for i in judged], tasks)
        else:
            folds[judged] = make_folds(clusters, tasks, seed=seed)
        made.append(folds)
    return made


def query_embeddings(pipeline: Pipeline, queries: Sequence[str]) -> Float32 | None:
    """Return the queries' embeddings by the first dense lane, for finding near-duplicates; None without such a lane."""
    for lane in pipeline.lanes.values():
        if isinstance(lane, DenseLane):
            return np.stack([lane.encoder.query(query) for query in queries])
    return None


def summary(study: Study, recipe: Recipe) -> dict[str, Any]:
    """Cross-validate under every repetition: the mean figures, and the spread of the macro over repetitions."""
    results = []
    for repetition in range(len(study.folds)):
        results.append(evaluate(study.pool, study.scores(recipe, repetition)))
        note(f"  repetition {repetition}: macro nDCG@100 {results[-1]['macro']:.4f}")
    mean, deviation = spread([result["macro"] for result in results])
    return {
        "macro": mean,
        "deviation": deviation,
        "repetitions": [result["macro"] for result in results],
        "tasks": {task: spread([r["tasks"][task] for r in results])[0] for task in study.pool.judged_tasks},
        "composition": {slot: spread([r["composition"][slot] for r in results])[0] for slot in metrics.SLOTS},
        "nonsense": spread([result["nonsense"] for result in results])[0],
    }


def prior_alone(study: Study, recipe: Recipe) -> Float32:
    """Return out-of-fold scores that order every pool by the skill's own prior gain, whatever the query asks."""
    scores = np.full(study.pool.grades.shape, np.nan, np.float32)
    for fold in sorted(set(study.folds[0].tolist()) - {-1}):
        train, held = np.flatnonzero(study.folds[0] != fold), np.flatnonzero(study.folds[0] == fold)
        made, _ = design(study.pool, study.static, study.statics, replace(recipe, groups=("prior",)), train)
        scores[held] = made.select(["prior.skill.gain"])[held, :, 0]
    return scores


def ladder(study: Study, recipe: Recipe) -> list[dict[str, Any]]:
    """Price rungs, controls and every feature group, each cross-validated under the first repetition's folds."""
    k = study.pool.grades.shape[1]
    rows: list[dict[str, Any]] = []

    def rung(name: str, scores: Float32) -> None:
        result = evaluate(study.pool, scores)
        rows.append({"name": name, **result})
        note(f"  {name}: {result['macro']:.4f}")

    rung("pool order (weighted z-fusion)", np.broadcast_to(-np.arange(k, dtype=np.float32), study.pool.grades.shape))
    rung("skill prior alone, in the pool", prior_alone(study, recipe))
    best = study.scores(recipe)
    rung("learned fusion without prior", study.scores(without(recipe, "prior")))
    rung("learned fusion", best)
    rung("learned fusion, shuffled prior", study.scores(replace(recipe, shuffled_prior=True)))
    rung("learned fusion, alt-label override", apply_override(np.nan_to_num(best), exact_names(study.static)))
    rung("LambdaRank objective", study.scores(replace(recipe, params=(LAMBDARANK,))))
    rung("task left out: without prior", study.task_scores(without(recipe, "prior")))
    rung("task left out: learned fusion", study.task_scores(recipe))
    for group in recipe.groups:
        if group != "prior":
            rung(f"without {group}", study.scores(without(recipe, group)))
    if HELPER_TASK in study.pool.tasks:
        rung("without helper queries", study.scores(replace(recipe, helper_weight=0.0)))
    return rows


def calibrate(study: Study, recipe: Recipe) -> tuple[dict[int, Calibration], dict[str, Any]]:
    """Fit probabilities to the out-of-fold scores of the first repetition, and say how good they are."""
    folds = study.folds[0]
    judged = folds >= 0
    scores = study.scores(recipe)[judged].ravel()
    grades = study.pool.grades[judged].ravel()
    fold = np.repeat(folds[judged], study.pool.grades.shape[1])
    curves, report = {}, {}
    for grade in THRESHOLDS:
        curves[grade], error = choose_calibration(scores, grades >= grade, fold)
        report[str(grade)] = {
            "kind": curves[grade].kind,
            "expected_calibration_error": error,
            "thresholds": threshold_table(curves[grade](scores), grades >= grade, int(judged.sum())),
        }
    return curves, report


GRID: tuple[dict[str, Any], ...] = tuple(
    {"learning_rate": rate, "num_leaves": leaves, "min_data_in_leaf": least}
    for rate, leaves, least in ((0.05, 15, 50), (0.05, 31, 50), (0.03, 15, 100), (0.05, 7, 50), (0.08, 15, 100))
)


def nested(study: Study, recipe: Recipe) -> dict[str, Any]:
    """Choose the hyper-parameters inside each outer fold by cross-validation over its training queries alone.

    Returns
    -------
    dict
        The outer folds' figures, and the choice of each.
    """
    folds = study.folds[0]
    scores = np.full(study.pool.grades.shape, np.nan, np.float32)
    chosen = []
    for outer in sorted(set(folds.tolist()) - {-1}):
        inner = np.where(folds == outer, -2, folds)
        kept = np.flatnonzero(inner != -2)
        pool = replace(
            study.pool, inputs=study.pool.inputs.rows(kept), grades=study.pool.grades[kept],
            ideal=study.pool.ideal[kept], tasks=tuple(study.pool.tasks[i] for i in kept),
            query_ids=tuple(study.pool.query_ids[i] for i in kept), fingerprint=f"{study.pool.fingerprint}-{outer}",
        )
        static = FeatureTable(study.static.names, study.static.values[kept])
        small = replace(study, pool=pool, static=static, folds=(inner[kept],))
        tried = []
        for change in GRID:
            candidate = replace(recipe, members=1, params=tuple({**params, **change} for params in recipe.params))
            tried.append(evaluate(pool, small.scores(candidate))["macro"])
        best = int(np.argmax(tried))
        chosen.append({"fold": outer, "chosen": GRID[best], "inner": tried})
        note(f"  fold {outer}: {GRID[best]}, inner macro {tried[best]:.4f}")
        final = replace(recipe, params=tuple({**params, **GRID[best]} for params in recipe.params))
        table_, _ = design(study.pool, study.static, study.statics, final, kept)
        held = np.flatnonzero(folds == outer)
        scores[held] = fit(study.pool, table_, final, kept).score(table_.values[held])
    return {**evaluate(study.pool, scores), "folds": chosen}


def refit(
    study: Study, recipe: Recipe, curves: dict[int, Calibration], config: SystemConfig, about: dict[str, Any], *,
    override: bool,
) -> FusionModel:
    """Train the bag on every query, helpers included."""
    everything = np.arange(len(study.pool.tasks))
    made, prior = design(study.pool, study.static, study.statics, recipe, everything)
    bag = fit(study.pool, made, recipe, everything, progress=lambda done: note(f"  member {done} of {recipe.members}"))
    return FusionModel(
        study.statics, bag, prior, curves, recipe.groups, config.digest, override=override, about=about
    )


def libraries() -> dict[str, str]:
    """Return the versions that a trained bag depends on."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("lightgbm", "numpy", "scipy")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = _parse(argv)
    config = load_config(arguments.config)
    groups = tuple(config.fusion.features or GROUPS)
    started = time.monotonic()
    taxonomy = load_taxonomy(config.taxonomy)
    study, recipe = prepare(arguments, config, taxonomy, groups)
    note(f"cross-validation, {arguments.repetitions} repetitions of {len(set(study.folds[0].tolist()) - {-1})} folds")
    report: dict[str, Any] = {"config": config.name, "queries": len(study.pool.tasks), "cv": summary(study, recipe)}
    report["task_left_out"] = evaluate(study.pool, study.task_scores(recipe))
    note(f"  each task left out of training: macro {report['task_left_out']['macro']:.4f}")
    if arguments.ladder:
        note("ladder")
        report["ladder"] = ladder(study, recipe)
    if arguments.nested:
        note("nested search")
        report["nested"] = nested(study, recipe)
    curves, report["calibration"] = calibrate(study, recipe)
    if arguments.out is not None:
        note("refit on every query")
        folder = Path(arguments.out)
        about = {
            "config": config.name,
            "data": study.pool.fingerprint,
            "queries": len(study.pool.tasks),
            "rounds": recipe.rounds,
            "params": [dict(params) for params in recipe.params],
            "metrics": {
                "cv_macro_ndcg@100": report["cv"]["macro"],
                "cv_deviation": report["cv"]["deviation"],
                "task_left_out_macro_ndcg@100": report["task_left_out"]["macro"],
                "nonsense_in_window": report["cv"]["nonsense"],
            },
            "libraries": libraries(),
        }
        model = refit(study, recipe, curves, config, about, override=arguments.override)
        model.save(folder)
        report["importance"] = dict(list(model.bag.importance().items())[:25])
        write_json(folder / "report.json", report)
        (folder / "README.md").write_text(fusion_card(config.name, about, report), encoding="utf-8")
    report["seconds"] = round(time.monotonic() - started, 1)
    if arguments.json:
        emit(report)
    else:
        say(_text(report))
    return 0


def prepare(
    arguments: argparse.Namespace, config: SystemConfig, taxonomy: Taxonomy, groups: tuple[str, ...]
) -> tuple[Study, Recipe]:
    """Load tasks, score lanes, build features and folds."""
    tasks = load_tasks(arguments.data, taxonomy=taxonomy)
    for name, reason in tasks.failed.items():
        note(f"left out: {name}: {reason}")
    helpers = load_tasks(arguments.helpers, taxonomy=taxonomy) if arguments.helpers else ()
    pipeline = Pipeline(config, taxonomy, fused=False)
    pool = gather(pipeline, list(tasks), list(helpers), arguments.oof)
    graph = skill_graph(pipeline) if {"neighbours", "prior"} & set(groups) else None
    statics = load_statics(taxonomy, graph)
    embeddings = query_embeddings(pipeline, pool.inputs.queries)
    folds = query_folds(pool, embeddings, arguments.repetitions, Path(arguments.folds) if arguments.folds else None)
    params = {"gain": (EXPECTED_GAIN,), "lambdarank": (LAMBDARANK,), "both": (EXPECTED_GAIN, LAMBDARANK)}
    recipe = Recipe(
        groups=groups, params=params[arguments.objective], rounds=arguments.rounds, members=arguments.members,
        helper_weight=arguments.helper_weight,
    )
    return Study(pool, static_table(pool, statics, note), statics, tuple(folds), arguments.workers), recipe


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    made = parser(
        "train.fusion",
        "Train the learned fusion of a system: cross-validated figures first, then a bag on everything.",
        "python -m train.fusion --config embedded --data DIR --out checkpoints/embedded",
    )
    made.add_argument("--config", required=True, help="system, by name or path")
    made.add_argument("--data", required=True, help="graded tasks: a folder in BEIR layout, or hub")
    made.add_argument("--helpers", help="more graded queries (BEIR layout) that train but are in no fold and no figure")
    made.add_argument("--helper-weight", type=float, default=1.0, help="weight of their rows (default 1)")
    made.add_argument("--oof", action="append", default=[], metavar="NAME=FILE", help="out-of-fold scores of a lane "
                      "or column that was trained on these grades: .npy, a row per query (tasks by name, file order; "
                      "then the helpers), a column per skill")
    made.add_argument("--folds", help="JSON of query id -> fold for the first repetition")
    made.add_argument("--out", help="folder for the trained bag")
    made.add_argument("--repetitions", type=positive, default=3, help="cross-validations, each with its own folds")
    made.add_argument("--members", type=positive, default=4, help="rankers in the bag")
    made.add_argument("--rounds", type=positive, default=300, help="trees per ranker")
    made.add_argument("--objective", choices=("gain", "lambdarank", "both"), default="gain",
                      help="what a ranker learns")
    made.add_argument("--workers", type=positive, default=2, help="folds trained at the same time")
    made.add_argument("--override", action="store_true", help="a query that names a skill puts it first")
    made.add_argument("--ladder", action="store_true", help="price every rung, control and feature group")
    made.add_argument("--nested", action="store_true", help="search hyper-parameters inside folds")
    made.add_argument("--json", action="store_true", help="print the report as one JSON object")
    arguments = made.parse_args(argv)
    if arguments.helper_weight < 0:
        raise ArgumentError("--helper-weight must not be negative")
    return arguments


def _text(report: Mapping[str, Any]) -> str:
    cv, left_out = report["cv"], report["task_left_out"]["macro"]
    lines = [
        f"{report['config']}: cross-validated macro nDCG@100 {cv['macro']:.4f} ± {cv['deviation']:.4f}",
        f"each task left out: {left_out:.4f}, nonsense in the window: {cv['nonsense']:.1f} of 100",
        "",
        table([[task, cv["tasks"][task], report["task_left_out"]["tasks"][task]] for task in cv["tasks"]],
              ["task", "cross-validated", "left out"]),
    ]
    if "ladder" in report:
        rows = [[row["name"], row["macro"], *row["tasks"].values(), row["nonsense"]] for row in report["ladder"]]
        lines += ["", table(rows, ["rung", "macro", *cv["tasks"], "nonsense"])]
    if "nested" in report:
        lines += ["", f"hyper-parameters chosen inside folds: macro {report['nested']['macro']:.4f}"]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(run(main))
