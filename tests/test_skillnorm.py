"""Skill normalisation made from a taxonomy: the gates by hand, the sample, and the published funnel."""

from __future__ import annotations

import csv
import gzip
import uuid
from pathlib import Path

import numpy as np
import pytest

from ranker.core.errors import ArgumentError, InputError
from ranker.core.gate import gate_encoder
from ranker.core.skillnorm import (
    Pair,
    build_task,
    content_stems,
    cosines,
    divergence,
    is_abbreviation,
    lexical_gate,
    stem,
)
from ranker.core.taxonomy import Skill, Taxonomy

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "data" / "esco" / "skills_en.csv.gz"


class LetterEncoder:
    """Embeds a text as counts of its letters; a pair with few letters in common fails the gate."""

    name = "letters"
    threshold = 0.5

    def __init__(self) -> None:
        self.seen = 0

    def encode(self, texts):
        self.seen += len(texts)
        rows = [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        return np.asarray(rows, dtype=np.float32)


def uri(number: int) -> str:
    return f"http://data.europa.eu/esco/skill/{uuid.UUID(int=number)}"


def taxonomy(n: int, *, alts: int = 3) -> Taxonomy:
    """Skills whose alternative labels share no word with the label; the first alternative shares no letter either."""
    skills = []
    for i in range(n):
        word = "".join(chr(ord("a") + int(digit)) for digit in f"{i:04d}")
        names = [f"zzzz yyyy{'x' * i}", *(f"{word}k{j} h{word}{j}e" for j in range(1, alts))]
        skills.append(Skill(uri(i), f"{word}lab {word}bel", tuple(names)))
    return Taxonomy.from_skills(skills, version="1.1.0")


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("programming", "programm"),
        ("programmers", "programm"),
        ("programmes", "programm"),
        ("regulations", "regulat"),
        ("use", "use"),  # too short to lose anything
        ("safely", "safe"),
        ("sing", "sing"),
    ],
)
def test_stem_takes_endings_off_until_none_is_left(word, wanted):
    assert stem(word) == wanted
    assert stem(stem(word)) == stem(word)


def test_content_stems_leave_function_words_out():
    assert content_stems("Operating of the Dragline, in mines") == ("operat", "dragline"[:-1], "mine")


def test_divergence_by_hand():
    assert divergence(["operat", "draglin"], ["excavat", "overburden", "draglin"]) == 1 - 1 / 4
    assert divergence(["a"], ["a", "a"]) == 0
    assert divergence([], []) == 0


@pytest.mark.parametrize(
    ("short", "full", "wanted"),
    [
        ("CAD", "computer-aided design", True),
        ("cad", "computer-aided design", True),
        ("JAVA EE", "Java platform", True),
        ("game engine", "digital game creation systems", False),
        ("3 2", "three two", False),
    ],
)
def test_abbreviations(short, full, wanted):
    assert is_abbreviation(short, full) is wanted


def test_lexical_gate_keeps_far_names_and_drops_the_rest():
    skills = [
        Skill(uri(1), "operate dragline", ("excavation of overburden with dragline", "operate draglines", "dragline")),
        Skill(uri(2), "Java", ("object oriented language",)),  # one content word on the label's side
        Skill(uri(3), "game development", ("GD TOOL", "a b c d e f g makers of small amusing interactive things")),
    ]
    found = Taxonomy.from_skills(skills)
    assert lexical_gate(found) == [Pair(0, "excavation of overburden with dragline")]


def test_cosines_by_hand():
    found = taxonomy(1)
    assert cosines(found, [Pair(0, found.label[0])], LetterEncoder())[0] == pytest.approx(1)
    assert cosines(found, [Pair(0, "zzzz yyyy")], LetterEncoder())[0] == 0
    assert cosines(found, [], LetterEncoder()).shape == (0,)


def test_splits_are_fifty_and_four_hundred_and_fifty_without_overlap():
    found = taxonomy(700)
    validation = build_task(found, split="validation", encoder=LetterEncoder())
    test = build_task(found, split="test", encoder=LetterEncoder())
    assert (len(validation), len(test)) == (50, 450)
    asked = [*validation.queries, *test.queries]
    assert len(set(asked)) == 500
    gold = [next(iter(task.qrels[query])) for task in (validation, test) for query in task.query_ids]
    assert len(set(gold)) == 500, "one alternative label per skill"
    for task in (validation, test):
        for query, text in zip(task.query_ids, task.queries, strict=True):
            assert set(task.qrels[query].values()) == {4}
            for skill in task.qrels[query]:
                assert text in found.alt_labels[found.index[skill]]
            assert not text.startswith("zzzz"), "the semantic gate takes out what shares no letter"
    assert "letters" in validation.source
    assert validation.name == "Skill Normalization ESCO Graded"


def test_sample_is_the_one_of_gating_everything_first():
    found = taxonomy(60)
    encoder = LetterEncoder()
    pairs = lexical_gate(found)
    passing = {p for p, c in zip(pairs, cosines(found, pairs, encoder), strict=True) if c >= 0.5}
    thinned = Taxonomy.from_skills(
        [
            Skill(u, label, tuple(a for a in alts if Pair(row, a) in passing))
            for row, (u, label, alts) in enumerate(zip(found.uri, found.label, found.alt_labels, strict=True))
        ],
        version="1.1.0",
    )
    for split in ("validation", "test"):
        lazy, full = (build_task(t, split=split, encoder=encoder) for t in (found, thinned))
        assert (lazy.queries, lazy.qrels) == (full.queries, full.qrels)


def test_only_the_pairs_that_are_drawn_are_encoded():
    encoder = LetterEncoder()
    build_task(taxonomy(1500), split="validation", encoder=encoder)
    assert encoder.seen < 1500


def test_a_name_of_two_skills_has_both_as_gold_and_stands_once():
    skills = [Skill(uri(i), f"abcde edcba {i}", ("bacde abced",)) for i in range(2)]
    skills += [Skill(uri(9 + i), f"abcab{i} deab", (f"bacab{i}q edbaa",)) for i in range(40)]
    found = Taxonomy.from_skills(skills)
    queries = {}
    for split in ("validation", "test"):
        task = build_task(found, split=split, encoder=LetterEncoder())
        queries.update(zip(task.queries, task.qrels.values(), strict=True))
    assert set(queries["bacde abced"]) == {uri(0), uri(1)}
    assert len(queries) == 41


def test_errors_name_what_is_wrong():
    with pytest.raises(ArgumentError, match="validation, test"):
        build_task(taxonomy(3), split="train", encoder=LetterEncoder())
    with pytest.raises(InputError, match="yields no skill normalisation query"):
        build_task(Taxonomy.from_skills([Skill(uri(1), "one skill")]), split="test", encoder=LetterEncoder())
    with pytest.raises(InputError, match="too few"):
        build_task(taxonomy(2), split="validation", encoder=LetterEncoder())


@pytest.fixture(scope="module")
def esco() -> Taxonomy:
    if not REFERENCE.is_file():
        pytest.skip("the reference taxonomy is not here")
    csv.field_size_limit(10**7)
    with gzip.open(REFERENCE, "rt", encoding="utf-8", newline="") as stream:
        return Taxonomy.from_skills(
            [
                Skill(row["conceptUri"], row["preferredLabel"], tuple(filter(None, row["altLabels"].split("\n"))))
                for row in csv.DictReader(stream)
            ],
            version="1.1.0",
        )


def test_published_funnel_after_the_lexical_gate(esco):
    pairs = lexical_gate(esco)
    assert len(pairs) == pytest.approx(14_423, rel=0.05)
    assert len({pair.row for pair in pairs}) == pytest.approx(5_232, rel=0.05)


def test_semantic_gate_takes_out_about_a_fifth(esco):
    """A draw of 200 has a standard error of 2.9 points; the full figure stands in `ranker.core.gate`."""
    pairs = lexical_gate(esco)
    draw = [pairs[i] for i in np.random.default_rng(0).choice(len(pairs), 200, replace=False)]
    encoder = gate_encoder()
    removed = (cosines(esco, draw, encoder) < encoder.threshold).mean()
    assert 0.207 - 0.07 < removed < 0.207 + 0.07
