"""Labels as a folder in BEIR layout: queries, corpus, qrels with zeros, what is unjudged, and a manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranker.core.artifacts import atomic_path, sha256_file, write_json
from ranker.core.errors import ArgumentError
from ranker.core.metrics import GRADES
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Int32
from train.labels.cascade import Outcome
from train.labels.gates import Pair
from train.labels.stream import Query

FORMAT = 1
MANIFEST = "manifest.json"
GOLD_GRADE = 4
UNJUDGED = -1


@dataclass
class Labels:
    """The grades of a stream.

    Attributes
    ----------
    queries : sequence of Query
        n of them.
    pool : sequence of int32[n_candidates]
        Taxonomy rows of each query.
    grades : list of int8[n_candidates]
        Grades of each query; `UNJUDGED` where there is none.
    reasons : dict
        By query number and position: the gate that got no answer, and why.
    """

    queries: Sequence[Query]
    pool: Sequence[Int32]
    grades: list[NDArray[np.int8]]
    reasons: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def begin(cls, taxonomy: Taxonomy, queries: Sequence[Query], pool: Sequence[Int32]) -> Labels:
        """Return labels where gold has grade 4 and nothing else has a grade."""
        grades = []
        for query, rows in zip(queries, pool, strict=True):
            gold = [taxonomy.index[uri] for uri in query.gold if uri in taxonomy.index]
            grades.append(np.where(np.isin(rows, gold), GOLD_GRADE, UNJUDGED).astype(np.int8))
        return cls(queries, pool, grades)

    def keep(self, pair: Pair, outcome: Outcome) -> None:
        """Take in what became of a pair."""
        number, position = pair.place
        if outcome.grade is None:
            self.reasons[pair.place] = (outcome.gate, outcome.reason)
        else:
            self.grades[number][position] = outcome.grade

    def counts(self) -> dict[str, int]:
        """Return the number of pairs by grade, gold among the 4, and of those without one."""
        values = np.concatenate(self.grades)
        by_grade = {str(grade): int((values == grade).sum()) for grade in sorted(GRADES, reverse=True)}
        return {**by_grade, "unjudged": int((values == UNJUDGED).sum())}


def claim(folder: Path, identity: Mapping[str, Any]) -> None:
    """Write the manifest of a run that begins, so that no other run writes over its labels.

    Parameters
    ----------
    identity : mapping
        Everything the labels depend on.

    Raises
    ------
    ArgumentError
        If the folder holds labels that depend on something else; the message names what differs.
    """
    path = folder / MANIFEST
    if path.exists():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))["identity"]
            differing = [key for key in {**before, **identity} if before.get(key) != identity.get(key)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArgumentError(f"{path} is not a manifest of labels; choose another --out") from error
        if differing:
            changes = "; ".join(f"{key}: {before.get(key)!r} there, {identity.get(key)!r} now" for key in differing)
            raise ArgumentError(
                f"{folder} holds the labels of another run ({changes}); choose another --out, and share the answers "
                "with --cache"
            )
        return
    write_json(path, {"format": FORMAT, "complete": False, "identity": dict(identity)})


def write_labels(
    folder: Path, labels: Labels, taxonomy: Taxonomy, identity: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Write the labels.

    Parameters
    ----------
    folder : Path
        Gets queries.jsonl, corpus.jsonl, qrels.tsv (all grades, zeros too; a pair without a row is unjudged),
        unjudged.tsv (gate and reason) and, last, manifest.json.
    identity : mapping
        As given to `claim`.
    facts : mapping
        What else the manifest is to say about the run.
    """
    queries = labels.queries
    lines: dict[str, Iterable[str]] = {
        "queries.jsonl": (_json({"_id": query.id, "text": query.text}) for query in queries),
        "corpus.jsonl": (
            _json({"_id": uri, "title": label, "text": text})
            for uri, label, text in zip(taxonomy.uri, taxonomy.label, taxonomy.description, strict=True)
        ),
        "qrels.tsv": _qrels(labels, taxonomy),
        "unjudged.tsv": _unjudged(labels, taxonomy),
    }
    for name, rows in lines.items():
        with atomic_path(folder / name) as path, path.open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(f"{row}\n" for row in rows)
    counts = labels.counts()
    write_json(
        folder / MANIFEST,
        {
            "format": FORMAT,
            "complete": counts["unjudged"] == 0,
            "identity": dict(identity),
            "pairs": counts,
            **facts,
            "sha256": {name: sha256_file(folder / name) for name in lines},
        },
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _qrels(labels: Labels, taxonomy: Taxonomy) -> Iterable[str]:
    yield "query-id\tcorpus-id\tscore"
    for query, rows, grades in zip(labels.queries, labels.pool, labels.grades, strict=True):
        for row, grade in zip(rows, grades, strict=True):
            if grade != UNJUDGED:
                yield f"{query.id}\t{taxonomy.uri[row]}\t{grade}"
        # Gold that the taxonomy lacks cannot be found, and the ideal ranking must not become easier for that.
        for uri in query.gold:
            if uri not in taxonomy.index:
                yield f"{query.id}\t{uri}\t{GOLD_GRADE}"


def _unjudged(labels: Labels, taxonomy: Taxonomy) -> Iterable[str]:
    yield "query-id\tcorpus-id\tgate\treason"
    for (number, position), (gate, reason) in sorted(labels.reasons.items()):
        row = labels.pool[number][position]
        yield f"{labels.queries[number].id}\t{taxonomy.uri[row]}\t{gate}\t{' '.join(reason.split())}"
