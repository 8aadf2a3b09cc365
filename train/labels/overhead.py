"""What the judge's client adds to a server's own time, measured against a stand-in server of fixed speed.

The server takes `--latency` seconds for each request and `--concurrency` requests at a time; so many answers take it
requests x latency / concurrency seconds. Whatever a run takes longer is overhead: HTTP, JSON, cache, prompts. Client
and server are separate processes.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ranker.core.answers import AnswerCache
from ranker.core.chat import Endpoint
from ranker.core.cli import emit, parser, positive, run, say, seconds, table
from train.labels.cascade import Judge, Outcome, grade_all
from train.labels.client import JudgeClient
from train.labels.gates import Pair, load_questions
from train.labels.standin import Reply, StandIn

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# As long as the average description of ESCO, and a vacancy sentence.
TEXT = "You plan and carry out preventive maintenance of the production lines together with the electricians."
DESCRIPTION = "Perform regular maintenance on equipment so that it stays in a usable state, and keep records. " * 2


def _serve(latency: float, channel: Connection, done: Event) -> None:
    async def script(body: Mapping[str, Any]) -> Reply:
        await asyncio.sleep(latency)
        return Reply('{"answer": false}')

    with StandIn(script) as server:
        channel.send(server.url)
        done.wait()
        channel.send(server.peak)


async def _drive(url: str, requests: int, concurrency: int, folder: Path) -> float:
    """Return the seconds that so many pairs take, each with one answer."""
    pairs = (Pair(TEXT, f"skill {number}", DESCRIPTION, "", (0, number)) for number in range(requests))
    endpoint = Endpoint(url, "stand-in")

    def keep(pair: Pair, outcome: Outcome) -> None:
        if outcome.grade != 0:
            raise RuntimeError(f"the stand-in's answer to {pair.label} came out as {outcome}")

    with AnswerCache(folder / "answers.sqlite") as cache:
        async with JudgeClient(endpoint) as client:
            judge = Judge(load_questions(), client, cache)
            start = time.perf_counter()
            await grade_all(judge, pairs, keep, concurrency=concurrency)
            return time.perf_counter() - start


def measure(*, latency: float, requests: int, concurrency: int) -> dict[str, float]:
    """Run once and return the figures.

    Parameters
    ----------
    latency : float
        Seconds the server takes for a request.
    requests : int
        Rounded up to whole rounds of `concurrency`.

    Returns
    -------
    dict
        latency and seconds in seconds, overhead as a share of the server's own time, the most requests the server had
        at once, and answers per second.
    """
    requests = -(-requests // concurrency) * concurrency
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    done = context.Event()
    server = context.Process(target=_serve, args=(latency, there, done), daemon=True)
    server.start()
    try:
        url = here.recv()
        with tempfile.TemporaryDirectory() as folder:
            seconds = asyncio.run(_drive(url, requests, concurrency, Path(folder)))
        done.set()
        peak = here.recv()
    finally:
        done.set()
        server.join()
    own = requests * latency / concurrency
    return {
        "latency": latency,
        "requests": requests,
        "in_flight": peak,
        "own_seconds": own,
        "seconds": seconds,
        "overhead": seconds / own - 1,
        "answers_per_second": requests / seconds,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `--help`."""
    made = parser(
        "train.labels.overhead",
        "Measure what the judge's client adds to a server's own time, with a stand-in server of fixed speed.",
        "python -m train.labels.overhead --latency 0.25 0.5 1",
    )
    made.add_argument("--latency", type=seconds, nargs="+", default=[0.25, 0.5, 1.0], help="seconds per request")
    made.add_argument("--seconds", type=seconds, default=10.0, help="own time of the server in each run; default 10")
    made.add_argument("--concurrency", type=positive, default=64, help="requests in flight; default 64")
    made.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options: argparse.Namespace = made.parse_args(argv)
    rows = []
    for latency in options.latency:
        requests = max(1, round(options.seconds / latency * options.concurrency))
        rows.append(measure(latency=latency, requests=requests, concurrency=options.concurrency))
    if options.json:
        emit({"concurrency": options.concurrency, "runs": rows})
    else:
        say(table([list(row.values()) for row in rows], list(rows[0])))
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
