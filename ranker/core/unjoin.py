"""Takes apart the run-together text of a skill: label, alternative labels and description without separators.

The labels that are known are taken off the front. Where others are left before the description, its start is told by
the words that sentences begin with, which are counted in the texts that known labels explain wholly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_CAPITAL = re.compile(r"[^\w]*[A-Z]")
_SENTENCE_END = re.compile(r".*[.!?:]['\")]*$")

MIN_OPENINGS = 3


def strip_known(words: Sequence[str], known: Iterable[Sequence[str]]) -> list[str]:
    """Return the words that remain when known phrases are taken off the front, longest first, as long as one fits."""
    phrases = sorted({tuple(phrase) for phrase in known if phrase}, key=len, reverse=True)
    at = 0
    while phrase := next((p for p in phrases if tuple(words[at : at + len(p)]) == p), None):
        at += len(phrase)
    return list(words[at:])


class Openers:
    """How often a capitalised word begins a sentence, among all its occurrences in given descriptions."""

    def __init__(self, descriptions: Iterable[Sequence[str]]) -> None:
        self.opens: Counter[str] = Counter()
        self.all: Counter[str] = Counter()
        for words in descriptions:
            start = True
            for word in words:
                if _CAPITAL.match(word):
                    self.all[word] += 1
                    self.opens[word] += start
                start = bool(_SENTENCE_END.match(word))

    def usual(self, word: str) -> bool:
        """Tell whether a word begins a sentence in most of its occurrences, and in `MIN_OPENINGS` at least."""
        return self.opens[word] >= MIN_OPENINGS and 2 * self.opens[word] >= self.all[word]


def description_start(words: Sequence[str], openers: Openers) -> int:
    """Return where the description begins in words that may start with labels nobody lists.

    It is, before the first sentence ends, the first word that usually opens sentences and that a lower-case word
    follows; else the first that usually opens sentences; else the first capitalised one that a lower-case word follows;
    else the first capitalised one. Where there is none, there is no description: the answer is the number of words.
    """
    last = next((i for i, word in enumerate(words) if word.endswith(".") and i > 0), len(words) - 1)
    capital = [i for i in range(last + 1) if _CAPITAL.match(words[i])]
    usual = [i for i in capital if openers.usual(words[i])]
    for candidates, before_lower in ((usual, True), (usual, False), (capital, True), (capital, False)):
        for i in candidates:
            if not before_lower or (i + 1 < len(words) and words[i + 1][:1].islower()):
                return i
    return len(words)


def descriptions(texts: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the description in each run-together text.

    Parameters
    ----------
    texts : mapping of str to str
        Label, alternative labels and description of each skill, in this order, run together with spaces.
    known : mapping of str to sequence of str
        The labels known to be in a skill's text, the preferred one first.

    Returns
    -------
    dict of str to str
        One entry per text; "" where it holds labels only.
    """
    rests = {key: strip_known(text.split(), [label.split() for label in known[key]]) for key, text in texts.items()}
    clear = [rest for key, rest in rests.items() if len(known[key]) > 2 and rest and _CAPITAL.match(rest[0])]
    openers = Openers(clear)
    return {key: " ".join(rest[description_start(rest, openers) :]) for key, rest in rests.items()}
