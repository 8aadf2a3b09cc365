"""Sentences of documents: where they end and where they do not, exact offsets, and skills merged by concept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranker.core.types import RankedSkill, Span, TaggedSkill
from ranker.document import LONGEST, merge_skills, split_document


def pieces(document: str) -> list[str]:
    return [document[span.start : span.end] for span in split_document(document)]


WHOLE = (
    *("Node.js", ".NET", "ASP.NET", "C++", "C#", "e.g. Python", "i.e. Java", "vendor coordination", "3.5 years"),
    *("U.S. Army", "St. Mary's", "Dr. Smith", "J. A. Smith", "approx. 40 hours", "min. 3 years", "No. 5", "24/7"),
    *("https://acme.com/jobs?id=3&x=1.5", "www.acme.co.uk/a.b", "jobs@mail.acme.co.uk", "v2.0.1", "Python 3.11.4"),
)
WELD, PAINT = "\u6eb6\u63a5\u3057\u307e\u3059\u3002", "\u5857\u88c5\u3059\u308b\uff01"
UNITS = (". ", "a. ", ".", " ", "\n", "1. ", "\u2022", " \u2022", "\u0301", "(\"' ", "\u3002", "- a\n", "a, ")
LETTERS = "xyZ .,!?;:\"'-\n\r\u2022\u3000\u3002\u6eb6\u00e9\u0301\u200d\U0001f469\udcff\x00"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("We weld. You paint!  Do you cut? Yes", ["We weld.", "You paint!", "Do you cut?", "Yes"]),
        ("We use Node.js. You know C++. He likes .NET.", ["We use Node.js.", "You know C++.", "He likes .NET."]),
        ('"We weld." (You paint.) Then "cut".', ['"We weld."', "(You paint.)", 'Then "cut".']),
        ("Weld, cut, etc. Paint walls", ["Weld, cut, etc.", "Paint walls"]),
        ("Weld, cut etc. and paint ... or not", ["Weld, cut etc. and paint ... or not"]),
        ("You code in C. You like R. Knowledge of D", ["You code in C.", "You like R.", "Knowledge of D"]),
        ("Acme Inc. in Ohio. Is it No. 1? No. We lost", ["Acme Inc. in Ohio.", "Is it No. 1?", "No.", "We lost"]),
        ("we weld. you paint e.g. walls. we cut", ["we weld.", "you paint e.g. walls.", "we cut"]),
        ("Tokenised text . It has spaces .", ["Tokenised text .", "It has spaces ."]),
        ("To do:\n- weld\n* paint\n\u2022 cut\n2) plan\n(iv) sell", ["To do:", "weld", "paint", "cut", "plan", "sell"]),
        ("1. Weld frames. 2. Paint walls.", ["Weld frames.", "Paint walls."]),
        ("Skills \u2022 weld \u2022 paint \u25aacut", ["Skills", "weld", "paint", "cut"]),
        ("weld\r\npaint\u2028cut\x0cplan\x85sell\rbuy", ["weld", "paint", "cut", "plan", "sell", "buy"]),
        (WELD + PAINT, [WELD, PAINT]),
        ("\u0645\u0631\u061f \u0646\u0639", ["\u0645\u0631\u061f", "\u0646\u0639"]),
        ("\U0001f680 Launch rockets! \U0001f680\U0001f680\n---\n***\n\U0001f600", ["\U0001f680 Launch rockets!"]),
        ("", []),
        (" \n\t\u3000 ... !!! \u2022", []),
    ],
)  # fmt: skip
def test_where_sentences_end(document, expected):
    assert pieces(document) == expected


@pytest.mark.parametrize("token", WHOLE)
def test_what_stays_whole(token):
    assert pieces(f"We know {token} well and like it. Tell us") == [f"We know {token} well and like it.", "Tell us"]
    assert pieces(f"Here {token} Smith works") == [f"Here {token} Smith works"]
    long = f"{'some words here ' * 24}{token} {'more words there ' * 12}"
    assert len(pieces(long)) == 2
    assert sum(token in piece for piece in pieces(long)) == 1


def test_a_margin_does_not_end_a_sentence_but_a_short_line_does():
    wrapped = "You will weld aluminium frames for our customers in the\nshipyard and check the seams"
    assert pieces(wrapped) == [wrapped]
    assert pieces(wrapped.replace("shipyard", "Shipyard")) == wrapped.replace("shipyard", "Shipyard").split("\n")
    assert pieces("Weld frames\nand paint them") == ["Weld frames", "and paint them"]
    assert pieces(wrapped.replace("\n", "\n\n")) == wrapped.split("\n")
    assert pieces(wrapped.replace("\n", "\n- ")) == wrapped.split("\n")


def test_long_sentences_are_cut_at_clauses():
    clause = "you will coordinate vendors and their workers on all of our sites"
    assert pieces("; ".join([clause] * 10)) == ["; ".join([clause] * 5) + ";", "; ".join([clause] * 5)]
    assert pieces(", ".join([clause] * 10))[0] == ", ".join([clause] * 5) + ","
    assert pieces(" ".join(["you weld frames"] * 18) + " or " + " ".join(["paint them"] * 20))[1].startswith("or paint")
    words = pieces("coordination " * 100)
    assert " ".join(words) == ("coordination " * 100).strip()
    assert {word for piece in words for word in piece.split()} == {"coordination"}
    assert max(map(len, words)) <= LONGEST


def test_a_long_word_is_left_alone_and_a_script_without_spaces_is_cut():
    link = "https://acme.com/" + "x" * 2000
    assert pieces(f"Apply at {link} now") == [f"Apply at {link}", "now"]
    assert pieces("x" * 100_000) == ["x" * 100_000]
    han = "\u6eb6" * 1000
    assert "".join(pieces(han)) == han
    assert max(map(len, pieces(han))) <= LONGEST
    family = "\u6eb6\U0001f468\u200d\U0001f469\u200d\U0001f467" * 200
    assert all(not piece.startswith("\u200d") and not piece.endswith("\u200d") for piece in pieces(family))
    assert "".join(pieces(family)) == family


@given(st.text(st.sampled_from(LETTERS), max_size=200), st.integers(1, 40))
def test_spans_are_in_order_and_lose_nothing(text, times):
    document = text * times
    spans = split_document(document)
    edges = [edge for span in spans for edge in (span.start, span.end)]
    assert edges == sorted(edges)
    assert all(0 <= span.start < span.end <= len(document) for span in spans)
    found = [document[span.start : span.end] for span in spans]
    assert all(piece == piece.strip() and any(map(str.isalnum, piece)) for piece in found)
    assert [c for piece in found for c in piece if c.isalnum()] == [c for c in document if c.isalnum()]


@pytest.mark.parametrize("unit", UNITS)
def test_long_documents_of_anything(unit):
    document = (unit * 30_000)[:30_000]
    letters = sum(map(str.isalpha, document))
    assert sum(map(str.isalpha, "".join(pieces(document)))) == letters


def skill(uri, probability, score=1.0, evidence=""):
    return RankedSkill(uri, f"label {uri}", score, probability, {"of": evidence})


def test_merging_takes_the_strongest_sentence_and_the_spans_of_all():
    first, second, third = Span(0, 5), Span(6, 9), Span(12, 20)
    said = [
        (first, [skill("b", 0.5, 2.0, "first"), skill("a", 0.4, 9.0)]),
        (second, []),
        (third, [skill("b", 0.9, 1.0, "third"), skill("c", 0.9, 1.0), skill("d", 0.9, 1.5)]),
    ]
    merged = merge_skills(said)
    assert [tagged.uri for tagged in merged] == ["d", "b", "c", "a"]
    assert merged[1] == TaggedSkill("b", "label b", 1.0, 0.9, {"of": "third"}, (third, first))
    assert merge_skills(said, 2) == merged[:2]
    assert merge_skills([]) == ()


def test_merging_without_probabilities_goes_by_score():
    span, other = Span(0, 1), Span(2, 3)
    merged = merge_skills([(span, [skill("a", None, 1.0), skill("b", None, 3.0)]), (other, [skill("a", None, 5.0)])])
    assert [(tagged.uri, tagged.score, tagged.probability) for tagged in merged] == [("a", 5.0, None), ("b", 3.0, None)]
    assert merged[0].spans == (other, span)
