"""Tag files of texts with skills, each row exactly once: `python -m ranker.tag`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from ranker.batch.folders import is_url
from ranker.batch.part import FORMATS, MODES, Advance
from ranker.batch.rows import Columns
from ranker.batch.run import ENGINES, tag_rows
from ranker.core.cli import emit, note, parser, positive, run, say
from ranker.core.config import CONFIG_DIR
from ranker.core.errors import EXIT_OK, EXIT_PARTIAL, ArgumentError

EXAMPLE = """python -m ranker.tag vacancies.jsonl --out tagged
  python -m ranker.tag exports/ --out s3://bucket/tagged --format parquet --mode tag --workers 8

exit codes:
  0 every row was tagged, 7 some rows were not (see OUT/_bad), 2 bad arguments, or OUT was begun with others,
  3 a package is missing, 4 a file or model is missing, 5 the input cannot be read, 6 the run was stopped
  by an error. After 6, or when it was killed, the same command goes on where it stopped."""


@contextmanager
def bar(rows: int, before: int) -> Iterator[Advance]:
    """Show rows done, rows per second and the time left on standard error; a line now and then where it is a file."""
    every = 0.5 if sys.stderr.isatty() else 30.0
    with tqdm(total=rows, initial=before, unit=" rows", mininterval=every, maxinterval=2 * every) as shown:
        yield shown.update


def absolute(place: str) -> str:
    """Return a path that is valid in any process of this machine; a URL as it is."""
    return place if is_url(place) else str(Path(place).absolute())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser("ranker.tag", "Tag the rows of JSON Lines, CSV or Parquet files with ESCO skills.", EXAMPLE)
    add = arguments.add_argument
    add("input", metavar="IN", help="a file, a folder or a URL of either; .jsonl, .csv, .tsv (all also .gz), .parquet")
    add("--out", required=True, metavar="OUT", help="folder or URL for the answers; a run cut short is taken up again")
    add("--config", default="embedded", help="name of a system in configs/ or path of a YAML file (default: embedded)")
    add("--mode", choices=MODES, default="rank", help="rank: a text is one statement; tag: it is a whole document")
    add("--format", choices=FORMATS, default="jsonl", help="of the answers (default: jsonl)")
    add("--text-column", default="text", metavar="NAME", help="default: text")
    add("--id-column", default="id", metavar="NAME", help="default: id")
    add("--top-k", type=positive, default=20, help="skills per row, at most (default: 20)")
    add("--min-probability", type=float, metavar="P", help="leave out skills below this probability")
    add("--engine", choices=ENGINES, default="local", help="this machine, or a Ray cluster (default: local)")
    add("--workers", type=positive, default=1, metavar="N", help="processes or Ray actors (default: 1)")
    add("--part-rows", type=positive, default=500, metavar="N", help="rows per file of answers (default: 500)")
    add("--json", action="store_true", help="end with one JSON object")
    given = arguments.parse_args(argv)
    if given.min_probability is not None and not 0 <= given.min_probability <= 1:
        raise ArgumentError(f"--min-probability {given.min_probability} is not between 0 and 1")
    system = given.config if (CONFIG_DIR / f"{given.config}.yaml").is_file() else absolute(given.config)
    note(f"reading {given.input} ...")
    found = tag_rows(
        absolute(given.input),
        absolute(given.out),
        system=system,
        mode=given.mode,
        output_format=given.format,
        columns=Columns(given.id_column, given.text_column),
        top_k=given.top_k,
        min_probability=given.min_probability,
        part_rows=given.part_rows,
        engine=given.engine,
        workers=given.workers,
        progress=bar,
    )
    if given.json:
        emit(found)
    else:
        bad = f"; {found['bad']} bad ones with their reasons in {given.out}/_bad" if found["bad"] else ""
        speed = f", {found['rows_per_second']} a second" if found["rows_per_second"] else ", nothing was left to do"
        say(f"{found['tagged']} of {found['rows']} rows tagged in {given.out}{speed}{bad}")
    return EXIT_PARTIAL if found["bad"] else EXIT_OK


if __name__ == "__main__":
    raise SystemExit(run(main))
