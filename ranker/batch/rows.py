"""Readers: JSON Lines, CSV and Parquet as one stream of rows, each with its place and, if it is bad, the reason.

A row's place lets reading begin again there, so that a part can be read without what goes before it.
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from ranker.batch.folders import Folder, reading
from ranker.core.errors import InputError, RankerError, missing_extra

MAX_ROW = 1 << 20  # bytes; a longer row is a bad one, so that no file can fill the memory
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # what decoding leaves of such bytes
KINDS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


class Columns(NamedTuple):
    """Names of the two columns that are read."""

    id: str
    text: str


class Row(NamedTuple):
    """One row of the input.

    Attributes
    ----------
    offset : int
        Where it begins: bytes of the unpacked text, for Parquet rows.
    line : int
        The same for people: its first line, for Parquet its row, from 1.
    id, text : str
        "" where `reason` is given.
    reason : str
        Why it cannot be tagged; "" where it can.
    """

    offset: int
    line: int
    id: str
    text: str
    reason: str = ""


def kind(name: str) -> str:
    """Return the ending that says how a file is read, "" for any other file.

    Examples
    --------
    >>> kind("a/b.jsonl.gz"), kind("b.parquet"), kind("readme.txt")
    ('.jsonl', '.parquet', '')
    """
    ending = PurePosixPath(name.removesuffix(".gz")).suffix.lower()
    return ending if ending in KINDS and not (ending == ".parquet" and name.endswith(".gz")) else ""


def read(folder: Folder, name: str, columns: Columns, *, offset: int = 0, line: int = 1) -> Iterator[Row]:
    """Yield the rows of a file, from a place on.

    Parameters
    ----------
    folder, name
        The file.
    columns : Columns
        Where id and text stand.
    offset, line : int
        Place of the first row wanted, as an earlier `Row` gave it; default the beginning.

    Raises
    ------
    InputError
        If a column is not in the file's header or schema, or the file is damaged.
    PrerequisiteError
        For Parquet, if pyarrow is not installed.
    """
    with reading(folder, name) as stream:
        reader = {".parquet": _parquet, ".csv": _csv, ".tsv": _csv}.get(kind(name), _jsonl)
        try:
            for row in reader(stream, columns, offset, line):
                line = row.line
                yield row
        except RankerError as error:
            raise type(error)(f"{name}: {error}") from error
        except (OSError, EOFError, ValueError, zlib.error) as error:  # Arrow's errors are OSError and ValueError
            raise InputError(f"{name} cannot be read beyond line {line}: {error}; repair it or take it out") from error


def _row(offset: int, line: int, key: Any, text: Any) -> Row:
    """Judge the two values of a row."""
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if key is None or key == "":
        return Row(offset, line, "", "", "no id")
    if not isinstance(key, str):
        return Row(offset, line, "", "", f"the id is no string or whole number but {type(key).__name__}")
    if not isinstance(text, str | None):
        return Row(offset, line, "", "", f"the text is no string but {type(text).__name__}")
    if text is None or not text.strip():
        return Row(offset, line, "", "", "no text")
    try:
        key.encode()
    except UnicodeEncodeError:
        return Row(offset, line, "", "", "the id is not valid Unicode")
    return Row(offset, line, key, text)


def _lines(stream: BinaryIO, offset: int, line: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, number and bytes of each line; of a line longer than `MAX_ROW`, the start."""
    stream.seek(offset)
    while start := stream.readline(MAX_ROW):
        end = start
        while end and not end.endswith(b"\n"):
            end = stream.readline(MAX_ROW)
        yield offset, line, start
        offset, line = stream.tell(), line + 1


def _jsonl(stream: BinaryIO, columns: Columns, offset: int, line: int) -> Iterator[Row]:
    for at, number, data in _lines(stream, offset, line):
        if not data.strip():
            continue
        if len(data) == MAX_ROW and not data.endswith(b"\n"):
            yield Row(at, number, "", "", f"the row is longer than {MAX_ROW} bytes")
            continue
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            yield Row(at, number, "", "", f"broken JSON: {error}")
            continue
        if not isinstance(value, dict):
            yield Row(at, number, "", "", "not a JSON object")
        elif missing := [repr(name) for name in columns if name not in value]:
            there = ", ".join(value)[:200] or "nothing"
            yield Row(at, number, "", "", f"no {' and no '.join(missing)}; the object has: {there}")
        else:
            yield _row(at, number, value[columns.id], value[columns.text])


def _csv(stream: BinaryIO, columns: Columns, offset: int, line: int) -> Iterator[Row]:
    """Read CSV whose header says which of comma, semicolon and tab separates; quoted fields may hold line ends."""
    head = next(_lines(stream, 0, 1), (0, 1, b""))[2]
    if not head:
        return
    text = head.decode("utf-8-sig", "replace")
    headers = {sign: next(csv.reader([text], delimiter=sign)) for sign in ",;\t"}
    sign = max(headers, key=lambda sign: (set(columns) <= set(headers[sign]), len(headers[sign])))
    header = headers[sign]
    where = _indices(header, columns)
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW))  # one for all readers, and others change it too
    place = begin = second = (offset, line) if offset else (stream.tell(), 2)

    def fed() -> Iterator[str]:
        nonlocal place, second
        for _, number, data in _lines(stream, *place):
            place = (stream.tell(), number + 1)
            if number == begin[1]:
                second = place
            if place[0] - begin[0] > MAX_ROW:
                raise csv.Error(f"the row is longer than {MAX_ROW} bytes")
            yield data.decode("utf-8", "surrogateescape")

    reader = csv.reader(fed(), delimiter=sign, strict=True)
    while True:
        begin = place
        try:
            fields = next(reader, None)
        except csv.Error as error:
            yield Row(*begin, "", "", f"broken CSV: {error}")
            place = second  # the next line may be a good row: a quote that is never closed costs its own row only
            reader = csv.reader(fed(), delimiter=sign, strict=True)
            continue
        if fields is None:
            return
        if not fields:
            continue
        if len(fields) != len(header):
            yield Row(*begin, "", "", f"{len(fields)} fields, the header has {len(header)}")
        elif _NO_UTF8.search(fields[where.id] + fields[where.text]):
            yield Row(*begin, "", "", "not UTF-8")
        else:
            yield _row(*begin, fields[where.id], fields[where.text])


class _Where(NamedTuple):
    id: int
    text: int


def _indices(header: Sequence[str], columns: Columns) -> _Where:
    """Return where the columns stand in a header or schema."""
    missing = [repr(name) for name in columns if name not in header]
    if missing:
        there = ", ".join(header)[:500]
        raise InputError(f"no column {' and '.join(missing)}; there are: {there}; see --id-column and --text-column")
    return _Where(header.index(columns.id), header.index(columns.text))


def _parquet(stream: BinaryIO, columns: Columns, offset: int, _line: int) -> Iterator[Row]:
    """Read two columns of a Parquet file; row groups before the offset are not touched."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing_extra("pyarrow", "scale") from error
    file = pq.ParquetFile(stream)
    names = file.schema_arrow.names
    _indices(names, columns)
    at = 0
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if at + size <= offset:
            at += size
            continue
        for batch in file.iter_batches(batch_size=256, row_groups=[group], columns=list(dict.fromkeys(columns))):
            cells = (batch.column(name).to_pylist() for name in columns)
            for key, text in zip(*cells, strict=True):
                if at >= offset:
                    yield _row(at, at + 1, key, text)
                at += 1
