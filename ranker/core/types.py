"""Records that travel between the rooms of the house."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


def _plain(value: Any) -> Any:
    """Return records as dicts and tuples as lists: what JSON would give back."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


class Record:
    """What all records can do."""

    __slots__: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts and lists, ready for JSON."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class RankedSkill(Record):
    """One skill of a ranking.

    Attributes
    ----------
    uri, label : str
        ESCO concept and its preferred label.
    score : float
        Fused score; comparable within one ranking only.
    probability : float or None
        Calibrated probability of grade >= 2, None where the system has no calibration.
    evidence : dict
        What carried the hit: the matching alt label where there is one, and each lane's z-score.
    """

    uri: str
    label: str
    score: float
    probability: float | None
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ranking(Record):
    """The answer to one text.

    Attributes
    ----------
    query : str
        The text as it was given.
    skills : tuple of RankedSkill
        Best first; score descending, then URI.
    reason : str
        Why the ranking is empty; "" where it is not.
    """

    query: str
    skills: tuple[RankedSkill, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Span(Record):
    """A stretch of a document: `document[start:end]`.

    Attributes
    ----------
    start, end : int
        Characters (code points, as Python counts them) of the original document; `end` is exclusive.
    """

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TaggedSkill(Record):
    """One skill of a document.

    Attributes
    ----------
    uri, label : str
        ESCO concept and its preferred label.
    score : float
        Fused score in the sentence that speaks for it most.
    probability : float or None
        Calibrated probability of grade >= 2 in that sentence, the highest of all; None where the system has no
        calibration.
    evidence : dict
        The evidence in that sentence, as in `RankedSkill`.
    spans : tuple of Span
        The sentences that speak for it, the one that says it most strongly first; equal ones as in the document.
    """

    uri: str
    label: str
    score: float
    probability: float | None
    evidence: dict[str, Any]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Tagging(Record):
    """The answer to one document.

    Attributes
    ----------
    document : str
        The text as it was given; "" where it was none.
    skills : tuple of TaggedSkill
        Best first.
    dropped : tuple of Span
        The sentences that speak for no skill, in the order of the document.
    reason : str
        Why there are no skills; "" where there are.
    """

    document: str
    skills: tuple[TaggedSkill, ...]
    dropped: tuple[Span, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Explanation(Record):
    """Why a skill stands where it stands for a text.

    Attributes
    ----------
    query : str
        The text as it was given.
    uri, label : str
        ESCO concept and its preferred label.
    rank : int or None
        Place in the ranking, from 1; None where the pool leaves the skill out.
    score, probability : float or None
        As in `RankedSkill`; None outside the pool.
    lanes : dict of str to dict
        For each lane {"score": raw score, "z": its z-score for this text, "rank": place among all skills, from 1}.
    columns : dict of str to float
        Raw score of each column that read this skill.
    matched : str or None
        The label or alt label that stands in the text.
    contributions : dict of str to float
        What each feature adds to the bag's raw output (LightGBM's pred_contrib, mean over the members), largest size
        first; empty for systems without a bag and for skills outside the pool.
    reason : str
        Why there is no rank; "" where there is one.
    """

    query: str
    uri: str
    label: str
    rank: int | None
    score: float | None
    probability: float | None
    lanes: dict[str, dict[str, float]]
    columns: dict[str, float]
    matched: str | None
    contributions: dict[str, float]
    reason: str = ""
