"""One normaliser and one tokeniser, for queries and labels alike."""

from __future__ import annotations

import re
import unicodedata

# List markers at the start of a line: bullets and dashes followed by space, "1." / "2)" / "a)" / "(iv)".
_MARKER = re.compile(
    r"^(?:[\s\u2022\u2023\u2043\u2219\u25aa-\u25ab\u25cf\u25cb\u25e6\u25a0\u25a1\u2713\u2714\u27a2\u27a4\u00b7\uf0b7\uf0a7]+"
    r"|[*\-\u2010-\u2015>o]\s+|\(?(?:\d{1,2}|[ivx]{1,4}|[a-h])[.)]\s+)+",
)
# Words that keep the signs which carry meaning: C++, C#, .NET, Node.js, IDS/IPS (as two words), TCP/IP, R, 50lbs.
_TOKEN = re.compile(r"\.?[^\W_]+(?:[.'\u2019][^\W_]+)*(?:\+{1,2}|#)?(?![^\W_])|[^\W_]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060\ufeff]")

MAX_CHARACTERS = 20_000


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
    text = _CONTROL.sub(" ", unicodedata.normalize("NFKC", text))
    if strip_bullets:
        text = "\n".join(_MARKER.sub("", line.strip()) for line in text.splitlines())
    text = " ".join(text.split())
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS].rsplit(" ", 1)[0]
    return text


def tokens(text: str) -> list[str]:
    """Return the lower-case words of a text, keeping "c++", "c#", ".net", "node.js" and single letters whole.

    Examples
    --------
    >>> tokens("C++, C#, .NET and Node.js; IDS/IPS (R).")
    ['c++', 'c#', '.net', 'and', 'node.js', 'ids', 'ips', 'r']
    """
    return _TOKEN.findall(text.casefold())
