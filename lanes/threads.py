"""BLAS on one thread while a query is scored.

A query's products are small. Two BLAS threads halve their time at best, and on a machine with anything else to do they
wait for each other in a busy loop: 30 ms became 450. One thread also makes scores independent of the thread count.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController


class _SingleThread:
    """Counts who needs a single thread: the first sets it, the last restores what was, in whatever order they end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._controller: ThreadpoolController | None = None
        self._found: dict[int, int] = {}

    def enter(self) -> int:
        """Set one thread and return how many there were."""
        with self._lock:
            if self._controller is None:
                self._controller = ThreadpoolController().select(user_api="blas")
            libraries = self._controller.lib_controllers
            if self._depth == 0:
                self._found = {at: library.get_num_threads() for at, library in enumerate(libraries)}
                for library in libraries:
                    library.set_num_threads(1)
            self._depth += 1
            return max(self._found.values(), default=1)

    def leave(self) -> None:
        """Restore the number of threads if this was the last."""
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._controller is not None:
                for at, library in enumerate(self._controller.lib_controllers):
                    library.set_num_threads(self._found[at])


_SINGLE = _SingleThread()


@contextmanager
def one_thread() -> Iterator[int]:
    """Run a block with one BLAS thread; yields how many there were outside. Safe among threads, may be nested."""
    before = _SINGLE.enter()
    try:
        yield before
    finally:
        _SINGLE.leave()
