"""What a column is trained on, put together so that nothing leaks: queries, pools, folds, sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanes.encoder import EncoderPool
from ranker.core import metrics
from ranker.core.artifacts import cached_array, digest
from ranker.core.cli import note
from ranker.core.config import SystemConfig
from ranker.core.errors import ArgumentError, InputError
from ranker.core.order import top_rows
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32
from ranker.pipeline import Pipeline
from train.fusion import CHUNK, read_scores, score_lanes
from train.lanes import Graded, load_graded
from train.rerank.fit import Stage
from train.rerank.lists import (
    LADDER,
    alike,
    graded_lists,
    load_sentences,
    sentence_lists,
    training_rows,
)


@dataclass(frozen=True)
class Recipe:
    """Everything that the weights depend on beside the data.

    Attributes
    ----------
    model : str
        See `ranker.core.models.resolve_model`.
    causal, lora, view, max_length
        As for `train.rerank.scorer.Scorer`; `view` is what is read of a skill.
    loss, targets : str
        Keys of `LOSSES` and `TARGETS`.
    depth : int
        Skills of a pool that lists are drawn from, and that are scored.
    rate : float
        Highest learning rate.
    batch : int
        Lists per step.
    ladder_size, ladder_passes, head_gain
        Stage 1: candidates of a list, how often a sentence is met, gain of the lane's first ranks that are not gold.
    list_size, passes
        Stage 2: candidates of a list, how often a query is met.
    seed : int
    """

    model: str
    causal: bool = False
    lora: int = 0
    view: str = "label_description"
    max_length: int = 192
    loss: str = "lambda"
    targets: str = "graded"
    depth: int = 100
    rate: float = 5e-5
    batch: int = 8
    ladder_size: int = 13
    ladder_passes: int = 1
    head_gain: float = 0.0
    list_size: int = 24
    passes: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Source:
    """Where the data comes from; the attributes are the arguments of `train.rerankers`."""

    data: str
    near_model: str
    helpers: str | None = None
    folds: Path | None = None
    sentences: Path | None = None
    ladder_lane: str | None = None
    lane_oof: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """What a training works on.

    Attributes
    ----------
    graded : Graded
    pool : int32[n_queries, at least 100]
        Of lanes that saw no grade of their query.
    first : Stage or None
        Sentences.
    second : Stage
        Graded queries.
    train : tuple of intp[n]
        Per fold, the usable queries that may train the model that scores it.
    counts : dict
        Texts used and left out, by reason.
    """

    graded: Graded
    pool: Int32
    first: Stage | None
    second: Stage
    train: tuple[NDArray[np.intp], ...]
    counts: dict[str, int]

    @property
    def fingerprint(self) -> str:
        """Hash of everything."""
        lists = [stage.lists.fingerprint for stage in (self.first, self.second) if stage]
        rows = [part.tolist() for part in self.train]
        return digest([lists, rows, self.graded.folds.tolist(), digest(self.pool.tobytes().hex())])[:16]


def prepare(source: Source, recipe: Recipe, config: SystemConfig, taxonomy: Taxonomy) -> Study:
    """Load queries and sentences, leave out what would leak, and make the lists."""
    graded = load_graded(
        taxonomy, source.data, source.helpers, source.folds, model=source.near_model, strip_bullets=config.strip_bullets
    )
    pool = clean_pool(config, taxonomy, graded, source.lane_oof, recipe.depth)
    lists = graded_lists(graded, pool[:, : recipe.depth], recipe.targets)
    vectors = embed(source.near_model, graded.texts)
    same = alike(graded.texts, vectors, graded.texts, vectors)
    train = [lists.usable(training_rows(graded.folds, same, fold)) for fold in range(int(graded.folds.max()) + 1)]
    if not all(map(len, train)):
        raise ArgumentError("a fold leaves no query to train on; give more graded queries or fewer folds")
    counts = {"queries": len(graded.texts), "queries_with_one_grade": len(graded.texts) - len(lists.usable())}
    shared: dict[str, Any] = {"batch": recipe.batch, "rate": recipe.rate, "loss": recipe.loss, "seed": recipe.seed}
    second = Stage(lists, 2, recipe.list_size, passes=recipe.passes, **shared)
    first = None
    if source.sentences is not None:
        found = load_sentences(source.sentences, taxonomy, strip_bullets=config.strip_bullets)
        near = np.any(alike(found.texts, embed(source.near_model, found.texts), graded.texts, vectors), axis=1)
        kept = found.without(near)
        if not kept.texts:
            raise InputError(f"{source.sentences}: no sentence is left for stage 1; leave --sentences out")
        counts |= {"sentences": len(kept.texts), "sentences_like_a_query": int(near.sum())}
        ranking = lane_ranking(config, taxonomy, source.ladder_lane, kept.texts)
        ladder = sentence_lists(kept, ranking, recipe.head_gain)
        first = Stage(ladder, 1, recipe.ladder_size, passes=recipe.ladder_passes, **shared)
    return Study(graded, pool, first, second, tuple(train), counts)


def clean_pool(config: SystemConfig, taxonomy: Taxonomy, graded: Graded, oof: Sequence[str], depth: int) -> Int32:
    """Return the pool of every query as the system's lanes make it, out of fold where a lane was trained.

    Raises
    ------
    ArgumentError
        If a tuned lane has no out-of-fold scores: its own would pick the pool by the grades that are to be learned.
    """
    pipeline = Pipeline(replace(config, columns=()), taxonomy, fused=False)
    replaced = read_scores(oof, list(pipeline.lanes), len(graded.texts))
    for lane in config.lanes:
        if lane.family == "tuned" and lane.name not in replaced:
            raise ArgumentError(
                f"lane {lane.name} was trained on graded queries; give its out-of-fold scores with "
                f"--lane-oof {lane.name}=FILE.npy (train.lanes --oof makes them)"
            )
    scores = score_lanes(pipeline, graded.texts, replaced, {"taxonomy": taxonomy.fingerprint})
    return top_rows(pipeline.base(scores), max(depth, metrics.WINDOW))


def lane_ranking(config: SystemConfig, taxonomy: Taxonomy, name: str | None, texts: Sequence[str]) -> Int32:
    """Return the first ranks that one lane gives the skills for some texts, int32[n_texts, deepest rung], cached.

    Raises
    ------
    ArgumentError
        If there is no such lane, or it was trained on graded queries.
    """
    lanes = {lane.name: lane for lane in config.lanes if lane.family != "tuned" and "base" not in lane.options}
    spec = lanes.get(name or next(iter(lanes), ""))
    if spec is None:
        raise ArgumentError(f"ladder lane {name}: no untrained lane of that name; there are: {', '.join(lanes)}")
    depth = LADDER[-1] + LADDER[0]  # some are gold
    key = {"taxonomy": taxonomy.fingerprint, "lane": [spec.family, spec.options], "texts": list(texts), "depth": depth}

    def compute() -> Int32:
        lone = replace(config, lanes=(spec,), columns=(), pool=replace(config.pool, weights={spec.name: 1.0}))
        pipeline, made = Pipeline(lone, taxonomy, fused=False), []
        for start in range(0, len(texts), CHUNK):
            made.append(top_rows(pipeline.lane_scores(texts[start : start + CHUNK])[spec.name], depth))
            if start % (40 * CHUNK) == 0:
                note(f"ladder: {start} of {len(texts)} sentences")
        return np.concatenate(made)

    return np.asarray(cached_array("ladder", key, compute), np.int32)


def embed(model: str, texts: Sequence[str]) -> Float32:
    """Return float32[n_texts, width], length 1, for finding near-duplicates; cached."""
    encoder = EncoderPool().get(model)
    key = {"encoder": encoder.revision, "texts": list(texts)}
    return cached_array("near", key, lambda: np.stack([encoder.query(text) for text in texts]))
