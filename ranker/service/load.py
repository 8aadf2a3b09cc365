"""What the service costs over the library, and what it does when overloaded: `python -m ranker.service.load`.

The server runs in a process of its own, the clients in this one. Library and service take turns, so that a busy machine
is slow for both alike, and no spelling of a text comes twice (`ranker.bench.variant`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ranker.bench import SAMPLE, variant
from ranker.core.cli import emit, note, parser, positive, run, say, table
from ranker.core.errors import RankerError

_NUMBERS = count()
HOST = "127.0.0.1"


def text() -> str:
    """Return a text that no system has seen."""
    number = next(_NUMBERS)
    return variant(SAMPLE[number % len(SAMPLE)], number)


@dataclass
class Heard:
    """Answers: seconds of those with status 200, and how often each status came (0: no answer)."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    elapsed: float = 0.0

    def add(self, other: Heard) -> None:
        """Add another round's answers."""
        self.seconds += other.seconds
        self.statuses += other.statuses
        self.elapsed += other.elapsed


async def ask(port: int, heard: Heard) -> None:
    """Send one text over a connection of its own."""
    body = json.dumps({"texts": [text()]}).encode()
    head = f"POST /v1/skills HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    start = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read(-1)
        writer.close()
        status = int(answer.split(b" ", 2)[1])
    except (OSError, IndexError, ValueError):
        status = 0
    heard.statuses[status] += 1
    if status == 200:
        heard.seconds.append(time.perf_counter() - start)


async def closed_loop(port: int, *, clients: int, seconds: float) -> Heard:
    """Let clients ask one text after another, each as soon as it has its answer."""
    heard, start = Heard(), time.perf_counter()

    async def client() -> None:
        while time.perf_counter() - start < seconds:
            await ask(port, heard)

    await asyncio.gather(*(client() for _ in range(clients)))
    heard.elapsed = time.perf_counter() - start
    return heard


async def open_loop(port: int, *, rate: float, seconds: float) -> Heard:
    """Send `rate` texts a second, whatever comes back."""
    heard, start, tasks = Heard(), time.perf_counter(), []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
        tasks.append(asyncio.ensure_future(ask(port, heard)))
    await asyncio.gather(*tasks)
    heard.elapsed = time.perf_counter() - start
    return heard


def resident_mb(process: int) -> float:
    """Return a process's resident memory in MB (Linux)."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RankerError(f"process {process} has no memory to read")


def cpu_seconds(process: int) -> float:
    """Return the processor time that a process has used (Linux)."""
    after_name = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(config: str) -> Iterator[tuple[int, int]]:
    """Run the service with its default settings; give its port and process id."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ranker.serve", "--config", config, "--host", HOST, "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=dict(os.environ)) as process:
        try:
            heard = Heard()
            while not heard.seconds:
                if process.poll() is not None:
                    raise RankerError(f"the service ended with {process.returncode}; run: {' '.join(command[1:])}")
                time.sleep(0.2)
                asyncio.run(ask(port, heard))
            yield port, process.pid
        finally:
            process.terminate()


def measure(
    config: str, *, clients: int, seconds: float, rounds: int, factor: float, overload: float
) -> dict[str, Any]:
    """Measure a system.

    Parameters
    ----------
    config : str
        Name or path.
    clients : int
        How many ask at once.
    seconds : float
        Of each round of library and service.
    rounds : int
    factor : float
        Times the service's own throughput, as the rate of the overload.
    overload : float
        Seconds of overload; 0 leaves it out.

    Returns
    -------
    dict
        Texts per second of library and service, the overhead as a share, processor time per text, which other work on
        the machine touches less, median and 99th percentile in ms, statuses; under overload statuses and memory in MB
        before, halfway and after; ms of single requests before and after.
    """
    from ranker.pipeline import SkillRanker

    ranker = SkillRanker.load(config)
    library: list[float] = []
    used: list[float] = []
    served: list[float] = []
    heard = Heard()
    with server(config) as (port, process):
        ranker.rank([text() for _ in range(clients)])
        asyncio.run(closed_loop(port, clients=clients, seconds=seconds / 2))  # warm
        for number in range(rounds):
            note(f"round {number + 1} of {rounds}")
            start, before, done = time.perf_counter(), cpu_seconds(os.getpid()), 0
            while time.perf_counter() - start < seconds:
                done += len(ranker.rank([text() for _ in range(clients)]))
            library.append(done / (time.perf_counter() - start))
            used.append((cpu_seconds(os.getpid()) - before) / done)
            before, one = cpu_seconds(process), asyncio.run(closed_loop(port, clients=clients, seconds=seconds))
            served.append((cpu_seconds(process) - before) / max(1, len(one.seconds)))
            heard.add(one)
        speed = len(heard.seconds) / heard.elapsed
        p50, p99 = (1000 * float(value) for value in np.percentile(heard.seconds, [50, 99]))
        found: dict[str, Any] = {
            "clients": clients,
            "library_texts_per_s": float(np.mean(library)),
            "service_texts_per_s": speed,
            "overhead": 1 - speed / float(np.mean(library)),
            "library_cpu_ms_per_text": 1000 * float(np.mean(used)),
            "service_cpu_ms_per_text": 1000 * float(np.mean(served)),
            "p50_ms": p50,
            "p99_ms": p99,
            "p99_over_p50": p99 / p50,
            "statuses": dict(heard.statuses),
        }
        if overload:
            note(f"overload: {factor * speed:.0f} texts/s for {overload:g} s")
            single = asyncio.run(closed_loop(port, clients=1, seconds=2))
            memory, flood = [resident_mb(process)], Heard()
            for _ in range(2):
                flood.add(asyncio.run(open_loop(port, rate=factor * speed, seconds=overload / 2)))
                memory.append(resident_mb(process))
            after = asyncio.run(closed_loop(port, clients=1, seconds=2))
            found["overload"] = {
                "texts_per_s": factor * speed,
                "statuses": dict(flood.statuses),
                "memory_mb": memory,
                "single_ms_before": 1000 * float(np.median(single.seconds)),
                "single_ms_after": 1000 * float(np.median(after.seconds)),
            }
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser(
        "ranker.service.load",
        "Measure what the service costs over the library, and its behaviour under overload, on this machine.",
        "python -m ranker.service.load --config embedded --overload 60",
    )
    add = arguments.add_argument
    add("--config", default="embedded", help="name of a system in configs/ or path of a YAML file (default: embedded)")
    add("--clients", type=positive, default=16, help="clients at once (default: 16)")
    add("--seconds", type=float, default=5.0, help="seconds of each round (default: 5)")
    add("--rounds", type=positive, default=4, help="rounds of library and service in turn (default: 4)")
    add("--factor", type=float, default=10.0, help="overload over the measured throughput (default: 10)")
    add("--overload", type=float, default=0.0, help="seconds of overload (default: none)")
    add("--json", action="store_true", help="print one JSON object")
    given = arguments.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends this ends the server too
    found = measure(
        given.config,
        clients=given.clients,
        seconds=given.seconds,
        rounds=given.rounds,
        factor=given.factor,
        overload=given.overload,
    )
    if given.json:
        emit(found)
    else:
        overload = found.pop("overload", {})
        flat = {**found, **{f"overload: {name}": value for name, value in overload.items()}}
        say(table([(name, json.dumps(value)) for name, value in flat.items()], ("what", "value")))
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
