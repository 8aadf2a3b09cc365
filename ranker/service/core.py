"""The ranker behind the routes: loading, readiness, the queue in front of it, and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import Request

from ranker.core.errors import RankerError
from ranker.service.batcher import Answer, Batcher, ClosedError, DeadlineError, QueueFullError, Work
from ranker.service.edge import RefusedError, limited
from ranker.service.logs import LOGGER
from ranker.service.metrics import Metrics
from ranker.service.rerank import Names
from ranker.service.settings import Settings

if TYPE_CHECKING:
    from ranker.pipeline import SkillRanker

CLIENT_FAULTS = {2, 5}  # exit codes of the errors that speak of what was given
CHARACTERS_PER_SENTENCE = 200  # a document counts as a text for each that it may hold


class LeftError(Exception):
    """The client went away before its answer was there."""


class Loaded:
    """A ranker and what is derived from it once."""

    def __init__(self, ranker: SkillRanker, batcher: Batcher) -> None:
        self.ranker = ranker
        self.batcher = batcher
        self.names = Names(ranker.taxonomy)
        taxonomy = ranker.taxonomy
        self.taxonomy = {
            "version": taxonomy.version,
            "language": taxonomy.language,
            "fingerprint": taxonomy.fingerprint,
            "skills": len(taxonomy),
        }
        self.model = {"name": ranker.config.name, "digest": ranker.config.digest}


class Service:
    """State of one app.

    Parameters
    ----------
    settings : Settings
    load : callable
        Returns the ranker; runs in a thread, so that health checks answer meanwhile.
    on_failure : callable
        Called with the error where loading fails.
    """

    def __init__(
        self, settings: Settings, load: Callable[[], SkillRanker], on_failure: Callable[[Exception], None]
    ) -> None:
        self.settings = settings
        self.draining = False
        self.metrics = Metrics(
            lambda: self._loaded.batcher.waiting if self._loaded else 0, lambda: self.status == "ready"
        )
        self._load = load
        self._on_failure = on_failure
        self._loaded: Loaded | None = None
        self._failed = False

    @property
    def status(self) -> str:
        """Return "loading", "failed", "ready" or "draining"."""
        if self.draining:
            return "draining"
        return "failed" if self._failed else "loading" if self._loaded is None else "ready"

    @property
    def loaded(self) -> Loaded:
        """Return the ranker.

        Raises
        ------
        RefusedError
            503 while it is not there.
        """
        if self._loaded is None:
            raise RefusedError(503, "not_ready", f"the service is {self.status}", headers={"Retry-After": "2"})
        return self._loaded

    def start(self) -> None:
        """Begin to load."""
        threading.Thread(target=self._start, name="load", daemon=True).start()

    def _start(self) -> None:
        settings = self.settings
        try:
            ranker = self._load()
            batcher = Batcher(
                limit=settings.queue,
                max_batch=settings.max_batch,
                window=settings.window_ms / 1000,
                deadline=settings.deadline,
                stages=lambda: dict(ranker.pipeline.seconds),
                observe=self.metrics.batch_done,
            )
            self._loaded = Loaded(ranker, batcher)
            LOGGER.info("ready", extra={"fields": {"model": self._loaded.model, "taxonomy": self._loaded.taxonomy}})
        except Exception as error:  # noqa: BLE001  whoever started the service decides what its end means
            self._failed = True
            LOGGER.exception("loading failed")
            self._on_failure(error)

    def close(self) -> None:
        """Answer what was accepted and stop."""
        self.draining = True
        if self._loaded is not None:
            self._loaded.batcher.close()

    async def answer(
        self, request: Request, key: Hashable, work: Work, items: Sequence[Any], costs: Sequence[int]
    ) -> Answer:
        """Queue a request's items and wait for their results, or for the client to leave.

        Raises
        ------
        RefusedError
            429 where the queue is full, 504 after the deadline, 503 at the end, 422 where the library refuses.
        LeftError
            If the client left.
        """
        route = request.scope["route"].path
        try:
            future = asyncio.wrap_future(self.loaded.batcher.submit(key, work, items, costs))
            request.state.log = {"texts": len(items), "cost": sum(costs)}
            self.metrics.texts.labels(route).inc(len(items))
            gone = asyncio.ensure_future(_left(request))
            try:
                first: set[asyncio.Future[Any]] = {future, gone}
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if not future.done():
                    self.metrics.left.inc()
                    raise LeftError
                return future.result()
            finally:
                gone.cancel()
                future.cancel()
        except QueueFullError as error:
            more, headers = limited("queue", self.settings.queue), {"Retry-After": str(error.retry_after)}
            raise RefusedError(429, "queue_full", str(error), more=more, headers=headers) from error
        except DeadlineError as error:
            raise RefusedError(504, "deadline", str(error)) from error
        except ClosedError as error:
            raise RefusedError(503, "not_ready", str(error), headers={"Retry-After": "5"}) from error
        except RankerError as error:
            if error.exit_code not in CLIENT_FAULTS:
                raise
            raise RefusedError(422, "invalid", str(error)) from error


async def _left(request: Request) -> None:
    """Return when the client has left; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def document_cost(text: str) -> int:
    """Return how many texts a document counts for in the queue."""
    return 1 + len(text) // CHARACTERS_PER_SENTENCE
