"""One thread owns the ranker; requests wait for it in a bounded queue and are ranked together in small batches."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

# What a batch of items gives: one result per item, in their order.
Work = Callable[[Sequence[Any]], Sequence[Any]]


class QueueFullError(Exception):
    """No room for a request.

    Attributes
    ----------
    retry_after : int
        Seconds after which the queue should have room, from the present speed; at least 1.
    """

    def __init__(self, limit: int, retry_after: int) -> None:
        super().__init__(f"{limit} texts are waiting already, which is the limit; try again in {retry_after} s")
        self.retry_after = retry_after


class DeadlineError(Exception):
    """A request that nobody began to work on before its deadline."""


class ClosedError(Exception):
    """A request that came when the service was ending."""


@dataclass
class Answer:
    """What became of a job: a result per item, and milliseconds spent waiting and in the ranker, by stage."""

    results: list[Any]
    milliseconds: dict[str, float]


@dataclass(eq=False)
class _Job:
    key: Hashable
    work: Work
    items: Sequence[Any]
    costs: Sequence[int]
    arrived: float
    future: Future[Answer] = field(default_factory=Future)
    results: list[Any] = field(default_factory=list)
    taken: int = 0
    stages: dict[str, float] = field(default_factory=dict)


class Batcher:
    """The queue and its worker.

    A batch takes items from all waiting jobs, oldest first, the same number of texts from each, so that a large request
    shares the ranker with small ones instead of holding it. A job that is cancelled, because its client left, loses
    what it has in the queue.

    Parameters
    ----------
    limit : int
        Texts that may be waiting or in work. A job that is larger than that is taken when nothing else is there.
    max_batch : int
        Texts of one batch.
    window : float
        Seconds that a busy worker waits for a batch to fill. An idle one starts at once.
    deadline : float
        Seconds after which a job that nobody began is given up; 0 for never.
    stages : callable, optional
        Returns the seconds that the ranker has spent so far, by stage; its growth over a batch goes to the answers.
    observe : callable, optional
        Called with the cost of each batch and its seconds by stage.
    """

    def __init__(
        self,
        *,
        limit: int,
        max_batch: int,
        window: float = 0.0,
        deadline: float = 0.0,
        stages: Callable[[], dict[str, float]] = dict,
        observe: Callable[[int, dict[str, float]], None] = lambda cost, seconds: None,
    ) -> None:
        self._limit = limit
        self._max_batch = max_batch
        self._window = window
        self._deadline = deadline
        self._stages = stages
        self._observe = observe
        self._change = threading.Condition()
        self._jobs: list[_Job] = []
        self._in_work = 0
        self._speed = 0.0  # texts per second, over the last batches
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ranker", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Texts accepted and not yet answered."""
        with self._change:
            return self._load()

    def _load(self) -> int:
        return self._in_work + sum(sum(job.costs[job.taken :]) for job in self._jobs)

    def submit(self, key: Hashable, work: Work, items: Sequence[Any], costs: Sequence[int]) -> Future[Answer]:
        """Queue a job.

        Parameters
        ----------
        key : hashable
            Items of jobs that share it may go to `work` together.
        work : callable
            Takes items, returns as many results; runs in the worker's thread.
        items : sequence
            At least one.
        costs : sequence of int
            How many texts each item counts for.

        Raises
        ------
        QueueFullError
            If the queue has no room for it.
        ClosedError
            If `close` was called.
        """
        job = _Job(key, work, items, costs, time.monotonic())
        with self._change:
            if self._closed:
                raise ClosedError("the service is ending")
            self._jobs = [job for job in self._jobs if not job.future.done()]  # no room for those who left
            load = self._load()
            if load and load + sum(costs) > self._limit:
                over = load + sum(costs) - self._limit
                raise QueueFullError(self._limit, max(1, math.ceil(over / self._speed)) if self._speed else 1)
            self._jobs.append(job)
            self._change.notify()
        return job.future

    def close(self) -> None:
        """Take no more jobs, answer those that were accepted, and end the worker."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    def _run(self) -> None:
        ready = 0.0  # a batch that follows another waits until then, so that answered clients can come back
        while True:
            with self._change:
                while not self._jobs and not self._closed:
                    self._change.wait()
                while self._jobs and self._load() < self._max_batch and not self._closed:
                    left = ready - time.monotonic()
                    if left <= 0:
                        break
                    self._change.wait(left)
                if not self._jobs:
                    if self._closed:
                        return
                    continue
                batch = self._take()
                self._in_work = sum(sum(job.costs[start:end]) for job, start, end in batch)
            if batch:
                self._work(batch)
            with self._change:
                self._in_work = 0
            ready = time.monotonic() + self._window

    def _take(self) -> list[tuple[_Job, int, int]]:
        """Return parts of jobs for one batch as (job, start, end), and forget the jobs that are taken whole."""
        now = time.monotonic()
        alive = []
        for job in self._jobs:
            if self._deadline and not job.taken and now - job.arrived > self._deadline:
                _settle(job.future, DeadlineError(f"not begun within {self._deadline:g} s"))
            if not job.future.done():
                alive.append(job)
        ends = {id(job): job.taken for job in alive}
        room, progress = self._max_batch, True
        while progress and room > 0:
            progress = False
            for job in alive:
                end = ends[id(job)]
                # A document may cost more than a whole batch holds; it then goes alone.
                if end < len(job.items) and (job.costs[end] <= room or room == self._max_batch):
                    ends[id(job)] += 1
                    room -= job.costs[end]
                    progress = True
        batch = [(job, job.taken, ends[id(job)]) for job in alive if ends[id(job)] > job.taken]
        for job, _, end in batch:
            job.taken = end
        self._jobs = [job for job in alive if job.taken < len(job.items)]
        return batch

    def _work(self, batch: list[tuple[_Job, int, int]]) -> None:
        groups: dict[Hashable, list[tuple[_Job, int, int]]] = {}
        for part in batch:
            groups.setdefault(part[0].key, []).append(part)
        for parts in groups.values():
            start, before = time.monotonic(), self._stages()
            try:
                self._rank(parts)
            except Exception:  # noqa: BLE001  whose item it was shows when each job goes alone
                for part in parts:
                    try:
                        self._rank([part])
                    except Exception as error:  # noqa: BLE001  the client's to be told, and the log's
                        _settle(part[0].future, error)
            seconds = time.monotonic() - start
            spent = {name: total - before.get(name, 0.0) for name, total in self._stages().items()}
            spent["rank"] = seconds
            cost = sum(sum(job.costs[begin:end]) for job, begin, end in parts)
            speed = cost / max(seconds, 1e-6)
            self._speed = 0.8 * self._speed + 0.2 * speed if self._speed else speed
            self._observe(cost, spent)
            for job, _, _ in parts:
                for name, value in spent.items():
                    job.stages[name] = job.stages.get(name, 0.0) + value
                if len(job.results) == len(job.items):
                    self._answer(job)

    @staticmethod
    def _rank(parts: list[tuple[_Job, int, int]]) -> None:
        items = [item for job, start, end in parts for item in job.items[start:end]]
        results = list(parts[0][0].work(items))
        if len(results) != len(items):
            raise RuntimeError(f"{len(results)} results for {len(items)} items")
        for job, start, end in parts:
            job.results += results[: end - start]
            del results[: end - start]

    @staticmethod
    def _answer(job: _Job) -> None:
        total = time.monotonic() - job.arrived
        # What is not spent in batches that held its items was spent waiting for them.
        stages = {"queue": max(0.0, total - job.stages["rank"]), **job.stages}
        _settle(job.future, Answer(job.results, {name: 1000 * value for name, value in stages.items()}))


def _settle(future: Future[Answer], outcome: Answer | Exception) -> None:
    try:
        if isinstance(outcome, Answer):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
    except InvalidStateError:  # the client left in this moment
        pass
