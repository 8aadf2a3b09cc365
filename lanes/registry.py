"""Lanes by the name of their family, made from config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lanes.base import Lane
from lanes.bge_m3 import BgeM3Lane
from lanes.context import ContextLane
from lanes.dense import DenseLane
from lanes.encoder import EncoderPool
from lanes.fuzzy import FuzzyLane
from lanes.graph import FeedbackLane, GroupLane, NeighbourLane
from lanes.late import LateLane
from lanes.lexical import BM25Lane, TfidfLane
from lanes.memory import MemoryLane
from lanes.pagerank import PageRankLane
from lanes.span import SpanLane
from lanes.tuned import TunedLane
from ranker.core.config import LaneConfig
from ranker.core.errors import ArgumentError

FAMILIES: Mapping[str, Callable[..., Lane]] = {
    "bm25": BM25Lane,
    "tfidf": TfidfLane,
    "fuzzy": FuzzyLane,
    "dense": DenseLane,
    "context": ContextLane,
    "span": SpanLane,
    "group": GroupLane,
    "neighbour": NeighbourLane,
    "feedback": FeedbackLane,
    "pagerank": PageRankLane,
    "late": LateLane,
    "bge_m3": BgeM3Lane,
    "tuned": TunedLane,
    "memory": MemoryLane,
}


def build_lanes(configs: Sequence[LaneConfig], *, encoders: EncoderPool | None = None) -> dict[str, Lane]:
    """Make the lanes of a system, in the order of the config; none is fitted yet, and they are to be fitted in order.

    Parameters
    ----------
    configs : sequence of LaneConfig
        A derived lane names an earlier one in its option `base`.
    encoders : EncoderPool, optional
        Where the models are, for lanes that are to share them with others.

    Returns
    -------
    dict
        Lane by name. Neural lanes on one model share one encoder.

    Raises
    ------
    ArgumentError
        Unknown family or option (the message lists the allowed ones), a missing option, a `base` that is no earlier
        lane, or a value that the lane refuses.
    ResourceError
        If a model is not there.
    """
    encoders = EncoderPool() if encoders is None else encoders
    lanes: dict[str, Lane] = {}
    for config in configs:
        if config.family not in FAMILIES:
            raise ArgumentError(f"lane {config.name}: unknown family {config.family!r}; allowed: {', '.join(FAMILIES)}")
        if config.name in lanes:
            raise ArgumentError(f"lane {config.name} stands twice; lane names must differ")
        make = FAMILIES[config.family]
        parameters = [p for p in inspect.signature(make).parameters.values() if p.name != "name"]
        options: dict[str, Any] = dict(config.options)
        given: dict[str, Any] = {}
        allowed = {"base" if p.name == "base_lane" else p.name: p for p in parameters if p.name != "encoders"}
        unknown = [key for key in options if key not in allowed]
        if unknown:
            raise ArgumentError(
                f"lane {config.name}: unknown option {', '.join(map(repr, unknown))}; "
                f"options of family {config.family}: {', '.join(allowed)}"
            )
        missing = [key for key, p in allowed.items() if p.default is p.empty and key not in options]
        if missing:
            raise ArgumentError(f"lane {config.name}: option {', '.join(missing)} of family {config.family} is missing")
        if "base" in allowed:
            base = options.pop("base")
            if base not in lanes:
                raise ArgumentError(
                    f"lane {config.name}: base {base!r} is no lane before it; there are: {', '.join(lanes) or 'none'}"
                )
            given["base_lane"] = lanes[base]
        if any(p.name == "encoders" for p in parameters):
            given["encoders"] = encoders
        lanes[config.name] = make(config.name, **given, **options)
    return lanes
