"""How a run of judging is going, and what it has cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from train.labels.cascade import Judge
from train.labels.client import JudgeClient

EVERY = 5.0  # seconds between lines of progress


class Meter:
    """Says every few seconds how far a run is."""

    def __init__(self, judge: Judge, total: int, say_line: Callable[[str], None]) -> None:
        self.judge, self.total, self.say_line = judge, total, say_line
        self.start = self.last = time.monotonic()

    def __call__(self) -> None:
        """Say a line where it is time."""
        now = time.monotonic()
        if now - self.last >= EVERY:
            self.last = now
            self.say_line(self.line(now - self.start))

    def line(self, seconds: float) -> str:
        """Return one line: pairs, rates, requests in flight, cost, time left."""
        tally = self.judge.tally
        clients = [client for client in (self.judge.client, self.judge.juror) if client is not None]
        parts = [
            f"{tally.pairs:,}/{self.total:,} pairs",
            f"{_rate(tally.pairs, seconds)} pairs/s",
            f"{_rate(tally.asked, seconds)} answers/s",
            f"{sum(client.usage.in_flight for client in clients)} in flight",
            f"{tally.cached:,} from the cache",
            f"{sum(client.usage.retries for client in clients):,} retries",
            f"{tally.unjudged:,} unjudged",
        ]
        costs = [client.usage.cost(client.endpoint.price) for client in clients]
        if any(cost is not None for cost in costs):
            parts.append(f"cost {sum(cost or 0.0 for cost in costs):.4f}")
        if tally.pairs:
            parts.append(f"{(self.total - tally.pairs) * seconds / tally.pairs / 60:.1f} min left")
        return ", ".join(parts)


def _rate(count: int, seconds: float) -> str:
    """Return a rate with a digit that means something, also for a server that takes seconds for an answer."""
    rate = count / seconds
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"


def usage_facts(client: JudgeClient) -> dict[str, Any]:
    """Return what was asked of an endpoint in this run, for the manifest and for people."""
    usage = client.usage
    return {
        "model": client.endpoint.identity,
        "url": client.endpoint.url,
        "requests": usage.calls,
        "retries": usage.retries,
        "failures": dict(usage.failures),
        "most_in_flight": usage.peak,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost": usage.cost(client.endpoint.price),
    }
