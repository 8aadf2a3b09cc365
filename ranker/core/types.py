"""Records that travel between the rooms of the house."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RankedSkill:
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
class Ranking:
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts and lists, ready for JSON."""
        return asdict(self)
