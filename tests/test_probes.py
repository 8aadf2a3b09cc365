"""Probes for shortcuts, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ranker import probes
from ranker.core.tasks import GradedTask
from ranker.core.taxonomy import Skill, Taxonomy
from ranker.runs import grade_run

TAXONOMY = Taxonomy.from_skills(
    [
        Skill("x/a", "use C++"),
        Skill("x/b", "weld steel frames", alt_labels=("steel welding",)),
        Skill("x/c", "design hair style"),
        Skill("x/d", "sell"),
    ]
)


def task(qrels, texts):
    return GradedTask("t", "validation", tuple(texts), tuple(texts.values()), qrels)


def test_overlap_counts_words_not_letters():
    one = task(
        {
            "q": {"x/a": 4, "x/b": 4, "x/c": 0, "x/d": 0, "x/not-in-the-taxonomy": 0},
        },
        {"q": "You USE  C++; steel welding of best sellers, mechanical design."},
    )
    found = {row.grade: row for row in probes.overlap_by_grade([one], TAXONOMY)}
    assert (found[4].pairs, found[4].label, found[4].any_label, found[4].stem) == (2, 0.5, 1.0, 1.0)
    # "sell" is no word of the text; "sellers" shares its stem, as "design" does with the hair style.
    assert (found[0].pairs, found[0].label, found[0].any_label, found[0].stem) == (2, 0.0, 0.0, 1.0)
    assert found[2].pairs == 0
    assert math.isnan(found[2].label)


def test_prior_leaves_the_querys_own_grades_out():
    # Without its own grades, q1 would rank b (7 from q2, 0 from q3) first, then c (3 from q3).
    qrels = {"q1": {"x/a": 4, "x/c": 1}, "q2": {"x/b": 3}, "q3": {"x/c": 2, "x/b": 0}}
    scores = probes.prior_scores([task(qrels, dict.fromkeys(qrels, "text"))])["t"]
    ideal = 15 + 1 / math.log2(3)
    assert scores[0] == pytest.approx((1 / math.log2(3)) / ideal)
    # q2: a has 15, c has 1 + 3, and b, its only skill, has nothing left elsewhere.
    assert scores[1] == 0.0
    # q3: a 15, b 7, c 1: its c is third.
    assert scores[2] == pytest.approx((3 / math.log2(4)) / 3)


def test_without_overlap_takes_given_away_skills_out_of_ranking_and_qrels():
    one = task({"q": {"x/a": 4, "x/b": 2, "x/c": 1}}, {"q": "mechanical design"})
    run = grade_run({"q": {"c": 9.0, "b": 2.0, "a": 1.0}}, one)
    # c shares "design": what is left is b before a, of b and a.
    expected = (3 + 15 / math.log2(3)) / (15 + 3 / math.log2(3))
    assert probes.without_overlap(run, one, TAXONOMY) == pytest.approx([expected])
    given_away = task({"q": {"x/c": 4}}, {"q": "mechanical design"})
    assert np.isnan(probes.without_overlap(grade_run({"q": {"c": 1.0}}, given_away), given_away, TAXONOMY)).all()
