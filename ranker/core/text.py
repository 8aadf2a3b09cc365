"""One normaliser and one tokeniser, for queries and labels alike."""

from __future__ import annotations

import re
import unicodedata

# List markers at the start of a line: bullets; dashes, "o" and the like followed by space; "1." / "2)" / "a)" / "(iv)".
# What could be part of the text stays: "-5 degrees", "> 5 years", "e. coli", "C) ...", "1. FC", "3D printing", ".NET".
MARKER = re.compile(
    r"^(?:[\s\u2022\u2023\u2043\u2219\u25aa-\u25ab\u25cf\u25cb\u25e6\u25a0\u25a1\u2713\u2714\u27a2\u27a4\u00b7\uf0b7\uf0a7]+"
    r"|[*\-\u2010-\u2015o]\s+|>\s+(?!\d)|\d{1,2}\.\s+(?![A-Z]{2,}\b)|[ivx]{2,4}\.\s+"
    r"|\(?(?:\d{1,2}|[ivx]{1,4}|[a-h])\)\s+)+",
)
# Words that keep the signs which carry meaning: C++, C#, .NET, Node.js, IDS/IPS (as two words), TCP/IP, R, 50lbs.
_TOKEN = re.compile(r"\.?[^\W_]+(?:[.'\u2019][^\W_]+)*(?:\+{1,2}|#)?(?![^\W_])|[^\W_]+")
# Stands inside words, and leaves no trace when it goes.
_INVISIBLE = re.compile("[\u00ad\u200d\u200e\u200f\u202a-\u202e\u2060\ufe0e\ufe0f\ufeff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u200b\u200c]")

MAX_CHARACTERS = 20_000
CUT_WINDOW = 200  # a longer text is cut at the last space among so many characters before the limit


def normalise(text: object, *, strip_bullets: bool = True) -> str:
    """Return the text in NFKC form, without control characters and list markers, single-spaced.

    Parameters
    ----------
    text : object
        Anything a row may hold; None, NaN and other non-strings become "".
    strip_bullets : bool
        Whether list markers at the start of each line are taken off.

    Returns
    -------
    str
        At most `MAX_CHARACTERS` characters, cut at a space where there is one near the end.
    """
    if not isinstance(text, str):
        return ""
    text = text[: 4 * MAX_CHARACTERS].encode("utf-8", "ignore").decode("utf-8")  # lone surrogates cannot be encoded
    text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text))
    text = _CONTROL.sub(" ", text)
    if strip_bullets:
        text = "\n".join(MARKER.sub("", line.strip()) for line in text.splitlines())
    text = " ".join(text.split())
    if strip_bullets:  # a marker may stand on a line of its own before the line it marks
        text = MARKER.sub("", text)
    if len(text) > MAX_CHARACTERS:
        near_end = text.rfind(" ", MAX_CHARACTERS - CUT_WINDOW, MAX_CHARACTERS + 1)
        text = text[: near_end if near_end > 0 else MAX_CHARACTERS].rstrip()
    return text


def tokens(text: str) -> list[str]:
    """Return the lower-case words of a text, keeping "c++", "c#", ".net", "node.js" and single letters whole.

    Examples
    --------
    >>> tokens("C++, C#, .NET and Node.js; IDS/IPS (R).")
    ['c++', 'c#', '.net', 'and', 'node.js', 'ids', 'ips', 'r']
    """
    return _TOKEN.findall(text.casefold())


def first_token(text: str) -> str:
    """Return the first of the `tokens` of a text, "" where there is none."""
    found = _TOKEN.search(text.casefold())
    return found[0] if found else ""
