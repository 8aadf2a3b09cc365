"""Rank skills for texts: `python -m ranker.rank`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

from ranker.core.cli import emit, note, parser, positive, run, say, table
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.text import normalise
from ranker.core.types import RankedSkill, Ranking

CHUNK = 32  # texts ranked before their answers are printed


class Ranks(Protocol):
    """What the command needs of a ranker."""

    def rank(
        self, texts: Sequence[object], *, top_k: int | None = None, min_probability: float | None = None
    ) -> list[Ranking]:
        """Return one ranking per text."""


def lines(stream: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a stream as text; bytes that are no UTF-8 become the replacement character.

    Lines end at a line feed only, so that no other separator inside a text can shift the numbering of its answers.
    """
    for number, line in enumerate(stream):
        text = line.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
        yield text.removeprefix("\ufeff") if number == 0 else text


def open_texts(file: Path) -> BinaryIO:
    """Open a file with a text per line.

    Raises
    ------
    InputError
        If it is a folder.
    ResourceError
        If it is not there or cannot be read.
    """
    if file.is_dir():
        raise InputError(f"{file} is a folder; give a file with one text per line")
    try:
        return file.open("rb")
    except FileNotFoundError as error:
        raise ResourceError(f"no file {file}") from error
    except OSError as error:
        raise ResourceError(f"cannot read {file}: {error.strerror or error}") from error


def rank_stream(
    ranker: Ranks, texts: Iterable[str], *, top_k: int, min_probability: float | None = None
) -> Iterator[Ranking]:
    """Yield a ranking per text, in order, holding only a chunk of texts in memory."""
    waiting = iter(texts)
    while chunk := list(islice(waiting, CHUNK)):
        yield from ranker.rank(chunk, top_k=top_k, min_probability=min_probability)


def evidence_text(skill: RankedSkill, *, lanes: int = 3) -> str:
    """Return what carried a hit, for people: the name found in the text, then the strongest lanes with z-scores."""
    parts = []
    if "matched" in skill.evidence:
        parts.append(f'"{skill.evidence["matched"]}"')
    scores = skill.evidence.get("lanes", {})
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:lanes]
    return " ".join([*parts, *(f"{name} {z:.1f}" for name, z in best)])


def render(ranking: Ranking) -> str:
    """Return a ranking as a table under its query."""
    query = normalise(ranking.query, strip_bullets=False)  # a terminal must not obey what stands in a vacancy
    title = f"> {query[:200]}{' ...' if len(query) > 200 else ''}"
    if not ranking.skills:
        return f"{title}\n  no skills: {ranking.reason}"
    rows = [
        (
            rank,
            skill.label,
            f"{skill.score:.3f}",
            "-" if skill.probability is None else f"{skill.probability:.2f}",
            evidence_text(skill),
            skill.uri,
        )
        for rank, skill in enumerate(ranking.skills, start=1)
    ]
    return f"{title}\n{table(rows, ('#', 'skill', 'score', 'prob', 'evidence', 'uri'))}"


def _is_path(text: str) -> bool:
    """Whether an argument is meant as a path: it exists and looks like one, as "java" beside a folder java does not."""
    if len(text) > 1000 or "\0" in text or text.isspace():
        return False
    try:
        return Path(text).exists() and ("/" in text or bool(Path(text).suffix) or text in {".", ".."})
    except OSError:  # a name that the file system cannot hold
        return False


def _texts(arguments: Sequence[str], file: str | None) -> Iterable[str]:
    """Return the texts that the arguments name."""
    if file is not None and arguments:
        raise ArgumentError("give texts or --file, not both")
    source = file if file is not None else arguments[0] if len(arguments) == 1 else None
    if source == "-" or (source is None and not arguments):
        if source is None and sys.stdin.isatty():
            raise ArgumentError('no text; give one, as in: python -m ranker.rank "welding of aluminium frames"')
        return lines(sys.stdin.buffer)
    if source is not None and (file is not None or _is_path(source)):
        if file is None:
            note(f"reading {source}, a text per line")
        return lines(open_texts(Path(source)))
    # What the shell could not decode, and lone surrogates, could not be printed again.
    return [text.encode("utf-8", "replace").decode() for text in arguments]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser(
        "ranker.rank",
        "Rank the ESCO skills that a text asks for, best first.",
        'python -m ranker.rank "You weld aluminium frames and read technical drawings" --top-k 5\n'
        "  python -m ranker.rank --file lines.txt --json > rankings.jsonl",
    )
    add = arguments.add_argument
    add("text", nargs="*", help="texts, or the path of a file, or - for standard input, a text per line")
    add("--file", metavar="F", help="a file with a text per line; - for standard input")
    add("--config", default="embedded", help="name of a system in configs/ or path of a YAML file (default: embedded)")
    add("--top-k", type=positive, default=10, help="skills per text (default: 10)")
    add("--min-probability", type=float, metavar="P", help="leave out skills below this probability")
    add("--json", action="store_true", help="one JSON object per text and line")
    given = arguments.parse_args(argv)
    if given.min_probability is not None and not 0 <= given.min_probability <= 1:
        raise ArgumentError(f"--min-probability {given.min_probability} is not between 0 and 1")
    texts = _texts(given.text, given.file)
    from ranker.pipeline import SkillRanker  # seconds of imports, which a wrong argument must not cost

    ranker = SkillRanker.load(given.config)
    for ranking in rank_stream(ranker, texts, top_k=given.top_k, min_probability=given.min_probability):
        if given.json:
            emit(ranking.to_dict())
        else:
            say(render(ranking) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
