"""Probes for shortcuts: how much of a score can be had without reading the query, or by matching words alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ranker.core import metrics
from ranker.core.metrics import GRADES, Float64
from ranker.core.skillnorm import content_stems
from ranker.core.tasks import GradedTask
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise, tokens
from ranker.runs import RunGrades, grades_in_order, tail


@dataclass(frozen=True)
class Overlap:
    """What the judged pairs of one grade share in words.

    Attributes
    ----------
    grade, pairs : int
        The grade, and how many pairs have it.
    label, any_label : float
        Share whose label, or label or an alternative one, stands word for word in the query.
    stem : float
        Share whose label has at least one content word in common with the query, endings aside.
    """

    grade: int
    pairs: int
    label: float
    any_label: float
    stem: float


@lru_cache(maxsize=200_000)
def _padded(text: str) -> str:
    """Return the words of a text between spaces, so that one text stands in another only at word boundaries."""
    return f" {' '.join(tokens(normalise(text)))} "


def _verbatim(query: str, label: str) -> bool:
    padded = _padded(label)
    return bool(padded.strip()) and padded in query


def overlap_by_grade(tasks: Sequence[GradedTask], taxonomy: Taxonomy) -> list[Overlap]:
    """Return how often the labels of each grade stand in the query, over all tasks.

    A data set whose grade 4 is mostly verbatim measures string search; where grade 0 is often verbatim, it punishes it.
    Skills that the taxonomy lacks are left out.
    """
    rows = {tail(uri): row for row, uri in enumerate(taxonomy.uri)}
    found: dict[int, list[tuple[bool, bool, bool]]] = {grade: [] for grade in GRADES}
    for task in tasks:
        for query, text in zip(task.query_ids, task.queries, strict=True):
            padded, stems = _padded(text), set(content_stems(text))
            for uri, grade in task.qrels[query].items():
                if (row := rows.get(tail(uri))) is None:
                    continue
                label = _verbatim(padded, taxonomy.label[row])
                alt = label or any(_verbatim(padded, alt) for alt in taxonomy.alt_labels[row])
                found[grade].append((label, alt, not stems.isdisjoint(content_stems(taxonomy.label[row]))))
    return [
        Overlap(grade, len(values), *(np.mean(values, axis=0).tolist() if values else [float("nan")] * 3))
        for grade, values in found.items()
    ]


def prior_scores(tasks: Sequence[GradedTask]) -> dict[str, Float64]:
    """Return nDCG@100 per query, by task, of an order of skills that takes no notice of the query.

    Skills stand in the order of their total gain over all other queries; the query's own grades are taken out. What
    this reaches is what popularity alone is worth, and a system must be far above it.
    """
    skills = sorted({tail(uri) for task in tasks for judged in task.qrels.values() for uri in judged})
    at = {skill: i for i, skill in enumerate(skills)}
    total = np.zeros(len(skills))
    for task in tasks:
        for judged in task.qrels.values():
            for uri, grade in judged.items():
                total[at[tail(uri)]] += 2**grade - 1  # whole numbers, so that taking them out again is exact
    scores: dict[str, Float64] = {}
    for task in tasks:
        order, known = [], []
        for query in task.query_ids:
            grades = {tail(uri): grade for uri, grade in task.qrels[query].items()}
            others = total.copy()
            others[[at[skill] for skill in grades]] -= [2**grade - 1 for grade in grades.values()]
            best = np.argsort(-others, kind="stable")[: metrics.WINDOW]  # ties by skill, which are in order
            order.append([skills[i] for i in best if others[i] > 0])
            known.append(grades)
        ideal = metrics.ideal_grades([list(grades.values()) for grades in known])
        scores[task.name] = metrics.ndcg(grades_in_order(order, known), ideal, k=metrics.WINDOW)
    return scores


def without_overlap(run: RunGrades, task: GradedTask, taxonomy: Taxonomy) -> Float64:
    """Return nDCG@100 per query of a ranking from which all skills that share a content word with the query are taken.

    They are taken out of the ranking and of the qrels alike, so that what is left is the task of finding skills that
    words do not give away. A skill that the taxonomy lacks stays. The ranking is not filled up again: one that is cut
    at rank 100 has fewer skills left, so give deeper ones where they are to be compared with the whole score.
    """
    labels = zip(taxonomy.uri, taxonomy.label, strict=True)
    stems = {tail(uri): frozenset(content_stems(label)) for uri, label in labels}
    order, known = [], []
    for query, text, skills in zip(task.query_ids, task.queries, run.order, strict=True):
        words = frozenset(content_stems(text))
        order.append([skill for skill in skills if words.isdisjoint(stems.get(skill, ()))])
        judged: Mapping[str, int] = {tail(uri): grade for uri, grade in task.qrels[query].items()}
        known.append({skill: grade for skill, grade in judged.items() if words.isdisjoint(stems.get(skill, ()))})
    ideal = metrics.ideal_grades([list(judged.values()) for judged in known])
    return metrics.ndcg(grades_in_order(order, known), ideal, k=metrics.WINDOW)
