"""Checks of the options that a lane or a column takes from a config; `where` says whose option it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ranker.core.errors import ArgumentError


def one_of(value: object, allowed: Sequence[object], where: str) -> None:
    """Raise an error that lists the allowed values.

    Raises
    ------
    ArgumentError
        If `value` is not among them.
    """
    if value not in allowed:
        raise ArgumentError(f"{where}: {value!r} is not one of {', '.join(map(str, allowed))}")


def number(value: object, low: float, high: float, where: str, *, whole: bool = False) -> None:
    """Raise an error that states the range.

    Raises
    ------
    ArgumentError
        If `value` is not a number (a whole one where `whole`) from `low` to `high`.
    """
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "whole number" if whole else "number"
        raise ArgumentError(f"{where}: {value!r} is not a {kind} from {low} to {high}")


def fitting(make: Callable[..., object], options: Mapping[str, Any], family: str) -> None:
    """Raise where options are not those that a family's constructor takes besides the name.

    Raises
    ------
    ArgumentError
        For an unknown option (the message lists the known ones), or a missing one.
    """
    known = {p.name: p for p in inspect.signature(make).parameters.values() if p.name != "name"}
    unknown = [key for key in options if key not in known]
    if unknown:
        found = ", ".join(map(repr, unknown))
        raise ArgumentError(f"unknown option {found}; options of family {family}: {', '.join(known)}")
    missing = [key for key, p in known.items() if p.default is p.empty and key not in options]
    if missing:
        raise ArgumentError(f"option {', '.join(missing)} of family {family} is missing")
