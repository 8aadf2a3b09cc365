"""Order given documents by their relevance to a query, with the system's own stages, on one scale per request.

Where every document names a skill of the taxonomy, by URI or preferred label, the ranker orders them: the score is the
calibrated probability of grade >= 2. Else all are texts, and the score is the cosine between query and document in the
system's first sentence encoder. The two scales are never mixed, since no rule could compare their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lanes.dense import DenseLane
from ranker.core.errors import ArgumentError
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise
from ranker.core.types import Ranking

if TYPE_CHECKING:
    from ranker.pipeline import SkillRanker

BY_RANKER, BY_ENCODER = "ranker", "encoder"


class Names:
    """Skills by URI and by preferred label, whatever its case."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._uris = taxonomy.uri
        self._rows = {normalise(label).casefold(): row for row, label in reversed(list(enumerate(taxonomy.label)))}
        self._rows |= taxonomy.index

    def uri(self, text: str) -> str | None:
        """Return the URI of the skill that the whole text names; of two skills with one label, the lower URI's."""
        row = self._rows.get(text, self._rows.get(normalise(text).casefold()))
        return None if row is None else self._uris[row]


@dataclass(frozen=True)
class Reranked:
    """Documents in order: (index, relevance) pairs, best first, ties in the order given; and which stage scored."""

    order: tuple[tuple[int, float], ...]
    scored_by: str


def skill_relevance(ranking: Ranking, uris: Iterable[str]) -> list[float]:
    """Return the relevance of skills from a ranking of the whole pool.

    It is the probability; without calibration, the place of the score between the pool's lowest and highest. A skill
    that the pool leaves out has 0.
    """
    scores = [skill.score for skill in ranking.skills]
    low, spread = min(scores, default=0.0), max(scores, default=0.0) - min(scores, default=0.0)
    found = {
        skill.uri: (skill.score - low) / (spread or 1.0) if skill.probability is None else skill.probability
        for skill in ranking.skills
    }
    return [found.get(uri, 0.0) for uri in uris]


def text_relevance(ranker: SkillRanker, query: str, documents: Sequence[str]) -> list[float]:
    """Return the cosine of each document with the query; -1 for one without a letter or digit.

    A text is read up to the encoder's longest input; what follows has no say.

    Raises
    ------
    ArgumentError
        If the system has no sentence encoder.
    """
    encoders = [lane.encoder for lane in ranker.pipeline.lanes.values() if isinstance(lane, DenseLane)]
    if not encoders:
        raise ArgumentError(
            f"{ranker.config.name} has no sentence encoder, so each document must be the URI or label of a skill"
        )
    texts, reasons = ranker.prepare([query, *documents])
    vector = encoders[0].query(texts[0])
    return [
        -1.0 if reason else float(np.clip(encoders[0].query(text) @ vector, -1, 1))
        for text, reason in zip(texts[1:], reasons[1:], strict=True)
    ]


def rerank(ranker: SkillRanker, names: Names, query: str, documents: Sequence[str]) -> Reranked:
    """Order documents by relevance.

    Raises
    ------
    ArgumentError
        If the query holds no letter or digit, or texts are given to a system without an encoder.
    """
    _, (reason,) = ranker.prepare([query])
    if reason:
        raise ArgumentError(f"query: {reason}")
    uris = [names.uri(document) for document in documents]
    named = [uri for uri in uris if uri is not None]
    if len(named) == len(documents):
        (ranking,) = ranker.rank([query], top_k=ranker.config.pool.size)
        scored_by, scores = BY_RANKER, skill_relevance(ranking, named)
    else:
        scored_by, scores = BY_ENCODER, text_relevance(ranker, query, documents)
    order = sorted(enumerate(scores), key=lambda pair: -pair[1])
    return Reranked(tuple(order), scored_by)
