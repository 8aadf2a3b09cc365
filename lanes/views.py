"""What of a skill a lane reads, and the checks of a lane's options."""

from __future__ import annotations

from collections.abc import Sequence

from ranker.core.errors import RankerError
from ranker.core.options import number, one_of
from ranker.core.views import TEXT_VIEWS, view_identity, view_texts

__all__ = ["TEXT_VIEWS", "check", "check_number", "unfitted", "view_identity", "view_texts"]


def check(value: object, allowed: Sequence[object], *, option: str, lane: str) -> None:
    """Raise an error that lists the allowed values of a lane's option.

    Raises
    ------
    ArgumentError
        If `value` is not among them.
    """
    one_of(value, allowed, f"lane {lane}: {option}")


def check_number(value: object, low: float, high: float, *, option: str, lane: str, whole: bool = False) -> None:
    """Raise an error that states the range of a lane's numeric option.

    Raises
    ------
    ArgumentError
        If `value` is not a number (a whole one where `whole`) from `low` to `high`.
    """
    number(value, low, high, f"lane {lane}: {option}", whole=whole)


def unfitted(lane: str) -> RankerError:
    """Return the error of a lane that is asked before it has seen a taxonomy."""
    return RankerError(f"lane {lane}: asked for scores before fit(taxonomy)")
