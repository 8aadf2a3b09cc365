"""From config entries to columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ranker.core.cli import choose
from ranker.core.config import ColumnConfig
from rerankers.base import Column

FAMILIES: dict[str, Callable[..., Column]] = {}


def build_columns(configs: Sequence[ColumnConfig]) -> dict[str, Column]:
    """Return the columns by name, in the config's order.

    Raises
    ------
    ArgumentError
        For an unknown family; the message lists those there are.
    """
    columns: dict[str, Any] = {}
    for config in configs:
        choose(config.family, sorted(FAMILIES), "column family")
        columns[config.name] = FAMILIES[config.family](config.name, **config.options)
    return columns
