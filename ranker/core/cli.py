"""What every command shares: one parser style, JSON envelopes, exit codes, errors as one line."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ranker.core.errors import ArgumentError, RankerError


def parser(prog: str, summary: str, example: str) -> argparse.ArgumentParser:
    """Return an argument parser whose help ends with an example."""
    return argparse.ArgumentParser(
        prog=f"python -m {prog}",
        description=summary,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def say(text: str = "") -> None:
    """Print a line for people on standard output."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Print a line about progress or trouble on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def emit(value: Any) -> None:
    """Print one JSON object on one line; the last thing a `--json` command prints."""
    say(json.dumps(value, ensure_ascii=False))


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Return rows as an aligned text table; numbers to the right, floats with four digits."""
    cells = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True))
        return "  ".join(parts).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *map(line, cells)])


def run(main: Callable[[Sequence[str] | None], int], argv: Sequence[str] | None = None) -> int:
    """Run a command's `main`, turning the project's errors into one line and an exit code.

    Parameters
    ----------
    main : callable
        Takes the arguments, returns the exit code.
    argv : sequence of str, optional
        Default `sys.argv[1:]`.

    Returns
    -------
    int
        Exit code. With `--json` among the arguments an error is a JSON object {"error", "exit_code"} as well.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return main(arguments)
    except RankerError as error:
        note(f"error: {error}")
        if "--json" in arguments:
            emit({"error": str(error), "exit_code": error.exit_code})
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        note("interrupted")
        return 130


def positive(value: str) -> int:
    """Argparse type: an integer of at least 1."""
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number of at least 1")
    return number


def as_float(value: str) -> float:
    """Return a number, NaN for what is none."""
    try:
        return float(value)
    except ValueError:
        return math.nan


def seconds(value: str) -> float:
    """Argparse type: a positive number of seconds."""
    number = as_float(value)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{value!r} is not a positive number of seconds")
    return number


def choose(value: str, allowed: Sequence[str], what: str) -> str:
    """Return `value` if it is allowed, else raise an error that lists what is."""
    if value not in allowed:
        raise ArgumentError(f"unknown {what} {value!r}; allowed: {', '.join(allowed)}")
    return value
