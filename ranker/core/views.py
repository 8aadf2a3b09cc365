"""What of a skill a lane or a column reads."""

from __future__ import annotations

from ranker.core.taxonomy import Taxonomy

TEXT_VIEWS = ("label", "label_alt", "description", "label_description")


def view_texts(taxonomy: Taxonomy, view: str) -> list[str]:
    """Return one text per skill: label, label and alt labels (a line each), description, or "label. description"."""
    if view == "label":
        return list(taxonomy.label)
    if view == "description":
        return list(taxonomy.description)
    if view == "label_alt":
        pairs = zip(taxonomy.label, taxonomy.alt_labels, strict=True)
        return ["\n".join((label, *alts)) for label, alts in pairs]
    rows = zip(taxonomy.label, taxonomy.description, strict=True)
    return [f"{label}. {description}" if description else label for label, description in rows]
