"""One part: read its rows, ask the ranker, write one file. Every engine runs this and nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from ranker.batch.folders import open_folder
from ranker.batch.plan import Part, content, fingerprint
from ranker.batch.rows import Columns, Row, read
from ranker.core.errors import ArgumentError, InputError, RankerError, missing_extra

if TYPE_CHECKING:
    from ranker.core.types import Ranking, Tagging

CHUNK = 32  # rows given to the ranker at a time; an answer does not depend on it
MODES = ("rank", "tag")
FORMATS = ("jsonl", "parquet")

Advance = Callable[[int], object]


class Tags(Protocol):
    """What a batch needs of a ranker."""

    def rank(self, texts: Sequence[object], *, top_k: int | None, min_probability: float | None) -> list[Ranking]:
        """Return one ranking per text."""

    def tag(self, documents: Sequence[object], *, top_k: int | None, min_probability: float | None) -> list[Tagging]:
        """Return one tagging per document."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides the output of a run, in plain values, so that any process can take it up.

    Attributes
    ----------
    source, out : str
        Folder of the input files, and of the output: paths or URLs.
    system : str
        Config name or path.
    mode : {"rank", "tag"}
        Whether a text is one statement or a document of many.
    format : {"jsonl", "parquet"}
    columns : Columns
    top_k : int
    min_probability : float or None
    """

    source: str
    out: str
    system: str
    mode: str
    format: str
    columns: Columns
    top_k: int
    min_probability: float | None

    def load(self) -> Tags:
        """Load the ranker."""
        from ranker.pipeline import SkillRanker

        return SkillRanker.load(self.system)

    def output(self, part: Part) -> str:
        """Return the name of a part's file."""
        return f"{part.name}.{self.format}"


def part_rows(job: Job, part: Part) -> list[Row]:
    """Read the rows of a part again.

    Raises
    ------
    InputError
        If they are not the rows that were planned.
    """
    stream = read(open_folder(job.source), part.file, job.columns, offset=part.offset, line=part.line)
    rows = list(islice(stream, part.rows))
    if fingerprint(content(rows)) != part.fingerprint:
        raise InputError(f"{part.file} was changed while it was tagged; start again with a new --out")
    return rows


def answers(ask: Callable[[Sequence[str]], Sequence[Any]], texts: Sequence[str]) -> list[Any]:
    """Ask for all texts at once; where that fails, one by one, with the error in place of the answer."""
    try:
        return list(ask(texts))
    except ArgumentError:
        raise  # would be the same for every text
    except Exception as error:  # noqa: BLE001  whatever a row does to the ranker, it must not cost the others
        if len(texts) == 1:
            return [error]
        return [answer for text in texts for answer in answers(ask, [text])]


def tag_part(job: Job, ranker: Tags, part: Part, advance: Advance = lambda rows: None) -> None:
    """Read, tag and write a part.

    Bad rows go to "_bad/<part>.jsonl", which is written first: once the part's own file is there, all of it is.

    Parameters
    ----------
    job, ranker, part
        What to do, with what, to which rows.
    advance : callable, optional
        Told the number of rows after each chunk.

    Raises
    ------
    RankerError
        If the input changed, the output cannot be written, or the ranker failed for each of several rows: then the rows
        are not to blame.
    """
    rows = part_rows(job, part)
    for i in part.repeats:
        rows[i] = rows[i]._replace(reason=f"the id {rows[i].id!r} stands in an earlier row")
    good = [row for row in rows if not row.reason]
    bad = [row for row in rows if row.reason]
    advance(len(bad))
    ask_ranker = ranker.rank if job.mode == "rank" else ranker.tag
    records: list[dict[str, Any]] = []
    failures: list[Exception] = []
    for start in range(0, len(good), CHUNK):
        chunk = good[start : start + CHUNK]
        found = answers(
            lambda texts: ask_ranker(texts, top_k=job.top_k, min_probability=job.min_probability),
            [row.text for row in chunk],
        )
        for row, answer in zip(chunk, found, strict=True):
            if isinstance(answer, Exception):
                failures.append(answer)
                bad.append(row._replace(reason=f"the ranker failed: {type(answer).__name__}: {answer}"))
            else:
                records.append(record(row.id, answer.to_dict()))
        advance(len(chunk))
    if len(failures) == len(good) > 1:
        error = failures[0]
        raise RankerError(f"the ranker failed for every row of {part.name}: {type(error).__name__}: {error}") from error
    out = open_folder(job.out)
    if bad:
        bad.sort(key=lambda row: row.line)
        lines = ({"file": part.file, "line": row.line, "id": row.id, "reason": row.reason} for row in bad)
        out.write(f"_bad/{part.name}.jsonl", jsonl(lines))
    out.write(job.output(part), jsonl(records) if job.format == "jsonl" else parquet(records, job.mode))


def record(key: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written of an answer: the id in place of the text."""
    return {"id": key} | {name: value for name, value in answer.items() if name not in {"query", "document"}}


def jsonl(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Return records as JSON Lines."""
    lines = (json.dumps(value, ensure_ascii=False) + "\n" for value in records)
    return "".join(lines).encode("utf-8", "replace")  # half a surrogate pair has no bytes


def parquet(records: Iterable[Mapping[str, Any]], mode: str) -> bytes:
    """Return records as a Parquet file, evidence as JSON text; every part of a run has the same schema.

    Raises
    ------
    PrerequisiteError
        If pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing_extra("pyarrow", "scale") from error
    spans = pa.list_(pa.struct({"start": pa.int32(), "end": pa.int32()}))
    skill = {
        "uri": pa.string(),
        "label": pa.string(),
        "score": pa.float32(),
        "probability": pa.float32(),
        "evidence": pa.string(),
    }
    document = mode == "tag"
    skills = pa.list_(pa.struct(skill | ({"spans": spans} if document else {})))
    fields = {"id": pa.string(), "skills": skills} | ({"dropped": spans} if document else {}) | {"reason": pa.string()}
    rows = [
        {
            **value,
            "skills": [
                {**found, "evidence": json.dumps(found["evidence"], ensure_ascii=False)} for found in value["skills"]
            ],
        }
        for value in records
    ]
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields)), stream, compression="zstd")
    return stream.getvalue()
