"""The one scoring path: lanes -> pool -> columns -> fusion -> ranking.

Training, evaluation, challenge files, the service and batch tagging all come through here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from fusion.features import PoolInputs
from lanes.base import DerivedLane, Lane
from lanes.registry import build_lanes
from ranker.core.config import SystemConfig, load_config
from ranker.core.errors import ArgumentError, RankerError
from ranker.core.match import matched_name, spaced
from ranker.core.order import standardise, top_rows, zscore
from ranker.core.sources import load_taxonomy
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise
from ranker.core.types import Explanation, Float32, Int32, RankedSkill, Ranking, Tagging
from ranker.document import SPEAKS, UNCALIBRATED, merge_skills, split_document
from ranker.stages import Kept, Shelf, kept_stages
from rerankers.base import Column
from rerankers.cascade import run_columns
from rerankers.registry import ask_once, build_columns

if TYPE_CHECKING:
    from fusion.model import FusionModel

CHECKPOINT_DIR = Path(__file__).resolve().parents[1] / "checkpoints"
WORKERS = 2  # lanes scored side by side, each on one thread; scores do not depend on it
CHUNK = 32  # queries held in memory at a time; a ranking does not depend on it
_LOG = logging.getLogger(__name__)


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


def column_first(column: Float32, base: Float32) -> Float32:
    """Return float32[n_queries, k]: a column's scores, and below them what it did not score, by base score."""
    seen = np.isfinite(column)
    least = np.where(seen, column, np.inf).min(axis=1, keepdims=True)
    below = base - np.where(seen, -np.inf, base).max(axis=1, keepdims=True, initial=-np.inf)
    scores: Float32 = np.where(seen, column, least - 1 + below).astype(np.float32)
    return scores


class Pipeline:
    """All stages of one system over one taxonomy. `seconds` says what each has spent so far."""

    def __init__(
        self, config: SystemConfig, taxonomy: Taxonomy, *, fused: bool = True, stage_wise: bool = False
    ) -> None:
        """Build and index every stage.

        Parameters
        ----------
        config : SystemConfig
        taxonomy : Taxonomy
        fused : bool
            False leaves the trained bag out, for training one.
        stage_wise : bool
            Keep every stage's scores on disk, and one stage with its model in memory at a time; see `fill`.
        """
        self.config = config
        self.taxonomy = taxonomy
        self.lanes: Mapping[str, Lane]
        self.columns: Mapping[str, Column]
        self._shelf: Shelf | None = None
        if stage_wise:
            self.lanes, self.columns, self._shelf = kept_stages(config, taxonomy)
        else:
            self.lanes, self.columns = build_lanes(config.lanes), build_columns(config.columns)
            ask_once(self.columns.values())
        # The bag first: where it does not fit the taxonomy, that shows before minutes of embedding.
        self.fusion: FusionModel | None = None
        if fused and config.fusion.checkpoint is not None:
            from fusion.model import FusionModel  # plain systems have no use for it

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
        weights = self.config.pool.weights
        total = np.zeros_like(lane_scores[next(iter(weights))])
        for name, weight in weights.items():
            total += np.float32(weight) * zscore(lane_scores[name])
        return total

    def lane(self, name: str) -> Lane:
        """Return a lane itself, fitted; of a stage-wise pipeline it is made for the caller."""
        lane = self.lanes[name]
        return lane.make() if isinstance(lane, Kept) else lane

    def fill(self, queries: Sequence[str], *, columns: bool = True) -> None:
        """Score normalised queries stage by stage, so that each model of a stage-wise pipeline is loaded once.

        What is on disk already is not scored again: a run that was stopped, or whose stage failed, is run again alike.
        A stage that fails by itself (a GPU's memory, say) is tried once more here, its model loaded anew. The rankings
        that follow read the scores from disk. Any other pipeline has nothing to fill.

        Parameters
        ----------
        queries : sequence of str
        columns : bool
            False stops after the lanes.

        Raises
        ------
        RankerError
            If a stage fails for a reason that is known, or twice; the message names it.
        """
        if self._shelf is None:
            return
        chunks = [queries[start : start + CHUNK] for start in range(0, len(queries), CHUNK)]
        stages: list[tuple[str, Callable[[Sequence[str]], object]]] = [
            *((f"lane {name}", lane.score) for name, lane in self.lanes.items()),
            *(
                (f"column {column.name}", partial(self.inputs, columns=count))
                for count, column in enumerate(self.config.columns if columns else (), start=1)
            ),
        ]
        for number, (name, score) in enumerate(stages, start=1):
            with tqdm(total=len(queries), desc=f"{number}/{len(stages)} {name}", unit="query") as bar:
                for chunk in chunks:
                    if not self._attempt(name, partial(score, chunk), last=False):
                        self._shelf.clear()
                        self._attempt(name, partial(score, chunk), last=True)
                    bar.update(len(chunk))
        self._shelf.clear()

    def _attempt(self, name: str, score: Callable[[], object], *, last: bool) -> bool:
        """Run a stage and tell whether it went well; what failed is let go of, for it holds on to the model."""
        try:
            score()
        except (RankerError, RuntimeError, MemoryError) as error:
            known = isinstance(error, RankerError)
            if known or last:
                kind = type(error) if known else RankerError
                raise kind(
                    f"{name} failed: {error}; all scores before it are kept: run the same again to go on there"
                ) from error
            _LOG.warning("%s failed (%s: %s); it is tried once more", name, type(error).__name__, str(error))
            return False
        return True

    def inputs(self, queries: Sequence[str], *, columns: int | None = None) -> PoolInputs:
        """Run lanes, pool and the first `columns` columns (all by default) for normalised queries."""
        with self._timed("lanes"):
            lane_scores = self.lane_scores(queries)
            base = self.base(lane_scores)
            pool = top_rows(base, self.config.pool.size)
        with self._timed("columns"):
            scored = run_columns(
                self.config.columns[:columns],
                base,
                pool,
                lambda spec, part: self.columns[spec.name].score(queries, part),
            )
        return PoolInputs(queries=list(queries), lanes=lane_scores, base=base, pool=pool, columns=scored)

    def fuse(self, inputs: PoolInputs, top_k: int) -> Scored:
        """Order the pool by the bag, or by column or base score where the system has none, and cut to `top_k`."""
        probabilities = None
        if self.fusion is None:
            scores = np.take_along_axis(inputs.base, inputs.pool, axis=1)
            if self.config.fusion.order is not None:
                scores = column_first(inputs.columns[self.config.fusion.order], scores)
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

    def __init__(self, config: SystemConfig, taxonomy: Taxonomy, *, stage_wise: bool = False) -> None:
        self.config = config
        self.taxonomy = taxonomy
        self.pipeline = Pipeline(config, taxonomy, stage_wise=stage_wise)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, system: str | Path = "embedded", *, taxonomy: Taxonomy | None = None) -> SkillRanker:
        """Load a system by config name, or from a file or a folder.

        Parameters
        ----------
        system : str or Path
            Name of a file in configs/, the path of a YAML file, or that of a folder with a config.yaml and what it
            names (trained bag, tower, taxonomy).
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

    def _run(self, queries: Sequence[str], top_k: int) -> Iterator[Scored]:
        """Score normalised queries chunk by chunk; callers on other threads get their turn between two chunks."""
        for start in range(0, len(queries), CHUNK):
            with self._lock:
                chunk = next(self.pipeline.run(queries[start : start + CHUNK], top_k))
            yield chunk

    def prepare(self, texts: Sequence[object]) -> tuple[list[str], list[str]]:
        """Return normalised texts, and for each the reason why it cannot be ranked ("" where it can)."""
        queries = [normalise(text, strip_bullets=self.config.strip_bullets) for text in texts]
        return queries, [_reason(text, query) for text, query in zip(texts, queries, strict=True)]

    def fill(self, texts: Sequence[object]) -> None:
        """Score texts stage by stage and keep the scores, before they are ranked; see `Pipeline.fill`."""
        queries, reasons = self.prepare(texts)
        self.pipeline.fill([query for query, reason in zip(queries, reasons, strict=True) if not reason])

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
        start = 0
        for chunk in self._run([queries[i] for i in good], top_k):
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
        self._check("rank", texts, top_k, min_probability)
        queries, reasons = self.prepare(texts)
        pairs = zip(texts, reasons, strict=True)
        rankings = [Ranking(text if isinstance(text, str) else "", (), reason) for text, reason in pairs]
        good = [i for i, reason in enumerate(reasons) if not reason]
        at = iter(good)
        for chunk in self._run([queries[i] for i in good], top_k or self.config.top_k):
            for j in range(len(chunk.rows)):
                i = next(at)
                skills = tuple(self._records(chunk, j, min_probability))
                reason = "" if skills else f"no skill reaches probability {min_probability}"
                rankings[i] = Ranking(rankings[i].query, skills, reason)
        return rankings

    def tag(
        self, documents: Sequence[object], *, top_k: int | None = None, min_probability: float | None = None
    ) -> list[Tagging]:
        """Tag whole documents: split into sentences, ranked one by one, merged by concept.

        A sentence speaks for the skills that reach `min_probability` in it. One whose best skill stays below
        `ranker.document.SPEAKS` is boilerplate and speaks for none. Sentences are split by
        `ranker.document.split_document` and merged by `ranker.document.merge_skills`; equal ones are ranked once.

        A system without calibrated probabilities cannot tell boilerplate: there every sentence speaks for its best
        `ranker.document.UNCALIBRATED` skills, merged by their highest score, and none is dropped.

        Parameters
        ----------
        documents : sequence of str
            A document that is empty or no string gets an empty tagging with a reason; the others are not touched by it.
        top_k : int, optional
            At most this many skills per document; default from the config (100).
        min_probability : float, optional
            Leave out skills whose probability of grade >= 2 is lower in every sentence; default `SPEAKS`.

        Returns
        -------
        list of Tagging
            One per document. Offsets count the characters of the document as it was given.

        Raises
        ------
        ArgumentError
            If one string is given instead of a list, or a probability is asked of a system without calibration.
        """
        self._check("tag", documents, top_k, min_probability)
        least = min_probability
        if least is None and self.pipeline.fusion is not None:
            least = SPEAKS
        parts = [split_document(document) if isinstance(document, str) else [] for document in documents]
        queries = [
            self.prepare([str(document)[span.start : span.end] for span in spans])[0]
            for document, spans in zip(documents, parts, strict=True)
        ]
        sentences = dict.fromkeys(query for query in chain.from_iterable(queries) if not _reason(query, query))
        said = self._said(list(sentences), least)
        taggings = []
        for document, spans, own in zip(documents, parts, queries, strict=True):
            pairs = [(span, said.get(query, ())) for span, query in zip(spans, own, strict=True)]
            skills = merge_skills(pairs, top_k or self.config.top_k)
            dropped = tuple(span for span, found in pairs if not found)
            text = document if isinstance(document, str) else ""
            reason = "" if skills else _reason(document, text.strip()) or f"no sentence reaches probability {least}"
            taggings.append(Tagging(text, skills, dropped, reason))
        return taggings

    def _said(self, sentences: Sequence[str], least: float | None) -> dict[str, tuple[RankedSkill, ...]]:
        """Return what each normalised sentence speaks for."""
        said: dict[str, tuple[RankedSkill, ...]] = {}
        for chunk in self._run(sentences, self.config.top_k if self.pipeline.fusion else UNCALIBRATED):
            for j, sentence in enumerate(chunk.inputs.queries):
                speaks = chunk.probabilities is None or chunk.probabilities[j].max() >= SPEAKS
                said[sentence] = tuple(self._records(chunk, j, least)) if speaks else ()
        return said

    def explain(self, text: str, skill: str) -> Explanation:
        """Say why a skill stands where it stands for a text, or why it does not.

        Parameters
        ----------
        text : str
            As for `rank`; one that cannot be ranked gives an explanation with a reason.
        skill : str
            URI, label or alt label.

        Raises
        ------
        ArgumentError
            If the taxonomy holds no such skill, or several; the message names them.
        """
        row = self._row(skill)
        uri, label = self.taxonomy.uri[row], self.taxonomy.label[row]
        query = text if isinstance(text, str) else ""
        queries, (reason,) = self.prepare([text])
        if reason:
            return Explanation(query, uri, label, None, None, None, {}, {}, None, {}, reason)
        with self._lock:
            inputs = self.pipeline.inputs(queries)
            scored = self.pipeline.fuse(inputs, inputs.pool.shape[1])
        lanes = {
            name: {"score": float(scores[0, row]), "z": float(zscore(scores[0])[row]), "rank": _place(scores[0], row)}
            for name, scores in inputs.lanes.items()
        }
        matched = matched_name(spaced(queries[0]), (label, *self.taxonomy.alt_labels[row]))
        if row not in inputs.pool[0]:
            place, size = _place(inputs.base[0], row), inputs.pool.shape[1]
            reason = f"at place {place} of the lanes' weighted sum, and the pool holds the first {size}"
            return Explanation(query, uri, label, None, None, None, lanes, {}, matched, {}, reason)
        at = int(np.flatnonzero(scored.rows[0] == row)[0])
        position = int(scored.positions[0, at])
        columns = {name: float(values[0, position]) for name, values in inputs.columns.items()}
        fusion = self.pipeline.fusion
        return Explanation(
            query=query,
            uri=uri,
            label=label,
            rank=at + 1,
            score=float(scored.scores[0, at]),
            probability=None if scored.probabilities is None else float(scored.probabilities[0, at]),
            lanes=lanes,
            columns={name: value for name, value in columns.items() if np.isfinite(value)},
            matched=matched,
            contributions={} if fusion is None else fusion.contributions(inputs, position),
        )

    def _row(self, skill: str) -> int:
        rows = self.taxonomy.find(skill) if isinstance(skill, str) else []
        if len(rows) == 1:
            return rows[0]
        if not rows:
            raise ArgumentError(f"the taxonomy holds no skill {skill!r}; give a URI or a label as it is written there")
        several = ", ".join(f"{self.taxonomy.label[row]} ({self.taxonomy.uri[row]})" for row in rows[:5])
        raise ArgumentError(f"{len(rows)} skills are called {skill!r}; give the URI of one: {several}")

    def _check(self, verb: str, texts: object, top_k: int | None, min_probability: float | None) -> None:
        """Raise where `rank` or `tag` is called in a way that means nothing."""
        if isinstance(texts, str):
            what = "texts" if verb == "rank" else "documents"
            raise ArgumentError(f"{verb} takes a list of {what}; write {verb}([{what[:-1]}])")
        if top_k is not None and top_k < 1:
            raise ArgumentError(f"top_k must be at least 1, got {top_k}")
        if min_probability is not None and self.pipeline.fusion is None:
            raise ArgumentError(f"{self.config.name} has no calibrated probabilities; use a system with a fusion")

    def _records(self, chunk: Scored, j: int, min_probability: float | None) -> Iterator[RankedSkill]:
        inputs = chunk.inputs
        found = chunk.rows[j]
        moments = {name: (mean[j], deviation[j]) for name, (mean, deviation) in inputs.moments.items()}
        z = np.stack([standardise(lane[j, found], *moments[name]) for name, lane in inputs.lanes.items()], axis=1)
        lanes = np.round(z.astype(np.float64), 2).tolist()
        words = spaced(inputs.queries[j])
        for rank, row in enumerate(map(int, found)):
            probability = None if chunk.probabilities is None else float(chunk.probabilities[j, rank])
            if min_probability is not None and probability is not None and probability < min_probability:
                continue
            evidence: dict[str, Any] = {"lanes": dict(zip(inputs.lanes, lanes[rank], strict=True))}
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


def _reason(text: object, query: str) -> str:
    """Return why a text with this normal form cannot be ranked, "" where it can."""
    if not isinstance(text, str):
        return f"not a text but {type(text).__name__}"
    if not query:
        return "the text is empty"
    return "" if any(map(str.isalnum, query)) else "the text holds no letter or digit"


def _place(scores: Float32, row: int) -> int:
    """Return the place, from 1, of a skill among float32[n_skills] by the tie rule."""
    return 1 + int((scores > scores[row]).sum() + (scores[:row] == scores[row]).sum())
