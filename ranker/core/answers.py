"""Every answer a hosted model gave, in SQLite, so that a stopped run loses nothing and a second run costs nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import TracebackType
from typing import cast

from ranker.core.errors import InputError, ResourceError

Answer = int | str
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    model TEXT NOT NULL, prompt TEXT NOT NULL, pair TEXT NOT NULL, answer NOT NULL,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    PRIMARY KEY (model, prompt, pair)
) WITHOUT ROWID
"""


class AnswerCache:
    """Answers by (model, prompt version, pair). Only answers are kept: a failure is tried again by the next run.

    Each answer is committed at once. With a write-ahead log that costs no flush to disk, and a killed process loses
    nothing that was committed (a power cut may lose the last moments, never the file). One thread at a time.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file.

        Raises
        ------
        ResourceError
            If its folder cannot be written to.
        InputError
            If the file is no SQLite data base.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute(_TABLE)
        except sqlite3.OperationalError as error:
            raise ResourceError(f"cannot open the cache {path}: {error}; choose a writable place") from error
        except sqlite3.DatabaseError as error:
            raise InputError(f"{path} is not a cache of answers ({error}); move it away") from error
        except OSError as error:
            raise ResourceError(f"cannot make {path.parent}: {error.strerror or error}") from error

    def get(self, model: str, prompt: str, pair: str) -> Answer | None:
        """Return the answer, or None where there is none."""
        row = self._connection.execute(
            "SELECT answer FROM answers WHERE model = ? AND prompt = ? AND pair = ?", (model, prompt, pair)
        ).fetchone()
        return None if row is None else cast(Answer, row[0])

    def put(self, model: str, prompt: str, pair: str, answer: Answer, tokens: tuple[int, int] = (0, 0)) -> Answer:
        """Keep an answer and return the one that counts: the first ever given, also where two asked at once."""
        cursor = self._connection.execute(
            "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?)", (model, prompt, pair, answer, *tokens)
        )
        if cursor.rowcount == 1:
            return answer
        first = self.get(model, prompt, pair)
        return answer if first is None else first

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM answers").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> AnswerCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
