"""Run the commands behind the published figures and compare, from both sides.

`docs/reproduce.yaml` maps a condition to a command, the figure in its JSON and the value that was published. A figure
that came out better than published fails like one that came out worse: either way the document is not true.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ranker.core.cli import emit, note, parser, run, say, table
from ranker.core.config import CONFIG_DIR
from ranker.core.errors import ArgumentError, InputError, ResourceError

DEFAULT = CONFIG_DIR.parent / "docs" / "reproduce.yaml"
KEYS = ("name", "command", "figure", "expected", "tolerance", "ci")


@dataclass(frozen=True)
class Condition:
    """One published figure.

    Attributes
    ----------
    name : str
    command : str
        Without the interpreter: "ranker.evaluate --config embedded --data {data} --json".
    figure : str
        Dotted path into the command's JSON; a key with dots or @ is written in full between dots.
    expected, tolerance : float
        |measured - expected| must not exceed the tolerance.
    ci : bool
        Whether it belongs to the fast subset.
    """

    name: str
    command: str
    figure: str
    expected: float
    tolerance: float
    ci: bool = False


def read_conditions(path: Path) -> list[Condition]:
    """Read the file of conditions.

    Raises
    ------
    ResourceError
        If it is not there.
    InputError
        If it is no list of mappings with the known keys; the entry is named.
    """
    if not path.is_file():
        raise ResourceError(f"no file of conditions at {path}")
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(entries, list):
        raise InputError(f"{path}: expected a list of conditions")
    conditions = []
    for number, entry in enumerate(entries, start=1):
        unknown = sorted(set(entry) - set(KEYS)) if isinstance(entry, dict) else ["no mapping"]
        if unknown:
            raise InputError(f"{path}, entry {number}: {', '.join(unknown)}; known keys: {', '.join(KEYS)}")
        try:
            conditions.append(Condition(**entry))
        except TypeError as error:
            raise InputError(f"{path}, entry {number}: {error}") from error
    return conditions


def pick(value: Any, path: str) -> float:
    """Return the number at a dotted path of a JSON value.

    Raises
    ------
    InputError
        If there is none; the message lists the keys at the point where the path ends.

    Examples
    --------
    >>> pick({"configs": {"a": {"macro": {"ndcg@100": 0.5}}}}, "configs.a.macro.ndcg@100")
    0.5
    """
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            there = ", ".join(value) if isinstance(value, dict) else repr(value)
            raise InputError(f"no {part!r} on the way to {path!r}; there is: {there}")
        value = value[part]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{path!r} is no number but {value!r}")
    return float(value)


def measure(command: str, data: str) -> Any:
    """Run a command in a process of its own and return the JSON object that it prints last.

    Raises
    ------
    InputError
        If it fails or prints no JSON; the end of its errors is shown.
    """
    words = [word.replace("{data}", data) for word in shlex.split(command)]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
    try:
        if done.returncode == 0:
            return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        pass
    raise InputError(f"python -m {command}: exit {done.returncode}, no JSON; {done.stderr.strip()[-300:]}")


def reproduce(conditions: Sequence[Condition], data: str) -> list[dict[str, Any]]:
    """Measure every condition; a command that serves several figures runs once.

    Returns
    -------
    list of dict
        name, expected, tolerance, measured (None where it failed), ok, and error.
    """
    seen: dict[str, Any] = {}
    results = []
    for condition in conditions:
        result: dict[str, Any] = {
            "name": condition.name, "expected": condition.expected, "tolerance": condition.tolerance,
            "measured": None, "ok": False, "error": "",
        }
        try:
            if condition.command not in seen:
                note(f"python -m {condition.command.replace('{data}', data)}")
                seen[condition.command] = measure(condition.command, data)
            result["measured"] = pick(seen[condition.command], condition.figure)
            result["ok"] = abs(result["measured"] - condition.expected) <= condition.tolerance
        except InputError as error:
            seen.setdefault(condition.command, {})
            result["error"] = str(error)
        results.append(result)
    return results


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    made = parser(
        "ranker.reproduce",
        "Run the commands behind the published figures and compare.",
        "python -m ranker.reproduce --data graded --only baseline-bm25",
    )
    made.add_argument("--file", type=Path, default=DEFAULT, help="conditions (default docs/reproduce.yaml)")
    made.add_argument("--data", required=True, help="the graded tasks that {data} stands for")
    made.add_argument("--only", nargs="+", metavar="NAME", help="conditions whose name starts so")
    made.add_argument("--ci", action="store_true", help="the fast subset")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit code 6 if a figure is off."""
    arguments = _parse(argv)
    conditions = read_conditions(arguments.file)
    chosen = [c for c in conditions if (c.ci or not arguments.ci)
              and (not arguments.only or c.name.startswith(tuple(arguments.only)))]
    if not chosen:
        raise ArgumentError(f"no such condition; there are: {', '.join(c.name for c in conditions)}")
    results = reproduce(chosen, arguments.data)
    rows = [[r["name"], r["expected"], r["tolerance"], "-" if r["measured"] is None else f"{r['measured']:.4f}",
             "ok" if r["ok"] else r["error"] or "off"] for r in results]
    say(table(rows, ["condition", "published", "tolerance", "measured", "verdict"]))
    if arguments.json:
        emit({"conditions": results})
    return 0 if all(r["ok"] for r in results) else 6


if __name__ == "__main__":
    raise SystemExit(run(main))
