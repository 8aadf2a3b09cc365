"""Whole-word evidence: which of a skill's names stands in the text."""

from __future__ import annotations

from collections.abc import Iterable

from ranker.core.text import first_token, tokens


def spaced(text: str) -> str:
    """Return the words of a text, each between two spaces, so that `in` only finds whole words."""
    return f" {' '.join(tokens(text))} "


def matched_name(spaced_query: str, names: Iterable[str]) -> str | None:
    """Return the longest of the names whose words stand in the query in this order, without a gap.

    Examples
    --------
    >>> matched_name(spaced("We use Node.js and R."), ["node.js", "js", "R (language)"])
    'node.js'
    """
    asked = set(spaced_query.split())
    # Most names fall at their first word, before the others are looked for.
    hits = [name for name in names if first_token(name) in asked and spaced(name) in spaced_query]
    return max(hits, key=len) if hits else None
