"""Documents: split into sentences with exact offsets, and what their sentences say merged by concept."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise

from ranker.core.text import MARKER
from ranker.core.types import RankedSkill, Span, TaggedSkill

# A sentence whose best skill is more likely unfit than fit (grade >= 2) says nothing about skills: it is boilerplate.
SPEAKS = 0.5
LONGEST = 400  # characters; 99 % of the sentences that the shipped system was trained on are shorter
SHORTEST = 60  # characters that a cut leaves on both sides, so that no clause is torn out of its sense
UNCALIBRATED = 3  # skills that a sentence speaks for where nothing is known of their probability
WRAPPED = 55  # characters; a line of that length may have been broken by a margin, not by its writer

_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# Signs that are bullets and nothing else; a dash or a star may join words as well, and marks an item only in front.
_BULLET = re.compile(
    r"\s(?=[\u2022\u2023\u2043\u2219\u25aa\u25ab\u25cf\u25cb\u25e6\u25a0\u25a1\u2713\u2714\u27a2\u27a4\uf0a7\uf0b7])"
)
# A stop, what closes with it, and white space after it; the stops of scripts that write no white space need none.
_STOP = re.compile(
    "(?<![.!?\u2026\u061f\u06d4\u0964\u0965])(?P<stop>[.!?\u2026\u061f\u06d4\u0964\u0965]+)[\"'\u2019\u201d\u00bb)\\]]*(?=\\s)"
    "|[\u3002\uff01\uff1f]+[\u300d\u300f\u201d\uff09]*"
)
_OPENING = re.compile("[\\s\"'\u2018\u201c\u00ab(\\[]*")
_BEFORE = re.compile("[^\\s(\\[\"'\u2018\u201c\u00ab/]+$")
_NUMBERING = re.compile(r"\s*\d{1,2}(?:\.\d{1,2})*")

# Shortenings that stand before what they belong to and never end a sentence.
_INSIDE = re.compile(r"e\.?g|i\.?e|vs|viz|cf|ca|approx|incl|excl|esp|resp|m[rsx]|mrs|dr|prof|ste?|mt|sgt|capt|rev")
# Shortenings only before a number: "No. 3", but "No. We do not."
_BEFORE_NUMBER = re.compile(r"nos?|nr|figs?|vol|pp|art|sec|ch|ext|tel")
# Initials, "U.S." and other shortenings that end a sentence only where the next word is one that begins sentences.
_MAY_END = re.compile(
    r"(?:[^\W\d_]\.)*[^\W\d_]|inc|ltd|co|corp|plc|llc|dept|univ|assn|jr|sr|ph\.d|[mb]\.sc|min|max|yrs?|hrs?"
)
_OPENER = re.compile(
    r"(?:about|all|an?|and|any|are|as|at|be|both|candidates|do|each|experience|for|from|he|her|his|how|if?|in|its?|is|join"
    r"|knowledge|must|no|on|our|please|she|that|the|their|there|these|they|this|those|to|us|we|what|when|where|who|with"
    r"|you|your)(?![\w.])",
    re.IGNORECASE,
)
# Where a long sentence may be cut, the best first. Conjunctions are whole words: "vendor coordination" holds no "or".
_CLAUSES = tuple(
    re.compile(pattern)
    for pattern in (
        "(?<=[;!?\u061b\u2026])\\s+|(?<=\uff1b)",
        "(?<=:)\\s+|\\s+(?=[-\u2013\u2014|]\\s)",
        "(?<=[,\u060c])\\s+|(?<=[\u3001\uff0c])",
        r"\s+(?=(?:and|or|but|as well as|including|while|where|which)\s)",
        r"(?<![.\d])\s+",  # "St. Mary's" and "3.5 years" only at last
        r"\s+",
    )
)
_SPACE = re.compile(r"\s")


def split_document(document: str) -> list[Span]:
    """Return the sentences and bullets of a document, in order; `document[span.start : span.end]` is the sentence.

    A line break ends a sentence, unless a margin made it: the line is long and the next goes on in lower case. Within a
    line a sentence ends at a stop before white space, unless the word before it is a shortening ("e.g.", "St.") or the
    initial of a name, or the next word goes on in lower case; so "Node.js", ".NET", "3.5 years", versions, links and
    addresses stay whole. Bullets within a line part its items. What is longer than `LONGEST` characters is cut at
    clause borders, between words.

    Parameters
    ----------
    document : str
        Any text; the time it takes grows linearly with its length.

    Returns
    -------
    list of Span
        Without the white space and the list markers around them, not overlapping, each with a letter or a digit.
    """
    lower = document == document.lower()  # then lower case says nothing about where sentences begin
    spans: list[Span] = []
    for start, end in _paragraphs(document, lower=lower):
        for left, right in pairwise([start, *_ends(document, start, end, lower=lower), end]):
            spans += _pieces(document, left, right)
    return spans


def _paragraphs(document: str, *, lower: bool) -> Iterator[tuple[int, int]]:
    """Yield the lines, those that only a margin parted as one."""
    breaks = [*(match.span() for match in _BREAK.finditer(document)), (len(document), len(document))]
    start = last = 0  # of the paragraph, and of its last line
    for (stop, begin), (end, _) in pairwise(breaks):
        line, following = document[last:stop].rstrip(), document[begin:end].lstrip()
        broken = len(line) >= WRAPPED and line[-1] not in ".!?:;" and following[:1].islower()
        if lower or not broken or MARKER.match(following):
            yield start, stop
            start = begin
        last = begin
    yield start, len(document)


def _ends(document: str, start: int, end: int, *, lower: bool) -> Iterator[int]:
    """Yield where the sentences and items of a paragraph end, but for the last."""
    for left, right in pairwise([start, *(match.start() for match in _BULLET.finditer(document, start, end)), end]):
        begin = left
        for match in _STOP.finditer(document, left, right):
            if _is_end(document, begin, match, lower=lower):
                begin = match.end()
                yield begin
        if right < end:
            yield right


def _is_end(document: str, start: int, match: re.Match[str], *, lower: bool) -> bool:
    """Whether the stop that `match` found ends the sentence that begins at `start`."""
    if match["stop"] is None:
        return True
    opening = _OPENING.match(document, match.end())
    after = match.end() if opening is None else opening.end()
    if document[after : after + 1].islower() and not lower:
        return False
    if match["stop"] != ".":
        return True
    before = _BEFORE.search(document[max(start, match.start() - 20) : match.start()])
    word = "" if before is None else before.group().lower()
    if _INSIDE.fullmatch(word) or _NUMBERING.fullmatch(document, start, match.start()):
        return False
    if _BEFORE_NUMBER.fullmatch(word):
        return not document[after : after + 1].isdigit()
    return not _MAY_END.fullmatch(word) or _OPENER.match(document, after) is not None


def _pieces(document: str, start: int, end: int) -> Iterator[Span]:
    """Yield a sentence, trimmed; a long one in pieces of about equal length."""
    cut = start
    while cut < end:
        start, end = _trimmed(document, cut, end)
        cut = end if end - start <= LONGEST else _cut(document, start, end)
        piece = Span(*_trimmed(document, start, cut))
        if any(map(str.isalnum, document[piece.start : piece.end])):
            yield piece


def _trimmed(document: str, start: int, end: int) -> tuple[int, int]:
    """Return the bounds without white space and, in front, list markers."""
    text = document[start:end].rstrip()
    end = start + len(text)
    marker = MARKER.match(text.lstrip())
    start = end - len(text.lstrip()) + (0 if marker is None else marker.end())
    return start, max(start, end)


def _cut(document: str, start: int, end: int) -> int:
    """Return where a long sentence is best cut; `end` where it is one Latin word or a link."""
    near = start + (end - start) / math.ceil((end - start) / LONGEST)
    low, high = start + SHORTEST, min(start + LONGEST, end - SHORTEST)
    for clause in _CLAUSES:
        places = [match.end() for match in clause.finditer(document, low, high)]
        if places:
            return min(places, key=lambda place: abs(place - near))
    # No white space: a script without it, which may be cut between any two characters.
    for place in sorted(range(low, high), key=lambda place: abs(place - near)):
        left, right = document[place - 1], document[place]
        joined = unicodedata.category(right)[0] == "M" or "\u200d" in (left, right)  # an accent, an emoji's parts
        if not joined and not (left.isascii() and right.isascii()):
            return place
    space = _SPACE.search(document, high, end)
    return end if space is None else space.end()


def merge_skills(
    said: Iterable[tuple[Span, Iterable[RankedSkill]]], top_k: int | None = None
) -> tuple[TaggedSkill, ...]:
    """Merge what sentences say by concept: each skill as its strongest sentence has it, with the spans of all.

    The strongest sentence is the one of the highest probability, then of the highest score; its span comes
    first. The maximum, and not one minus the product of the complements (noisy-or): sentences of one document are no
    independent witnesses, and thirty that each say 0.1 would make 0.96, so that the length of a document would decide,
    not what it says.

    Parameters
    ----------
    said : iterable of (Span, iterable of RankedSkill)
        The sentences in the order of the document, each with the skills it speaks for.
    top_k : int, optional
        At most this many skills; default all.

    Returns
    -------
    tuple of TaggedSkill
        Probability descending, then score descending, then URI; likewise each skill's spans, equal ones in the order of
        the document.
    """
    speak: dict[str, list[tuple[Span, RankedSkill]]] = {}
    for span, skills in said:
        for skill in skills:
            speak.setdefault(skill.uri, []).append((span, skill))
    merged = []
    for _, pairs in sorted(speak.items()):
        pairs.sort(key=lambda pair: _strength(pair[1]), reverse=True)
        best = pairs[0][1]
        spans = tuple(span for span, _ in pairs)
        merged.append(TaggedSkill(best.uri, best.label, best.score, best.probability, best.evidence, spans))
    merged.sort(key=_strength, reverse=True)  # stable: ties stay in the order of their URIs
    return tuple(merged[:top_k])


def _strength(skill: RankedSkill | TaggedSkill) -> tuple[float, float]:
    return (0.0 if skill.probability is None else skill.probability), skill.score
