"""Columns by the name of their family, made from config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ranker.core.cli import choose
from ranker.core.config import ColumnConfig
from ranker.core.errors import RankerError
from ranker.core.options import fitting
from rerankers.base import Column
from rerankers.causal import CausalColumn
from rerankers.encoder import EncoderColumn
from rerankers.flag import FlagColumn
from rerankers.llm import LLMColumn

FAMILIES: dict[str, Callable[..., Column]] = {
    "encoder": EncoderColumn,
    "flag": FlagColumn,
    "causal": CausalColumn,
    "llm": LLMColumn,
}


def build_columns(configs: Sequence[ColumnConfig]) -> dict[str, Column]:
    """Make the columns of a system, in the order of the config; none is fitted yet.

    Everything that can be known before a model is loaded is checked here: a missing model, key or file of examples
    shows before the lanes embed a taxonomy.

    Raises
    ------
    ArgumentError
        Unknown family or option (the message lists those there are), a missing option, or a value that the column
        refuses.
    ResourceError
        If a model or file is not there.
    PrerequisiteError
        If a family's packages are not installed.
    """
    columns: dict[str, Column] = {}
    for config in configs:
        make = FAMILIES[choose(config.family, sorted(FAMILIES), "column family")]
        try:
            fitting(make, config.options, config.family)
            columns[config.name] = make(config.name, **config.options)
        except RankerError as error:
            raise type(error)(f"column {config.name}: {error}") from error
    return columns


def ask_once(columns: Iterable[Column]) -> None:
    """Put one small question to every hosted model, before work begins that would be in vain without it.

    Raises
    ------
    ResourceError
        If an endpoint is not there, refuses, hangs or answers something else; see `LLMColumn.probe`.
    """
    for column in columns:
        if isinstance(column, LLMColumn):
            column.probe()
