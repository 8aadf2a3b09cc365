"""Serve the ranker over HTTP, with a page: `python -m ranker.serve`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ranker.core.cli import note, parser, run
from ranker.core.errors import RankerError, missing_extra
from ranker.service.settings import Settings, add_flags, read_settings

if TYPE_CHECKING:
    from types import FrameType

    from ranker.pipeline import SkillRanker


def serve(settings: Settings, load: Callable[[], SkillRanker]) -> None:
    """Run the service until it is told to stop by SIGTERM or SIGINT.

    At the first signal /health/ready turns to 503, for `drain` seconds the service goes on, then it takes no new
    connections and answers what it has accepted. A second signal cuts `drain` short, a third
    gives up what is unanswered.

    Raises
    ------
    PrerequisiteError
        If the extra is not installed.
    RankerError
        If the ranker cannot be loaded, or the address is taken.
    """
    try:
        import uvicorn

        from ranker.service.app import create_app
        from ranker.service.logs import set_up
    except ImportError as error:
        raise missing_extra(error.name or "fastapi", "serve") from error

    failures: list[Exception] = []

    def fail(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    app = create_app(settings, load, on_failure=fail)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            service = app.state.service
            if self.should_exit:
                self.force_exit = True
            elif settings.drain and not service.draining:
                threading.Timer(settings.drain, self._stop).start()
            else:
                self._stop()
            service.draining = True

        def _stop(self) -> None:
            self.should_exit = True

    set_up(texts=settings.log_texts)
    server = Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=round(settings.grace),
        )
    )
    try:
        server.run()
    except SystemExit as error:  # uvicorn's way to say that it could not listen; the log has the reason
        raise RankerError(f"cannot listen on {settings.host} port {settings.port}") from error
    if failures:
        raise failures[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser(
        "ranker.serve",
        "Serve the ranker over HTTP, with a page at /. Each flag is also read from the environment: --max-texts from "
        "RANKER_MAX_TEXTS, and so on; a flag wins.",
        "python -m ranker.serve --port 8000\n"
        "  RANKER_HOST=0.0.0.0 RANKER_API_KEYS=sha256:... python -m ranker.serve",
    )
    add_flags(arguments)
    settings = read_settings(vars(arguments.parse_args(argv)), os.environ)

    def load() -> SkillRanker:
        from ranker.pipeline import SkillRanker

        return SkillRanker.load(settings.config)

    if settings.host not in {"127.0.0.1", "localhost", "::1"} and not settings.api_keys:
        note(f"warning: listening on {settings.host} without api_keys; whoever reaches it may use it")
    serve(settings, load)
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
