"""What of a skill a lane or a column reads."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib import resources

from ranker.core.taxonomy import Taxonomy
from ranker.core.wheels import URI, packaged_labels

TEXT_VIEWS = ("label", "label_alt", "description", "label_description", "who", "use")
USES = "uses.tsv.gz"


@cache
def _uses() -> bytes:
    return resources.files("ranker.core").joinpath("data", USES).read_bytes()


@cache
def uses() -> dict[str, tuple[str, str]]:
    """Return, by skill URI, who uses a skill and how an advert would ask for it, as a language model wrote them.

    The file names no skill: its rows are those of the packaged labels. NOTICE says how it was made.
    """
    rows = gzip.decompress(_uses()).decode().splitlines()[1:]
    return {URI + key: (who, how) for key, row in zip(packaged_labels(), rows, strict=True)
            for who, _, how in [row.partition("\t")]}


def uses_revision() -> str:
    """Return a hash of the packaged file, for the keys of what may have read it."""
    return hashlib.sha256(_uses()).hexdigest()[:16]


def view_identity(view: str) -> str:
    """Return the name of a view, and for those that the packaged file fills its revision: a part of cache keys."""
    return f"{view}@{uses_revision()}" if view in {"who", "use"} else view


def view_texts(taxonomy: Taxonomy, view: str) -> list[str]:
    """Return one text per skill.

    "label"; "label_alt": label and alt labels, a line each; "description"; "label_description": "label. description",
    or the label alone; "who": occupations and workplaces that use it; "use": "label. how an advert would ask for it.
    who". The last two are English: a skill that `uses` does not know, or of another language, has its
    "label_description" there.
    """
    if view == "label":
        return list(taxonomy.label)
    if view == "description":
        return list(taxonomy.description)
    if view == "label_alt":
        pairs = zip(taxonomy.label, taxonomy.alt_labels, strict=True)
        return ["\n".join((label, *alts)) for label, alts in pairs]
    rows = zip(taxonomy.label, taxonomy.description, strict=True)
    texts = [f"{label}. {description}" if description else label for label, description in rows]
    if view in {"who", "use"} and taxonomy.language == "en":
        for row, (uri, label) in enumerate(zip(taxonomy.uri, taxonomy.label, strict=True)):
            if uri in uses():
                who, how = uses()[uri]
                texts[row] = who if view == "who" else f"{label}. {how}. {who}"
    return texts
