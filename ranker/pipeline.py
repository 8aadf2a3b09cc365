"""The one scoring path: lanes -> pool -> columns -> fusion -> ranking.

Training, evaluation, challenge files, the service and batch tagging all come through here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusion.features import PoolInputs
from lanes.base import DerivedLane, Lane
from lanes.registry import build_lanes
from ranker.core.config import SystemConfig, load_config
from ranker.core.errors import ArgumentError, RankerError
from ranker.core.match import matched_name, spaced
from ranker.core.order import top_rows, zscore
from ranker.core.sources import load_taxonomy
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise
from ranker.core.types import Explanation, Float32, Int32, RankedSkill, Ranking, Tagging
from rerankers.base import Column
from rerankers.cascade import run_columns
from rerankers.registry import build_columns

if TYPE_CHECKING:
    from fusion.model import FusionModel

CHECKPOINT_DIR = Path(__file__).resolve().parents[1] / "checkpoints"
WORKERS = 2  # lanes scored side by side, each on one thread; scores do not depend on it
CHUNK = 32  # queries held in memory at a time; a ranking does not depend on it


def _rounds(lanes: Mapping[str, Lane]) -> list[list[str]]:
    """Return the lanes in rounds: a derived lane's base is in an earlier round than itself.

    In the first, one lane with a model starts and those without keep the other worker busy while it encodes the query.
    """
    plain = [name for name, lane in lanes.items() if not isinstance(lane, DerivedLane)]
    neural = [name for name in plain if lanes[name].backbones()]
    rounds = [neural[:1] + [name for name in plain if name not in neural] + neural[:0:-1]]
    left = {name: lane.base for name, lane in lanes.items() if isinstance(lane, DerivedLane)}
    while left:
        rounds.append([name for name, base in left.items() if base not in left])
        left = {name: base for name, base in left.items() if base in left}
    return rounds


@dataclass(frozen=True)
class Scored:
    """The final order of a chunk of queries.

    Attributes
    ----------
    rows : int32[n_queries, k]
        Taxonomy rows, best first.
    scores : float32[n_queries, k]
        Fused scores, descending.
    probabilities : float32[n_queries, k] or None
        P(grade >= 2).
    inputs : PoolInputs
        What the fusion saw.
    positions : int32[n_queries, k]
        Where each row stands in the pool.
    """

    rows: Int32
    scores: Float32
    probabilities: Float32 | None
    inputs: PoolInputs
    positions: Int32


class Pipeline:
    """All stages of one system over one taxonomy. `seconds` says what each has spent so far."""

    def __init__(self, config: SystemConfig, taxonomy: Taxonomy, *, fused: bool = True) -> None:
        """Build and index every stage; `fused=False` leaves the trained bag out, for training one."""
        self.config = config
        self.taxonomy = taxonomy
        self.lanes = build_lanes(config.lanes)
        self.columns = build_columns(config.columns)
        # The bag first: where it does not fit the taxonomy, that shows before minutes of embedding.
        self.fusion: FusionModel | None = None
        if fused and config.fusion.checkpoint is not None:
            from fusion.model import FusionModel  # LightGBM costs two seconds, and plain systems have no use for it

            folder = Path(config.fusion.checkpoint)
            self.fusion = FusionModel.load(
                folder if folder.is_absolute() or folder.is_dir() else CHECKPOINT_DIR / folder,
                taxonomy=taxonomy,
                config_digest=config.digest,
            )
        stages: dict[str, Lane | Column] = {**self.lanes, **self.columns}
        for name, stage in stages.items():
            try:
                stage.fit(taxonomy)
            except RankerError as error:
                raise type(error)(f"{config.name}: {name}: {error}") from error
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="lane")
        self._rounds = _rounds(self.lanes)
        self.seconds = {"lanes": 0.0, "columns": 0.0, "fusion": 0.0}  # spent so far

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - start

    def lane_scores(self, queries: Sequence[str]) -> dict[str, Float32]:
        """Return float32[n_queries, n_skills] of each lane, for normalised queries."""
        scores: dict[str, Float32] = {}

        def one(name: str) -> Float32:
            lane = self.lanes[name]
            return lane.smooth(scores[lane.base]) if isinstance(lane, DerivedLane) else lane.score(queries)

        for names in self._rounds:
            scores.update(zip(names, self._workers.map(one, names), strict=True))
        for name, values in scores.items():
            if not np.isfinite(values).all():
                raise RankerError(f"lane {name} gave a score that is not finite; nothing was ranked")
        return {name: scores[name] for name in self.lanes}

    def base(self, lane_scores: Mapping[str, Float32]) -> Float32:
        """Return the weighted sum of per-query z-scores, float32[n_queries, n_skills]."""
        parts = [np.float32(weight) * zscore(lane_scores[name]) for name, weight in self.config.pool.weights.items()]
        total: Float32 = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def inputs(self, queries: Sequence[str]) -> PoolInputs:
        """Run lanes, pool and columns for normalised queries."""
        with self._timed("lanes"):
            lane_scores = self.lane_scores(queries)
            base = self.base(lane_scores)
            pool = top_rows(base, self.config.pool.size)
        with self._timed("columns"):
            columns = run_columns(
                self.config.columns, base, pool, lambda spec, part: self.columns[spec.name].score(queries, part)
            )
        return PoolInputs(queries=list(queries), lanes=lane_scores, base=base, pool=pool, columns=columns)

    def fuse(self, inputs: PoolInputs, top_k: int) -> Scored:
        """Order the pool by the bag, or by the base score where the system has none, and cut to `top_k`."""
        probabilities = None
        if self.fusion is None:
            scores = np.take_along_axis(inputs.base, inputs.pool, axis=1)
        else:
            fused = self.fusion.score(inputs)
            scores, probabilities = fused.scores, fused.probabilities[2]
        # The tie rule speaks of taxonomy rows, the pool is in the order of the base score: sort it by row first.
        by_row = np.argsort(inputs.pool, axis=1, kind="stable")
        best = top_rows(np.take_along_axis(scores, by_row, axis=1), top_k)
        positions = np.take_along_axis(by_row, best, axis=1).astype(np.int32)

        def pick(values: Any) -> Any:
            return np.take_along_axis(values, positions, axis=1)

        return Scored(
            rows=pick(inputs.pool),
            scores=pick(scores),
            probabilities=None if probabilities is None else pick(probabilities),
            inputs=inputs,
            positions=positions,
        )

    def run(self, queries: Sequence[str], top_k: int) -> Iterator[Scored]:
        """Score normalised queries chunk by chunk."""
        for start in range(0, len(queries), CHUNK):
            inputs = self.inputs(queries[start : start + CHUNK])
            with self._timed("fusion"):
                scored = self.fuse(inputs, top_k)
            yield scored


class SkillRanker:
    """Rank the skills of a taxonomy for texts about work.

    Examples
    --------
    >>> ranker = SkillRanker.load("embedded")  # doctest: +SKIP
    >>> ranker.rank(["welding of aluminium frames"], top_k=3)[0].skills[0].label  # doctest: +SKIP
    'weld metal'
    """

    def __init__(self, config: SystemConfig, taxonomy: Taxonomy) -> None:
        self.config = config
        self.taxonomy = taxonomy
        self.pipeline = Pipeline(config, taxonomy)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, system: str | Path = "embedded", *, taxonomy: Taxonomy | None = None) -> SkillRanker:
        """Load a system by config name or path.

        Parameters
        ----------
        system : str or Path
            Name of a file in configs/, or the path of a YAML file.
        taxonomy : Taxonomy, optional
            Default: the one the config names, built the first time.
        """
        config = load_config(system)
        return cls(config, load_taxonomy(config.taxonomy) if taxonomy is None else taxonomy)

    def backbones(self) -> dict[str, int]:
        """Return the parameters of each distinct neural model, a shared one once."""
        found: dict[str, int] = {}
        stages: list[Lane | Column] = [*self.pipeline.lanes.values(), *self.pipeline.columns.values()]
        for stage in stages:
            found.update(stage.backbones())
        return found

    def prepare(self, texts: Sequence[object]) -> tuple[list[str], list[str]]:
        """Return normalised texts, and for each the reason why it cannot be ranked ("" where it can)."""
        queries = [normalise(text, strip_bullets=self.config.strip_bullets) for text in texts]
        reasons = []
        for text, query in zip(texts, queries, strict=True):
            if not isinstance(text, str):
                reasons.append(f"not a text but {type(text).__name__}")
            elif not query:
                reasons.append("the text is empty")
            elif not any(character.isalnum() for character in query):
                reasons.append("the text holds no letter or digit")
            else:
                reasons.append("")
        return queries, reasons

    def order(self, texts: Sequence[object], top_k: int | None = None) -> tuple[Int32, Float32]:
        """Rank without records, for evaluation and challenge files.

        Returns
        -------
        rows : int32[n_texts, top_k]
            Taxonomy rows, best first; -1 where a text has no ranking or the pool is shorter.
        scores : float32[n_texts, top_k]
            Fused scores; 0 where the row is -1.
        """
        top_k = top_k or self.config.top_k
        queries, reasons = self.prepare(texts)
        good = [i for i, reason in enumerate(reasons) if not reason]
        rows = np.full((len(texts), top_k), -1, dtype=np.int32)
        scores = np.zeros((len(texts), top_k), dtype=np.float32)
        with self._lock:
            start = 0
            for chunk in self.pipeline.run([queries[i] for i in good], top_k):
                at = good[start : start + len(chunk.rows)]
                rows[at, : chunk.rows.shape[1]] = chunk.rows
                scores[at, : chunk.rows.shape[1]] = chunk.scores
                start += len(at)
        return rows, scores

    def rank(
        self, texts: Sequence[object], *, top_k: int | None = None, min_probability: float | None = None
    ) -> list[Ranking]:
        """Rank the skills for each text, best first.

        Parameters
        ----------
        texts : sequence of str
            A text that is empty or no string gets an empty ranking with a reason; the others are not touched by it.
        top_k : int, optional
            At most this many skills; default from the config (100).
        min_probability : float, optional
            Leave out skills whose probability of grade >= 2 is lower. The ranking may come out empty.

        Raises
        ------
        ArgumentError
            If one string is given instead of a list, or a probability is asked of a system without calibration.
        """
        if isinstance(texts, str):
            raise ArgumentError("rank takes a list of texts; write rank([text])")
        if top_k is not None and top_k < 1:
            raise ArgumentError(f"top_k must be at least 1, got {top_k}")
        if min_probability is not None and self.pipeline.fusion is None:
            raise ArgumentError(f"{self.config.name} has no calibrated probabilities; use a system with a fusion")
        queries, reasons = self.prepare(texts)
        pairs = zip(texts, reasons, strict=True)
        rankings = [Ranking(text if isinstance(text, str) else "", (), reason) for text, reason in pairs]
        good = [i for i, reason in enumerate(reasons) if not reason]
        at = iter(good)
        with self._lock:
            for chunk in self.pipeline.run([queries[i] for i in good], top_k or self.config.top_k):
                for j in range(len(chunk.rows)):
                    i = next(at)
                    skills = tuple(self._records(chunk, j, min_probability))
                    reason = "" if skills else f"no skill reaches probability {min_probability}"
                    rankings[i] = Ranking(rankings[i].query, skills, reason)
        return rankings

    def tag(
        self, documents: Sequence[object], *, top_k: int | None = None, min_probability: float | None = None
    ) -> list[Tagging]:
        """Tag whole documents: sentence by sentence, merged by concept."""
        raise NotImplementedError

    def explain(self, text: str, skill: str) -> Explanation:
        """Say why a skill, named by URI or label, stands where it stands for a text."""
        raise NotImplementedError

    def _records(self, chunk: Scored, j: int, min_probability: float | None) -> Iterator[RankedSkill]:
        inputs = chunk.inputs
        z = {name: zscore(scores[j : j + 1])[0] for name, scores in inputs.lanes.items()}
        words = spaced(inputs.queries[j])
        for rank, row in enumerate(map(int, chunk.rows[j])):
            probability = None if chunk.probabilities is None else float(chunk.probabilities[j, rank])
            if min_probability is not None and probability is not None and probability < min_probability:
                continue
            evidence: dict[str, Any] = {"lanes": {name: round(float(values[row]), 2) for name, values in z.items()}}
            for name, values in inputs.columns.items():
                value = float(values[j, chunk.positions[j, rank]])
                if np.isfinite(value):
                    evidence.setdefault("columns", {})[name] = round(value, 3)
            match = matched_name(words, (self.taxonomy.label[row], *self.taxonomy.alt_labels[row]))
            if match is not None:
                evidence["matched"] = match
            yield RankedSkill(
                uri=self.taxonomy.uri[row],
                label=self.taxonomy.label[row],
                score=float(chunk.scores[j, rank]),
                probability=probability,
                evidence=evidence,
            )
