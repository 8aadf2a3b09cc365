"""Open graded ranker for ESCO skills.

>>> from ranker import SkillRanker
>>> ranker = SkillRanker.load("embedded")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

_RECORDS = {"Explanation", "RankedSkill", "Ranking", "Span", "TaggedSkill", "Tagging"}

__all__ = ["Explanation", "RankedSkill", "Ranking", "SkillRanker", "Span", "TaggedSkill", "Tagging", "Taxonomy"]


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that a command's --help stays fast."""
    if name == "SkillRanker":
        from ranker.pipeline import SkillRanker

        return SkillRanker
    if name in _RECORDS:
        from ranker.core import types

        return getattr(types, name)
    if name == "Taxonomy":
        from ranker.core.taxonomy import Taxonomy

        return Taxonomy
    raise AttributeError(f"module 'ranker' has no attribute {name!r}")
