"""The silver labels: 6,705 texts about work over many sectors, graded by a language model that read every pair.

They only ever train: no figure is measured on them. Texts are our own, or alternative labels of ESCO; where a text is a
sentence of a public data set, the file holds its id there, and the text is looked up in a folder of sentences.

`python -m train.labels.silver --sentences DIR --out build/silver` writes them as one task in BEIR layout.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from ranker.core.artifacts import atomic_path
from ranker.core.cli import parser, run, say
from ranker.core.errors import ResourceError
from ranker.core.wheels import URI, packaged_labels


def _read(name: str) -> list[str]:
    data = (files("train.labels") / "data" / name).read_bytes()
    return gzip.decompress(data).decode().splitlines()


def read_grades(name: str) -> list[tuple[str, str, int]]:
    """Return (query id, skill URI, grade) of a shipped file, in which a skill is its row among the packaged labels."""
    uris = [URI + key for key in packaged_labels()]
    rows = (line.split("\t") for line in _read(name)[1:])
    return [(query, uris[int(row)], int(grade)) for query, row, grade in rows]


def read_sentences(folder: Path) -> dict[str, str]:
    """Return text by id of every `*.jsonl` file of a folder (rows with `_id` and `text`).

    Raises
    ------
    ResourceError
        If the folder holds no such file.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise ResourceError(f"no .jsonl file of sentences in {folder}; leave --sentences out to do without them")
    rows = (json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return {row["_id"]: row["text"] for row in rows}


def write_silver(out: Path, sentences: Path | None = None) -> tuple[int, int]:
    """Write the silver labels as a task in BEIR layout.

    Parameters
    ----------
    out : Path
        Gets `queries.jsonl` and `qrels.tsv` (zeros kept).
    sentences : Path, optional
        Folder of the public sentences; without it the texts that are references are left out.

    Returns
    -------
    written, left_out : int
        Number of queries.
    """
    known = {} if sentences is None else read_sentences(sentences)
    texts: dict[str, str] = {}
    left_out = 0
    for row in map(json.loads, _read("silver_queries.jsonl.gz")):
        text = row.get("text") or known.get(row.get("sentence", ""))
        if text:
            texts[row["_id"]] = text
        else:
            left_out += 1
    with atomic_path(out / "queries.jsonl") as path:
        lines = (json.dumps({"_id": key, "text": text}, ensure_ascii=False) for key, text in texts.items())
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with atomic_path(out / "qrels.tsv") as path:
        grades = read_grades("silver_qrels.tsv.gz")
        rows = (f"{query}\t{skill}\t{grade}" for query, skill, grade in grades if query in texts)
        path.write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n", encoding="utf-8")
    return len(texts), left_out


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    made = parser(
        "train.labels.silver",
        "Write the silver training labels as one task in BEIR layout.",
        "python -m train.labels.silver --sentences sentences --out build/silver",
    )
    made.add_argument("--sentences", type=Path, help="folder of the public sentences that some rows refer to")
    made.add_argument("--out", type=Path, default=Path("build/silver"), help="default build/silver")
    return made.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = _parse(argv)
    written, left_out = write_silver(arguments.out, arguments.sentences)
    say(f"{written} queries written to {arguments.out}, {left_out} left out for want of their sentence")
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
