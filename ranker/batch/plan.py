"""The plan: one pass over the input that cuts it into parts, finds repeated ids and takes a fingerprint."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from ranker.batch.folders import locate, open_folder
from ranker.batch.rows import KINDS, Columns, Row, kind, read
from ranker.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one input file, and the name of its output.

    Attributes
    ----------
    name : str
        "part-FILE-FIRST-LAST": number of the file, first and last row in it, from 0.
    file : str
    offset, line : int
        Place of the first row.
    rows : int
    repeats : tuple of int
        Which of its rows have an id that an earlier row has.
    fingerprint : str
        Of its rows as they were read.
    """

    name: str
    file: str
    offset: int
    line: int
    rows: int
    repeats: tuple[int, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole input: its parts, its fingerprint over all rows, how many there are, how many can be tagged."""

    parts: tuple[Part, ...]
    fingerprint: str
    rows: int
    good: int


class _Seen:
    """Ids seen so far, on disk as soon as they are many: a hash of 16 bytes each in a private temporary database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("CREATE TABLE seen (id BLOB PRIMARY KEY) WITHOUT ROWID")

    def new(self, key: str) -> bool:
        """Remember an id; tell whether it is new."""
        hashed = hashlib.blake2b(key.encode(), digest_size=16).digest()
        return self.connection.execute("INSERT OR IGNORE INTO seen VALUES (?)", (hashed,)).rowcount == 1


def input_files(source: str) -> tuple[str, list[str]]:
    """Return the folder and the files in it that a path or URL stands for.

    Raises
    ------
    ResourceError
        If there is neither a file nor a folder.
    InputError
        If a file is of no known kind or a folder holds none of a known kind.
    """
    folder, name = locate(source)
    # As everywhere with folders of data, what begins with "_" is about the data.
    names = [name] if name else [name for name in open_folder(folder).names() if "/_" not in f"/{name}"]
    known = [name for name in names if kind(name)]
    if not known:
        raise InputError(f"{source}: no file of a kind that can be read: {', '.join(KINDS)}; text files also with .gz")
    return folder, known


def content(rows: Iterable[Row]) -> bytes:
    """Return what fingerprints are taken of: line, id, text and reason of each row."""
    return b"".join(repr(row[1:]).encode("utf-8", "backslashreplace") for row in rows)


def fingerprint(data: bytes) -> str:
    """Return the first 16 hex digits of the SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def make_plan(source: str, columns: Columns, part_rows: int) -> Plan:
    """Read the input once and plan its parts.

    Parameters
    ----------
    source : str
        A file, a folder or a URL of either.
    columns : Columns
        Where id and text stand.
    part_rows : int
        Rows of a part, at most; a part lies within one file. This many rows are held in memory.

    Raises
    ------
    RankerError
        See `input_files` and `ranker.batch.rows.read`.
    InputError
        If there are rows and not one can be tagged; the first is named with its reason.
    """
    place, files = input_files(source)
    folder = open_folder(place)
    whole = hashlib.sha256()
    parts: list[Part] = []
    good = 0
    first_bad = ""
    with closing(sqlite3.connect("", isolation_level=None)) as connection:
        seen = _Seen(connection)
        connection.execute("BEGIN")
        for number, file in enumerate(files):
            whole.update(content([Row(0, 0, file, "")]))
            for start, rows in _stretches(read(folder, file, columns), part_rows):
                data = content(rows)
                whole.update(data)
                repeats = tuple(i for i, row in enumerate(rows) if not row.reason and not seen.new(row.id))
                bad = next((row for row in rows if row.reason), None)
                if bad and not first_bad:
                    first_bad = f"{file} line {bad.line}: {bad.reason}"
                good += sum(not row.reason for row in rows) - len(repeats)
                parts.append(
                    Part(
                        name=f"part-{number:05d}-{start:09d}-{start + len(rows) - 1:09d}",
                        file=file,
                        offset=rows[0].offset,
                        line=rows[0].line,
                        rows=len(rows),
                        repeats=repeats,
                        fingerprint=fingerprint(data),
                    )
                )
    if parts and not good:
        raise InputError(f"{source}: not one row can be tagged; {first_bad}; see --id-column and --text-column")
    return Plan(tuple(parts), whole.hexdigest()[:16], sum(part.rows for part in parts), good)


def _stretches(rows: Iterator[Row], size: int) -> Iterator[tuple[int, Sequence[Row]]]:
    """Yield number of the first row and rows, `size` at a time."""
    start = 0
    while chunk := list(islice(rows, size)):
        yield start, chunk
        start += len(chunk)
