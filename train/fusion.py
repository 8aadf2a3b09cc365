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

from fusion.bag import EXPECTED_GAIN, LAMBDARANK, ORDINAL, Bag, BagScores, with_taught
from fusion.calibration import (
    THRESHOLDS,
    Calibration,
    calibration_error,
    choose_calibration,
    reliability,
    threshold_table,
)
from fusion.features import GROUPS, FeatureTable, PoolInputs, Statics, load_statics
from fusion.model import FusionModel
from fusion.override import apply_override, exact_names
from fusion.padded import Padded
from lanes.dense import DenseLane
from lanes.graph import neighbours
from lanes.registry import FAMILIES
from ranker.core import metrics
from ranker.core.artifacts import cache_dir, cached_array, digest, write_json
from ranker.core.cli import emit, note, parser, positive, run, say, table
from ranker.core.config import ColumnConfig, SystemConfig, load_config
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.order import top_rows
from ranker.core.sources import load_taxonomy
from ranker.core.tasks import GradedTask, load_tasks
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise
from ranker.core.types import Float32, Int32
from ranker.core.views import uses_revision
from ranker.pipeline import Pipeline
from ranker.plan import announce
from ranker.stages import content
from rerankers.cascade import run_columns
from train.card import fusion_card, plot_calibration
from train.crossval import (
    HELPER_TASK,
    NEGATIVE_TASK,
    GradedPool,
    Recipe,
    cross_validate,
    design,
    evaluate,
    fit,
    group_of,
    spread,
    static_table,
    teach,
    without,
)
from train.folds import duplicate_clusters, make_folds, read_folds, task_folds
from train.gate import SPOKEN, Readings, cross_fit, gate_figures

CHUNK = 16
OBJECTIVES = {"grades": ORDINAL, "gain": (EXPECTED_GAIN,), "lambdarank": (LAMBDARANK,)}
NEGATIVES = Path(__file__).parent / "labels" / "data" / "boilerplate.txt"


@dataclass(frozen=True)
class Study:
    """What a run works on: graded pool, its features, what a gate reads, every repetition's folds, the helpers' bag."""

    pool: GradedPool
    static: FeatureTable
    statics: Statics
    readings: Readings
    folds: tuple[NDArray[np.intp], ...]
    workers: int
    taught: Bag | None = None

    def scores(self, recipe: Recipe, repetition: int = 0) -> BagScores:
        """Return out-of-fold scores under one repetition's folds and seeds."""
        return cross_validate(
            self.pool, self.static, self.statics, recipe, self.folds[repetition], seed=repetition, workers=self.workers
        )

    def task_scores(self, recipe: Recipe) -> Float32:
        """Return scores where each task was left out of training as a whole."""
        judged = self.pool.of_task(*self.pool.judged_tasks)
        folds = np.full(len(judged), -1, dtype=np.intp)
        folds[judged] = task_folds([task for task in self.pool.tasks if task in self.pool.judged_tasks])
        recipe = replace(recipe, judge=False)
        return cross_validate(self.pool, self.static, self.statics, recipe, folds, workers=self.workers).order


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
    lanes = {
        lane.name: {"family": lane.family, **{option: content(value) for option, value in lane.options.items()}}
        for lane in pipeline.config.lanes
    }
    where = cache_dir() / "arrays"
    key = {**key, "uses": uses_revision()}
    parts = {name: {**key, "lane": name, "options": lanes, "queries": list(queries)} for name in pipeline.lanes}
    found: dict[str, Float32] = {}

    def everything() -> dict[str, Float32]:
        if not found:
            pipeline.fill(queries, columns=False)
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


def read_negatives(path: Path) -> list[str]:
    """Read texts that ask for no skill, one a line; empty lines and those that begin with # are left out.

    Raises
    ------
    ResourceError
        If there is no such file.
    """
    if not path.is_file():
        raise ResourceError(f"--negatives: no file {path}; write none to train without")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def gather(
    pipeline: Pipeline, tasks: Sequence[GradedTask], helpers: Sequence[GradedTask], oof: Sequence[str],
    negatives: Sequence[str] = (),
) -> GradedPool:
    """Score lanes, pool and columns of all training queries and look their grades up.

    Tasks are taken in the order of their names, queries in the order of their file; helpers come after them, then the
    texts that ask for no skill: their whole pool is grade 0, and what is given out of fold does not reach them, for no
    lane or column learned from them.
    """
    config, taxonomy = pipeline.config, pipeline.taxonomy
    ordered = [*sorted(tasks, key=lambda task: task.name), *sorted(helpers, key=lambda task: task.name)]
    names = [task.name if number < len(tasks) else HELPER_TASK for number, task in enumerate(ordered)]
    raw = [query for task in ordered for query in task.queries]
    queries = [normalise(text, strip_bullets=config.strip_bullets) for text in raw]
    nothing = [normalise(text, strip_bullets=config.strip_bullets) for text in negatives]
    labels = [*(task.qrels[query_id] for task in ordered for query_id in task.query_ids), *({} for _ in nothing)]
    judged = [{taxonomy.index[uri]: grade for uri, grade in row.items() if uri in taxonomy.index} for row in labels]
    known = [*pipeline.lanes, *pipeline.columns]
    replaced = read_scores(oof, known, len(queries))
    key = {"taxonomy": taxonomy.fingerprint}
    lanes = score_lanes(pipeline, queries, {k: v for k, v in replaced.items() if k in pipeline.lanes}, key)
    if nothing:
        more = score_lanes(pipeline, nothing, {}, key)
        lanes = {name: np.concatenate([scores, more[name]]) for name, scores in lanes.items()}
    base = pipeline.base(lanes)
    pool = top_rows(base, config.pool.size)

    def scored(spec: ColumnConfig, texts: list[str], part: Int32) -> Float32:
        return cached_array(
            "column-scores",
            {**key, "column": spec.name, "options": spec.options, "queries": texts,
             "models": sorted(pipeline.columns[spec.name].backbones()),
             "pool": hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest()},
            lambda: pipeline.columns[spec.name].score(texts, part),
        )

    def column(spec: ColumnConfig, part: Int32) -> Float32:
        """Return a column's scores of its part of the pool: the out-of-fold ones where they are given."""
        given, graded = replaced.get(spec.name), part[: len(queries)]
        if given is None:
            made = scored(spec, queries, graded)
        elif given.shape[1] == len(taxonomy):
            made = np.take_along_axis(given, graded, axis=1)
        else:
            raise InputError(f"--oof {spec.name}: expected a column per skill ({len(taxonomy)})")
        return np.concatenate([made, scored(spec, nothing, part[len(queries) :])]) if nothing else made

    columns = run_columns(config.columns, base, pool, column)
    order = hashlib.sha256()
    order.update(json.dumps(sorted(replaced)).encode())
    for array in (*lanes.values(), base, *columns.values()):
        order.update(np.ascontiguousarray(array[:, ::97] if array.shape[1] > 1000 else array).tobytes())
    grades = metrics.ranked_grades(pool, judged, len(taxonomy))
    grades[len(queries) :] = 0
    ideal = metrics.ideal_grades([list(row.values()) for row in labels])
    for integers in (pool, grades, ideal):
        order.update(integers.tobytes())
    texts = [*queries, *nothing]
    order.update(json.dumps([texts, names, list(lanes), list(columns)]).encode())
    per_query = [name for task, name in zip(ordered, names, strict=True) for _ in range(len(task))]
    return GradedPool(
        inputs=PoolInputs(texts, lanes, base, pool, columns),
        grades=grades,
        ideal=ideal,
        tasks=(*per_query, *[NEGATIVE_TASK] * len(nothing)),
        query_ids=(*(query_id for task in ordered for query_id in task.query_ids), *[""] * len(nothing)),
        fingerprint=order.hexdigest()[:16],
        trained=tuple(name for name in lanes if name in replaced),
    )


def dense_lanes(pipeline: Pipeline) -> list[DenseLane]:
    """Return the dense lanes of a system themselves, also where their scores are kept."""
    kinds = {name for name, kind in FAMILIES.items() if isinstance(kind, type) and issubclass(kind, DenseLane)}
    names = [lane.name for lane in pipeline.config.lanes if lane.family in kinds]
    return [lane for lane in map(pipeline.lane, names) if isinstance(lane, DenseLane)]


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
    lanes = dense_lanes(pipeline)
    if not lanes:
        return None
    vectors = np.concatenate([lane.vectors for lane in lanes], axis=1) / np.sqrt(np.float32(len(lanes)))
    rows, cosines = neighbours(vectors, k, {"lanes": [lane.key(pipeline.taxonomy) for lane in lanes]})
    weight = np.maximum(cosines, 0) ** np.float32(power)
    stored = weight.astype(np.float16).astype(np.float32)  # as it will be read back
    return Padded(np.asarray(rows, np.int32), stored, len(vectors)).normalised()


def query_folds(pool: GradedPool, embeddings: Float32 | None, repetitions: int, file: Path | None) -> list[Any]:
    """Return one fold assignment per repetition; those of `file` come first, queries that only train get -1.

    Near-duplicates share a fold. Texts that ask for no skill are dealt to the folds in turn. `embeddings` are those of
    all queries but those that only train.
    """
    judged = np.flatnonzero(pool.of_task(*pool.judged_tasks))
    negative = np.flatnonzero(pool.of_task(NEGATIVE_TASK))
    tasks = [pool.tasks[i] for i in judged]
    clusters, nothing = (
        duplicate_clusters([pool.inputs.queries[i] for i in rows], part)
        for rows, part in zip(
            (judged, negative), (None, None) if embeddings is None else np.split(embeddings, [len(judged)]), strict=True
        )
    )
    made = []
    for seed in range(repetitions):
        folds = np.full(len(pool.tasks), -1, dtype=np.intp)
        if seed == 0 and file is not None:
            folds[judged] = read_folds(file, [pool.query_ids[i] for i in judged], tasks)
        else:
            folds[judged] = make_folds(clusters, tasks, seed=seed)
        kinds = np.unique(folds[judged])
        folds[negative] = kinds[(np.unique(nothing, return_inverse=True)[1] + seed) % len(kinds)]
        made.append(folds)
    return made


def query_embeddings(pipeline: Pipeline, queries: Sequence[str]) -> Float32 | None:
    """Return the queries' embeddings by the first dense lane, for finding near-duplicates; None without such a lane."""
    lanes = dense_lanes(pipeline)
    return np.stack([lanes[0].encoder.query(query) for query in queries]) if lanes else None


def summary(study: Study, recipe: Recipe) -> dict[str, Any]:
    """Cross-validate under every repetition: the mean figures, and the spread of the macro over repetitions."""
    results = []
    for repetition in range(len(study.folds)):
        results.append(evaluate(study.pool, study.scores(recipe, repetition).order))
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
    for fold in sorted(set(study.folds[0].tolist())):
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
    best = study.scores(recipe).order
    recipe = replace(recipe, judge=False)
    rung("learned fusion without prior", study.scores(without(recipe, "prior")).order)
    rung("learned fusion", best)
    rung("learned fusion, shuffled prior", study.scores(replace(recipe, shuffled_prior=True)).order)
    rung("learned fusion, alt-label override", apply_override(np.nan_to_num(best), exact_names(study.static)))
    rung("learns the gain", study.scores(replace(recipe, params=(EXPECTED_GAIN,))).order)
    rung("LambdaRank objective", study.scores(replace(recipe, params=(LAMBDARANK,))).order)
    rung("task left out: without prior", study.task_scores(without(recipe, "prior")))
    rung("task left out: learned fusion", study.task_scores(recipe))
    for group in recipe.groups:
        # The prior, which is in no static table, is priced above; absolute scores have no say in the order.
        if group != "absolute" and any(group_of(name) == group for name in study.static.names):
            rung(f"without {group}", study.scores(without(recipe, group)).order)
    return rows


AT = (0.3, SPOKEN)  # probabilities at which a text without a skill counts as having one


def calibrate(study: Study, recipe: Recipe) -> tuple[dict[int, Calibration], dict[str, Any]]:
    """Fit probabilities to the out-of-fold levels of the first repetition, and say how good they are.

    A curve is that of texts that ask for a skill; the gate, if texts that ask for none are there to train one, says how
    likely a text does.

    Returns
    -------
    dict, dict
        The curve of each grade threshold. And of each: its kind; the calibration error of the curves across folds, and
        of what comes out on graded queries and on everything; precision and recall at thresholds over the graded
        queries; and the share of the texts that ask for no skill whose best skill still reaches a probability. Under
        "gate", what the gate does to grade 2 and above.
    """
    folds = study.folds[0]
    level, grades = study.scores(recipe).level, study.pool.grades
    asks = ~study.pool.of_task(NEGATIVE_TASK)
    gated = has_gate(study)
    opened = cross_fit(study.pool, study.readings, folds) if gated else np.ones(len(asks), np.float32)
    fold = np.repeat(folds[asks], grades.shape[1])
    curves, report = {}, {}
    for grade in THRESHOLDS:
        relevant = grades >= grade
        chosen = choose_calibration(level[asks].ravel(), relevant[asks].ravel(), fold)
        curves[grade] = chosen.curve
        plain = chosen.curve(level)  # no text without a skill was used to fit it
        plain[asks] = chosen.across_folds.reshape(-1, grades.shape[1])
        said = plain * opened[:, None]
        best = said.max(axis=1)
        report[str(grade)] = {
            "kind": chosen.curve.kind,
            "expected_calibration_error": chosen.error,
            "graded_calibration_error": calibration_error(said[asks].ravel(), relevant[asks].ravel()),
            "whole_calibration_error": calibration_error(said.ravel(), relevant.ravel()),
            "reliability": reliability(said[asks].ravel(), relevant[asks].ravel()).tolist(),
            "thresholds": threshold_table(said[asks].ravel(), relevant[asks].ravel(), int(asks.sum())),
            "without_a_skill": {
                "texts": int((~asks).sum()),
                **{f"at {least}": float(np.mean(best[~asks] >= least)) for least in AT if not asks.all()},
            },
        }
        if gated and grade == THRESHOLDS[0]:
            report["gate"] = gate_figures(asks, opened, plain.max(axis=1), best)
    return curves, report


def has_gate(study: Study) -> bool:
    """Tell whether texts that ask for no skill are in two folds at least: enough to train and measure a gate."""
    return len(set(study.folds[0][study.pool.of_task(NEGATIVE_TASK)].tolist())) > 1


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
    for outer in sorted(set(folds.tolist())):
        inner = np.where(folds == outer, -2, folds)
        kept = np.flatnonzero(inner != -2)
        pool = study.pool.rows(kept)
        static = FeatureTable(study.static.names, study.static.values[kept])
        small = replace(study, pool=pool, static=static, folds=(inner[kept],))
        tried = []
        for change in GRID:
            params = tuple({**params, **change} for params in recipe.params)
            candidate = replace(recipe, members=len(params), judge=False, params=params)
            tried.append(evaluate(pool, small.scores(candidate).order)["macro"])
        best = int(np.argmax(tried))
        chosen.append({"fold": outer, "chosen": GRID[best], "inner": tried})
        note(f"  fold {outer}: {GRID[best]}, inner macro {tried[best]:.4f}")
        final = replace(recipe, judge=False, params=tuple({**params, **GRID[best]} for params in recipe.params))
        table_, _ = design(study.pool, study.static, study.statics, final, kept)
        held = np.flatnonzero(folds == outer)
        scores[held] = fit(study.pool, table_, final, kept).score(table_.values[held]).order
    return {**evaluate(study.pool, scores), "folds": chosen}


def refit(
    study: Study, recipe: Recipe, curves: dict[int, Calibration], config: SystemConfig, about: dict[str, Any], *,
    override: bool,
) -> FusionModel:
    """Train bag and gate on every query."""
    everything = np.arange(len(study.pool.tasks))
    made, prior = design(study.pool, study.static, study.statics, recipe, everything)
    bag = fit(study.pool, made, recipe, everything, progress=lambda done: note(f"  member {done} of {recipe.members}"))
    gate = study.readings.fit(~study.pool.of_task(NEGATIVE_TASK), everything) if has_gate(study) else None
    return FusionModel(
        study.statics, bag, prior, curves, recipe.groups, config.digest, override=override, gate=gate,
        taught=study.taught, about=about,
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
    note(f"cross-validation, {arguments.repetitions} repetitions of {len(set(study.folds[0].tolist()))} folds")
    negatives = int(study.pool.of_task(NEGATIVE_TASK).sum())
    counts = {"queries": len(study.pool.tasks) - negatives, "without_a_skill": negatives}
    report: dict[str, Any] = {"config": config.name, **counts, "cv": summary(study, recipe)}
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
            **counts,
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
        plot_calibration(report["calibration"], folder / "calibration.png")
        (folder / "README.md").write_text(fusion_card(config.name, about, report), encoding="utf-8")
    report["seconds"] = round(time.monotonic() - started, 1)
    if arguments.json:
        emit(report)
    else:
        say(_text(report))
    return 0


def taught_bag(pipeline: Pipeline, pool: GradedPool, statics: Statics, groups: Sequence[str]) -> Bag:
    """Return the bag of those helpers that are no near-duplicate of a judged query."""
    queries, helper = pool.inputs.queries, pool.of_task(HELPER_TASK)
    near = duplicate_clusters(queries, query_embeddings(pipeline, queries))
    apart = np.flatnonzero(helper & ~np.isin(near, near[pool.of_task(*pool.judged_tasks)]))
    note(f"{len(apart)} of {helper.sum()} helpers teach a bag; the others are like a judged query")
    return teach(pool, static_table(pool, statics, note), groups, apart)


def prepare(
    arguments: argparse.Namespace, config: SystemConfig, taxonomy: Taxonomy, groups: tuple[str, ...]
) -> tuple[Study, Recipe]:
    """Load tasks, score lanes, build features and folds."""
    tasks = load_tasks(arguments.data, taxonomy=taxonomy)
    for name, reason in tasks.failed.items():
        note(f"left out: {name}: {reason}")
    helpers = load_tasks(arguments.helpers, taxonomy=taxonomy) if arguments.helpers else ()
    if arguments.stage_wise:
        unfused = replace(config, fusion=replace(config.fusion, checkpoint=None))  # the bag is what is to be made
        announce(unfused, taxonomy, [query for task in (*tasks, *helpers) for query in task.queries], stage_wise=True)
    pipeline = Pipeline(config, taxonomy, fused=False, stage_wise=arguments.stage_wise)
    negatives = [] if arguments.negatives == "none" else read_negatives(Path(arguments.negatives))
    pool = gather(pipeline, list(tasks), list(helpers), arguments.oof, negatives)
    graph = skill_graph(pipeline) if {"neighbours", "prior"} & set(groups) else None
    statics = load_statics(taxonomy, graph)
    dense = [lane for lane in dense_lanes(pipeline) if lane.name not in pool.trained]
    vectors = dense[0].vectors if dense else np.zeros((len(taxonomy), 0), np.float32)
    helper = pool.of_task(HELPER_TASK)
    readings = Readings.of(pool, dense[0].name if dense else "", vectors).rows(np.argsort(helper, kind="stable"))
    taught = taught_bag(pipeline, pool, statics, groups) if helper.any() and "taught" in groups else None
    pool = pool.rows(np.flatnonzero(~helper))
    static = with_taught(static_table(pool, statics, note), taught)
    if taught is not None:
        pool = replace(pool, fingerprint=f"{pool.fingerprint}-{digest([taught.members, taught.names])[:8]}")
    embeddings = query_embeddings(pipeline, pool.inputs.queries)
    folds = query_folds(pool, embeddings, arguments.repetitions, Path(arguments.folds) if arguments.folds else None)
    recipe = Recipe(
        groups=groups, params=OBJECTIVES[arguments.objective], rounds=arguments.rounds, members=arguments.members,
    )
    return Study(pool, static, statics, readings, tuple(folds), arguments.workers, taught), recipe


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    made = parser(
        "train.fusion",
        "Train the learned fusion of a system: cross-validated figures first, then a bag on everything.",
        "python -m train.fusion --config embedded --data DIR --out checkpoints/embedded",
    )
    made.add_argument("--config", required=True, help="system, by name or path")
    made.add_argument("--data", required=True, help="graded tasks: a folder in BEIR layout, or hub")
    made.add_argument("--helpers", help="more graded queries (BEIR layout): they teach the gate and a "
                      "bag whose order is a feature, and are in no fold and no figure")
    made.add_argument("--negatives", metavar="FILE", default=str(NEGATIVES), help="texts that ask for no skill, one a "
                      "line, which gate and judge learn from (default: those in train/labels/data; none: without)")
    made.add_argument("--oof", action="append", default=[], metavar="NAME=FILE", help="out-of-fold scores of a lane "
                      "or column that was trained on these grades: .npy, a row per query (tasks by name, file order; "
                      "then the helpers), a column per skill")
    made.add_argument("--folds", help="JSON of query id -> fold for the first repetition")
    made.add_argument("--out", help="folder for the trained bag")
    made.add_argument("--repetitions", type=positive, default=3, help="cross-validations, each with its own folds")
    made.add_argument("--members", type=positive, default=4, help="rankers in the bag")
    made.add_argument("--rounds", type=positive, default=300, help="trees per ranker")
    made.add_argument("--objective", choices=tuple(OBJECTIVES), default="grades",
                      help="what a ranker learns: the chance of one grade, the gain, or the order")
    made.add_argument("--stage-wise", action="store_true",
                      help="keep each stage's scores on disk, one model in memory at a time")
    made.add_argument("--workers", type=positive, default=2, help="folds trained at the same time")
    made.add_argument("--override", action="store_true", help="a query that names a skill puts it first")
    made.add_argument("--ladder", action="store_true", help="price every rung, control and feature group")
    made.add_argument("--nested", action="store_true", help="search hyper-parameters inside folds")
    made.add_argument("--json", action="store_true", help="print the report as one JSON object")
    arguments = made.parse_args(argv)
    if arguments.members % len(OBJECTIVES[arguments.objective]):
        raise ArgumentError(f"--members {arguments.members}: --objective grades trains one per grade; give 4, 8, ...")
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
    if "gate" in report["calibration"]:
        gate = report["calibration"]["gate"]
        nothing, asked = gate["without_a_skill"], gate["graded"]
        rows = [[f"given a skill at {SPOKEN}, no gate", nothing["spoken_ungated"], asked["spoken_ungated"]],
                ["given a skill, with the gate", nothing["spoken"], asked["spoken"]],
                [f"gate at {SPOKEN} or above", nothing["let_through"], 1 - asked["held_back"]]]
        lines += ["", f"gate: area under the ROC curve {gate['auc']:.4f}",
                  table(rows, ["share of texts", "without a skill", "graded"])]
    if "ladder" in report:
        rows = [[row["name"], row["macro"], *row["tasks"].values(), row["nonsense"]] for row in report["ladder"]]
        lines += ["", table(rows, ["rung", "macro", *cv["tasks"], "nonsense"])]
    if "nested" in report:
        lines += ["", f"hyper-parameters chosen inside folds: macro {report['nested']['macro']:.4f}"]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(run(main))
