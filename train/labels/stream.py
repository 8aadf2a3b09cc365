"""What is to be graded: texts with people's marks, and for each the skills that are worth a judge's time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from lanes.registry import build_lanes
from ranker.core.config import SystemConfig
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.order import top_rows
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise
from ranker.core.types import Float32, Int32
from train.labels.gates import Pair

DENSE = ("dense", "tuned", "context", "span")  # families whose lanes embed texts
CHUNK = 32  # queries scored at a time, to bound memory; no result depends on it


class Scorer(Protocol):
    """Whatever scores all skills for texts: a lane that is fitted."""

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills], higher is better."""


@dataclass(frozen=True, slots=True)
class Query:
    """A text to be graded, its id, and the URIs that people marked for it."""

    id: str
    text: str
    gold: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stream:
    """Texts that can be graded, and one line for each row that cannot."""

    queries: tuple[Query, ...]
    problems: tuple[str, ...] = ()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror or error}") from error


def read_stream(path: Path, gold: Path | None = None) -> Stream:
    """Read the texts to be graded.

    Parameters
    ----------
    path : Path
        A folder in BEIR layout (its `queries.jsonl`), a `.jsonl` file with rows {"_id", "text"} and, where people
        marked skills, "skills": [URI, ...]; or any other file with one text on a line, whose id is the line's number.
    gold : Path, optional
        TSV with a header and the columns query-id, corpus-id and, possibly, score: 1 or 4 marks a skill, 0 does not.

    Raises
    ------
    ResourceError
        If a file cannot be read.
    InputError
        If it is not UTF-8, has no usable text, or the gold is not of yes and no.
    """
    path = path / "queries.jsonl" if path.is_dir() else path
    rows = _json_rows(path) if path.suffix == ".jsonl" else _text_rows(path)
    queries: dict[str, Query] = {}
    problems: list[str] = []
    for place, row in rows:
        query = row if isinstance(row, str) else _query(row)
        if isinstance(query, str):
            problems.append(f"{place}: {query}")
        elif query.id in queries:
            problems.append(f"{place}: query id {query.id!r} stands twice; the first is kept")
        else:
            queries[query.id] = query
    if not queries:
        raise InputError("\n    ".join([f"{path} holds no text that can be graded", *problems[:5]]))
    if gold is not None:
        for query_id, uris in _read_gold(gold).items():
            known = queries.get(query_id)
            if known is None:
                problems.append(f"{gold}: query {query_id!r} is not among the queries; its gold is left out")
            else:
                queries[query_id] = Query(known.id, known.text, tuple(dict.fromkeys((*known.gold, *uris))))
    return Stream(tuple(queries.values()), tuple(problems))


def _text_rows(path: Path) -> Iterator[tuple[str, dict[str, object] | str]]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            yield f"{path}, line {number}", {"_id": number, "text": line.strip()}


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, object] | str]]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield f"{path}, line {number}", f"not JSON ({error})"
            else:
                yield f"{path}, line {number}", row if isinstance(row, dict) else "not a JSON object"


def _query(row: Mapping[str, object]) -> Query | str:
    """Return the query of a row, or what is wrong with it."""
    name, text, skills = row.get("_id"), row.get("text"), row.get("skills", [])
    # A tab or line break would tear the rows of the qrels.
    if isinstance(name, bool) or not isinstance(name, str | int) or not str(name).strip():
        return "no query id under '_id'"
    if set(str(name)) & set("\t\r\n"):
        return f"query id {name!r} holds a tab or a line break"
    if not isinstance(text, str) or not any(character.isalnum() for character in normalise(text)):
        return f"query {name!r} has no text with a letter or digit under 'text'"
    if not isinstance(skills, list) or not all(isinstance(uri, str) and uri for uri in skills):
        return f"query {name!r}: 'skills' is not a list of URIs"
    return Query(str(name).strip(), text, tuple(dict.fromkeys(skills)))


def _read_gold(path: Path) -> dict[str, list[str]]:
    rows = csv.DictReader(_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = {"query-id", "corpus-id"} - set(rows.fieldnames or ())
    if missing:
        raise InputError(f"{path}, line 1: column missing: {', '.join(sorted(missing))}; found {rows.fieldnames}")
    found: dict[str, list[str]] = {}
    for row in rows:
        score = (row.get("score") or "1").strip()
        query, uri = (row["query-id"] or "").strip(), (row["corpus-id"] or "").strip()
        if score not in {"0", "1", "4"} or not query or not uri:
            raise InputError(
                f"{path}, line {rows.line_num}: gold is yes (1 or 4) or no (0) for a query and a skill; "
                f"found {query!r}, {uri!r}, {score!r}; leave rows of other grades out"
            )
        if score != "0":
            found.setdefault(query, []).append(uri)
    return found


def prefilter_lane(system: SystemConfig, taxonomy: Taxonomy, lane: str | None = None) -> tuple[str, Scorer]:
    """Build and fit one lane of a system, the dense one where none is named.

    Returns
    -------
    name, lane
        Ready to score.

    Raises
    ------
    ArgumentError
        If there is no such lane, no dense one, or it is derived from another.
    """
    fit = [spec for spec in system.lanes if "base" not in spec.options]
    chosen = [spec for spec in fit if (spec.name == lane if lane else spec.family in DENSE)]
    if not chosen:
        wanted = f"lane {lane!r}" if lane else "dense lane"
        raise ArgumentError(f"{system.name} has no {wanted}; lanes that can be used: {', '.join(s.name for s in fit)}")
    name = chosen[0].name
    made = build_lanes(chosen[:1])[name]
    made.fit(taxonomy)
    return name, made


def candidates(scorer: Scorer, taxonomy: Taxonomy, queries: Sequence[Query], depth: int) -> list[Int32]:
    """Return the skills of each query that are to be judged.

    Parameters
    ----------
    scorer : Scorer
        Sees normalised texts.
    depth : int
        How many of the best skills; cut to the size of the taxonomy.

    Returns
    -------
    list of int32[n_candidates]
        Taxonomy rows: the best, best first, then those of the query's gold that are not among them.
    """
    found: list[Int32] = []
    for start in range(0, len(queries), CHUNK):
        chunk = queries[start : start + CHUNK]
        scores = np.asarray(scorer.score([normalise(query.text) for query in chunk]), dtype=np.float32)
        for query, best in zip(chunk, top_rows(scores, depth), strict=True):
            there = set(map(int, best))
            gold = [taxonomy.index[uri] for uri in query.gold if uri in taxonomy.index]
            found.append(np.append(best, [row for row in gold if row not in there]).astype(np.int32))
    return found


def pairs(taxonomy: Taxonomy, queries: Sequence[Query], pool: Sequence[Int32]) -> Iterator[Pair]:
    """Yield what a judge is to see: each query with each of its candidates that is not gold, query by query."""
    for number, (query, rows) in enumerate(zip(queries, pool, strict=True)):
        gold = {taxonomy.index[uri] for uri in query.gold if uri in taxonomy.index}
        labels = "; ".join(taxonomy.label[row] for row in sorted(gold))
        text = normalise(query.text, strip_bullets=False)
        for position, row in enumerate(map(int, rows)):
            if row not in gold:
                yield Pair(text, taxonomy.label[row], taxonomy.description[row], labels, (number, position))
