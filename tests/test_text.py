"""The normaliser and the tokeniser on text as people write it, and on text nobody should write."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranker.core.text import MAX_CHARACTERS, normalise, tokens

ANY_TEXT = st.text(st.characters(), max_size=200)  # any code point, lone surrogates and controls included
LIST_TEXT = st.lists(
    st.sampled_from(
        [
            "-",
            "*",
            "o",
            "\u2022",
            "1.",
            "2)",
            "(iv)",
            "a)",
            ">",
            "\n",
            " ",
            "\t",
            "\r",
            "C++",
            "C)",
            "-5",
            "1",
            ".NET",
            "FC",
            "\u00a0",
            "\u200b",
            "\u200d",
            "\u0301",
            "\ufeff",
            "\x85",
            "\u2028",
            "word",
            "e.",
            "ii.",
        ]
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("value", [None, float("nan"), 3, 2.5, b"bytes", [], {}, object()])
def test_what_is_no_text_becomes_empty(value):
    assert normalise(value) == ""


@pytest.mark.parametrize(
    "text",
    [
        "C) programming language",
        "-5 degrees storage",
        "R. and Python",
        ".NET",
        ".NET developer",
        "3D printing",
        "1. FC",
        "e. coli testing",
        "> 5 years of experience",
        "C++",
        "C#",
        "Node.js",
        "R",
        "IDS/IPS sensors",
        "lift 50lbs",
        "5S",
        "i.e. accounting",
        "IV therapy",
        "vi editor",
        "a level mathematics",
        "1st line support",
        "24/7 on call",
        "2.5 t trucks",
        "o-ring fitting",
        "*nix",
        "-",
        "o",
        "1.",
        "x-ray",
        "C",
        "12 V systems",
    ],
)
def test_text_that_only_looks_like_a_list_marker_stays(text):
    assert normalise(text) == text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\u2022 manage staff", "manage staff"),
        ("\u2022manage staff", "manage staff"),
        ("- manage staff", "manage staff"),
        ("\u2013 manage staff", "manage staff"),
        ("* manage staff", "manage staff"),
        ("o manage staff", "manage staff"),
        ("\uf0b7 manage staff", "manage staff"),
        ("1. Manage staff", "Manage staff"),
        ("12) manage staff", "manage staff"),
        ("(iv) manage staff", "manage staff"),
        ("b) manage staff", "manage staff"),
        ("ii. manage staff", "manage staff"),
        ("> manage staff", "manage staff"),
        ("  \u2022  - manage staff", "manage staff"),
        ("Tasks:\n- manage staff\n- C++\n\u2022 .NET", "Tasks: manage staff C++ .NET"),
        ("-\nmanage staff", "manage staff"),
        ("\u2022", ""),
        (" \t\r\n ", ""),
        ("", ""),
    ],
)
def test_list_markers_come_off(text, wanted):
    assert normalise(text) == wanted


def test_markers_stay_where_that_is_asked_for():
    assert normalise("- manage\n- lead", strip_bullets=False) == "- manage - lead"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\uff23\uff0b\uff0b", "C++"),
        ("o\ufb03ce", "office"),
        ("caf\u0065\u0301", "caf\u00e9"),
        ("man\u00adage", "manage"),
        ("\ufeffmanage", "manage"),
        ("a\x00b\x1fc", "a b c"),
        ("a\u00a0\u2003b", "a b"),
        ("a\u200bb", "a b"),
        ("a\ud800b", "ab"),
        ("\u7ba1\u7406\u4eba\u5458", "\u7ba1\u7406\u4eba\u5458"),
        ("team \U0001f44d player", "team \U0001f44d player"),
    ],
)
def test_unicode(text, wanted):
    assert normalise(text) == wanted


def test_a_long_text_is_cut_at_a_space_near_the_limit_only():
    words = normalise("word " * 50_000)
    assert MAX_CHARACTERS - 10 <= len(words) <= MAX_CHARACTERS
    assert words.endswith("word")
    assert normalise("a " + "b" * 90_000) == ("a " + "b" * MAX_CHARACTERS)[:MAX_CHARACTERS]


@settings(max_examples=300, deadline=None)
@given(st.one_of(ANY_TEXT, LIST_TEXT), st.booleans())
def test_normalise_never_raises_and_changes_nothing_twice(text, strip):
    once = normalise(text, strip_bullets=strip)
    assert normalise(once, strip_bullets=strip) == once
    assert once == " ".join(once.split())
    assert unicodedata.is_normalized("NFKC", once)
    once.encode("utf-8")
    assert not any(unicodedata.category(c) == "Cc" for c in once)


@settings(max_examples=200, deadline=None)
@given(st.one_of(ANY_TEXT, LIST_TEXT))
def test_tokens_are_lower_case_words_of_the_text(text):
    clean = normalise(text)
    words = tokens(clean)
    folded = clean.casefold()
    at = 0
    for word in words:
        assert word
        assert not any(c.isspace() for c in word)
        at = folded.index(word, at) + len(word)
    assert words == tokens(clean.upper()) or clean.upper().casefold() != folded


@settings(max_examples=200, deadline=None)
@given(
    st.text(st.characters(categories=["Lu", "Ll", "Nd"], max_codepoint=0x24F), min_size=1, max_size=20).filter(
        lambda w: w.casefold().isalnum()
    )
)
def test_a_plain_word_is_one_token(word):
    assert tokens(word) == [word.casefold()]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("C++, C# and F#.", ["c++", "c#", "and", "f#"]),
        (".NET; ASP.NET", [".net", "asp.net"]),
        ("Node.js/Vue.js", ["node.js", "vue.js"]),
        ("R", ["r"]),
        ("IDS/IPS", ["ids", "ips"]),
        ("TCP/IP-based", ["tcp", "ip", "based"]),
        ("lift 50lbs", ["lift", "50lbs"]),
        ("people's", ["people's"]),
        ("snake_case", ["snake", "case"]),
        ("a+b", ["a", "b"]),
        ("end. Next", ["end", "next"]),
        ("version 3.5.", ["version", "3.5"]),
        ("\U0001f44d!?", []),
        ("", []),
    ],
)
def test_tokens(text, wanted):
    assert tokens(text) == wanted
