"""Logs as JSON lines. What people sent is never in them, unless the settings ask for it."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

LOGGER = logging.getLogger("ranker.service")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and what the call gave as `extra={"fields": {...}}`.

    Parameters
    ----------
    texts : bool
        Whether an exception's message is logged. It may quote the text that the exception arose from.
    """

    def __init__(self, *, texts: bool) -> None:
        super().__init__()
        self._texts = texts

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        value: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            value["exception"] = type(error).__name__
            if self._texts:
                value["exception_message"] = str(error)
            frames = traceback.extract_tb(error.__traceback__)
            value["traceback"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(value, ensure_ascii=True, default=str)


def set_up(*, texts: bool) -> None:
    """Send this project's and the server's logs to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(texts=texts))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    LOGGER.setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.INFO)
