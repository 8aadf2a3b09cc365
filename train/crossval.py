"""Cross-validation of a fusion: folds by query, a prior counted inside each fold, out-of-fold scores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion.bag import EXPECTED_GAIN, ORDINAL, TAUGHT, Bag, BagScores, train_bag
from fusion.features import ABSOLUTE, GROUPS, FeatureTable, PoolInputs, Statics, build_features
from fusion.prior import SkillPrior
from ranker.core import metrics
from ranker.core.artifacts import cached_array
from ranker.core.errors import ArgumentError, InputError
from ranker.core.types import Float32

JUDGE_PARAMS: Mapping[str, Any] = {**EXPECTED_GAIN, "learning_rate": 0.1}
JUDGE_ROUNDS = 100
TAUGHT_PARAMS: Mapping[str, Any] = {**EXPECTED_GAIN, "num_leaves": 31, "min_data_in_leaf": 300}
TAUGHT_ROUNDS = 300
NEGATIVE_SHARE = 1 / 3  # weight of all texts without a skill beside that of all queries, in training the judge

Int8 = NDArray[np.int8]
Rows = NDArray[np.intp]
HELPER_TASK = ""
"""Task name of queries that only ever train; they are in no fold and in no figure."""
NEGATIVE_TASK = "-"
"""Task name of texts that ask for no skill: in folds, for the probabilities' sake, and in no figure of a ranking."""


@dataclass(frozen=True)
class GradedPool:
    """Queries with lane scores, pool and grades.

    Attributes
    ----------
    inputs : PoolInputs
        As the pipeline makes them (out-of-fold scores where a lane or column was trained on the grades).
    grades : int8[n_queries, k]
        At the pool's positions, -1 where unjudged.
    ideal : int8[n_queries, most judged]
        Every judged grade of the query, descending, zero-filled.
    tasks : tuple of str
        Task of each query, for balance and for the mean; or `HELPER_TASK` or `NEGATIVE_TASK`.
    query_ids : tuple of str
        In the same order.
    fingerprint : str
        Of the queries, grades and scores.
    trained : tuple of str
        Lanes whose scores are out of fold: each fold's model has its own scale.
    """

    inputs: PoolInputs
    grades: Int8
    ideal: Int8
    tasks: tuple[str, ...]
    query_ids: tuple[str, ...]
    fingerprint: str
    trained: tuple[str, ...] = ()

    @property
    def judged_tasks(self) -> tuple[str, ...]:
        """Names of the tasks that figures are made of."""
        return tuple(sorted(set(self.tasks) - {HELPER_TASK, NEGATIVE_TASK}))

    def of_task(self, *names: str) -> NDArray[np.bool_]:
        """Return bool[n_queries]: which queries belong to one of the tasks."""
        return np.isin(np.array(self.tasks), names)

    def rows(self, rows: Rows) -> GradedPool:
        """Return some of the queries."""
        return replace(
            self, inputs=self.inputs.rows(rows), grades=self.grades[rows], ideal=self.ideal[rows],
            tasks=tuple(self.tasks[i] for i in rows), query_ids=tuple(self.query_ids[i] for i in rows),
            fingerprint=f"{self.fingerprint}-{hashlib.sha256(rows.tobytes()).hexdigest()[:8]}",
        )


@dataclass(frozen=True)
class Recipe:
    """How one fusion is made.

    Attributes
    ----------
    groups : tuple of str
        Feature groups.
    params : tuple of mapping
        LightGBM parameters, dealt to the members in turn.
    rounds : int
        Trees per member.
    members : int
        Size of the bag.
    judge : bool
        Whether a judge is trained beside the members that order; figures of rankings need none.
    shuffled_prior : bool
        Control: the prior counts grades that were shuffled within each pool.
    """

    groups: tuple[str, ...] = GROUPS
    params: tuple[Mapping[str, Any], ...] = ORDINAL
    rounds: int = 300
    members: int = 4
    judge: bool = True
    shuffled_prior: bool = False

    def seeds(self, start: int) -> list[int]:
        """Return the seeds of the members."""
        return [1000 * start + i for i in range(self.members)]


def static_table(pool: GradedPool, statics: Statics, note: Callable[[str], None] | None = None) -> FeatureTable:
    """Return every feature that does not depend on training labels, float32[n_queries, k, n_features], cached."""
    groups = tuple(group for group in GROUPS if group not in {"prior", "taught"})
    key = {"data": pool.fingerprint, "statics": statics.fingerprint, "groups": groups, "graph": _graph_key(statics)}
    names = build_features(pool.inputs.rows(np.arange(min(1, len(pool.tasks)))), statics, None, groups).names

    def compute() -> Float32:
        if note is not None:
            note(f"features of {len(pool.tasks)} queries")
        return build_features(pool.inputs, statics, None, groups).values

    return FeatureTable(names, cached_array("features", {**key, "names": names}, compute))


def _graph_key(statics: Statics) -> str:
    if statics.graph is None:
        return ""
    return hashlib.sha256(statics.graph.index.tobytes() + statics.graph.weight.tobytes()).hexdigest()[:16]


def group_of(name: str) -> str:
    """Return the feature group that a feature's name belongs to."""
    head = name.split(".")[0]
    return _GROUP_OF_HEAD[f"{head}.{name.split('.')[1]}" if head in {"rank", "base"} else head]


_GROUP_OF_HEAD = {
    "lane": "lanes", "column": "columns", "agree": "aggregates", "z": "aggregates", "base.z": "aggregates",
    "base.log_rank": "aggregates", "rank.reciprocal": "aggregates", "rank.best": "aggregates",
    "rank.deviation": "disagreement", "rank.range": "disagreement", "base.below_top": "disagreement",
    "query": "disagreement", "skill": "lengths", "length": "lengths", "hit": "evidence", "words": "evidence",
    "group": "groups", "neighbour": "neighbours", "prior": "prior", ABSOLUTE: "absolute",
    "taught": "taught",
}  # fmt: skip


def design(
    pool: GradedPool, static: FeatureTable, statics: Statics, recipe: Recipe, train: Rows, *, seed: int = 0
) -> tuple[FeatureTable, SkillPrior | None]:
    """Return the recipe's features for every query, the prior counted over `train` alone and leave-one-out on it.

    Parameters
    ----------
    pool, static, statics : GradedPool, FeatureTable, Statics
        The data, and its features without prior.
    recipe : Recipe
        Which groups.
    train : intp[n]
        Rows of the training queries. The prior counts those of them that ask for something.
    seed : int
        Of the shuffle in the control.

    Returns
    -------
    FeatureTable, SkillPrior or None
    """
    chosen = [name for name in static.names if group_of(name) in recipe.groups]
    names, taught = [name for name in chosen if name not in TAUGHT], [name for name in chosen if name in TAUGHT]
    if "prior" not in recipe.groups:
        return FeatureTable((*names, *taught), static.select([*names, *taught])), None
    grades = pool.grades
    if recipe.shuffled_prior:
        grades = np.random.default_rng(seed).permuted(grades, axis=1)
    inside = np.zeros(len(grades), dtype=bool)
    inside[train] = True
    inside &= ~pool.of_task(NEGATIVE_TASK)
    prior = SkillPrior.fit(pool.inputs.pool[inside], grades[inside], statics.levels, statics.graph)
    made = [
        prior.columns(pool.inputs.pool[i].astype(np.int64), grades[i] if inside[i] else None)
        for i in range(len(grades))
    ]
    columns = np.stack([np.stack([column for _, column in query], axis=1) for query in made])
    values = np.concatenate([static.select(names), columns, static.select(taught)], axis=2)
    return FeatureTable((*names, *(name for name, _ in made[0]), *taught), values), prior


def fit(
    pool: GradedPool, table: FeatureTable, recipe: Recipe, train: Rows, *, seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Bag:
    """Train the recipe's bag on some queries.

    An unjudged skill is learned as grade 0, as the metric counts it.

    The members that order see neither the texts that ask for no skill, which would teach them that the first of a pool
    is no better than the rest, nor the lanes' scores as they are. The judge sees both, those of trained lanes excepted.
    """
    values, grades = table.values[train], pool.grades[train]
    negative = pool.of_task(NEGATIVE_TASK)[train]
    asks = ~negative
    absolute = [name.startswith(f"{ABSOLUTE}.") for name in table.names]
    bag = train_bag(
        np.where(absolute, np.float32(0), values[asks]), grades[asks], table.names, params=recipe.params,
        rounds=recipe.rounds, seeds=recipe.seeds(seed), progress=progress,
    )
    if not recipe.judge:
        return bag
    weights = np.ones(grades.shape, np.float32)
    weights[negative] = NEGATIVE_SHARE * asks.sum() / max(int(negative.sum()), 1)
    scaled = [name in {f"{ABSOLUTE}.{lane}" for lane in pool.trained} for name in table.names]
    judge = train_bag(
        np.where(scaled, np.float32(0), values), grades, table.names, params=(JUDGE_PARAMS,),
        rounds=min(recipe.rounds, JUDGE_ROUNDS), seeds=recipe.seeds(seed)[:1], weights=weights,
    )
    return replace(bag, judges=judge.members)


def teach(pool: GradedPool, static: FeatureTable, groups: Sequence[str], rows: Rows) -> Bag:
    """Train the bag that helpers alone teach, whose order is a feature of the other: one for every fold.

    Helpers are many, and graded by others than the judged queries: mixed with them they would teach their graders'
    habits. What is unjudged of them is left out, for they were judged less deep: much of it would be grade 1.

    Parameters
    ----------
    pool, static
        The data, and its features without prior.
    groups : sequence of str
        Feature groups of the system; the lanes' scores as they are and the prior are not read.
    rows : intp[n]
        Helpers, none of them a near-duplicate of a judged query.

    Raises
    ------
    InputError
        If there is nothing to learn from.
    """
    names = [name for name in static.names if group_of(name) in {*groups} - {"absolute", "prior", "taught"}]
    weights = (pool.grades[rows] >= 0).astype(np.float32)
    if not weights.any():
        raise InputError(
            "--helpers: none is left that has a judged skill in its pool and is not like a judged query; give others, "
            "or leave --helpers out"
        )
    table = FeatureTable(static.names, static.values[rows])
    return train_bag(
        table.select(names), pool.grades[rows], names, params=(TAUGHT_PARAMS,), rounds=TAUGHT_ROUNDS, seeds=(0,),
        weights=weights,
    )


def cross_validate(
    pool: GradedPool,
    static: FeatureTable,
    statics: Statics,
    recipe: Recipe,
    folds: Rows,
    *,
    seed: int = 0,
    workers: int = 2,
) -> BagScores:
    """Return out-of-fold scores; each fold's come from a bag and a prior that saw no label of the fold.

    Parameters
    ----------
    pool, static, statics, recipe
        As for `design`.
    folds : intp[n_queries]
        Fold of each query, -1 for those that only train.
    seed : int
        Of the members.
    workers : int
        Folds trained at the same time, one thread each.

    Returns
    -------
    BagScores
        Two float32[n_queries, k], cached by everything they depend on; NaN for queries in no fold.
    """
    if set(np.unique(folds)) <= {-1, 0}:
        raise ArgumentError("cross-validation needs at least two folds")

    def one(fold: int) -> tuple[Rows, BagScores]:
        train, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        table, _ = design(pool, static, statics, recipe, train, seed=seed)
        return held, fit(pool, table, recipe, train, seed=seed).score(table.values[held])

    def compute() -> Float32:
        scores = np.full((2, *pool.grades.shape), np.nan, np.float32)
        with ThreadPoolExecutor(workers) as executor:
            for held, part in executor.map(one, [int(f) for f in np.unique(folds) if f >= 0]):
                scores[:, held] = part
        return scores

    key = {
        "data": pool.fingerprint, "names": static.names, "graph": _graph_key(statics), "folds": folds.tolist(),
        "seed": seed, "recipe": {**vars(recipe), "params": [dict(params) for params in recipe.params]}, "format": 4,
        "judge": [dict(JUDGE_PARAMS), JUDGE_ROUNDS, NEGATIVE_SHARE],
    }
    return BagScores(*cached_array("fusion-cv", key, compute))


def evaluate(pool: GradedPool, scores: Float32) -> dict[str, Any]:
    """Return macro nDCG@100, nDCG@100 per task and the mean composition of the window.

    Parameters
    ----------
    scores : float32[n_queries, k]
        At the pool's positions; queries of no task that counts are left out.

    Returns
    -------
    dict
        {"macro", "tasks": {name: value}, "composition": {"0".."4", "holes": slots}, "nonsense": grade 0 + holes}.
    """
    judged = pool.of_task(*pool.judged_tasks)
    tasks = np.array(pool.tasks)[judged]
    scores = np.where(np.isfinite(scores), scores, -np.inf)[judged]
    by_row = np.argsort(pool.inputs.pool[judged], axis=1, kind="stable")
    order = np.argsort(-np.take_along_axis(scores, by_row, axis=1), axis=1, kind="stable")[:, : metrics.WINDOW]
    grades = np.take_along_axis(np.take_along_axis(pool.grades[judged], by_row, axis=1), order, axis=1)
    value = metrics.ndcg(grades, pool.ideal[judged], k=metrics.WINDOW)
    per_task = {task: metrics.mean(value[tasks == task]) for task in pool.judged_tasks}
    slots = metrics.composition(grades).mean(axis=0)
    composition = dict(zip(metrics.SLOTS, map(float, slots), strict=True))
    return {
        "macro": float(np.mean(list(per_task.values()))),
        "tasks": per_task,
        "composition": composition,
        "nonsense": composition["0"] + composition["holes"],
    }


def without(recipe: Recipe, *groups: str) -> Recipe:
    """Return the recipe without some feature groups."""
    return replace(recipe, groups=tuple(group for group in recipe.groups if group not in groups))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation (n - 1) over repetitions; 0 for a single one."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
