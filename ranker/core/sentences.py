"""Labelled sentences: JSON lines with a list of skills each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ranker.core.errors import InputError, ResourceError


def read_sentences(path: Path) -> list[dict[str, Any]]:
    """Read sentences, a JSON object a line with a list of labels under `skills`.

    Raises
    ------
    ResourceError
        If the file cannot be read.
    InputError
        If a line is no such object, with its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: not JSON ({error})") from error
        skills = row.get("skills") if isinstance(row, dict) else None
        if not isinstance(skills, list) or not all(isinstance(skill, str) for skill in skills):
            raise InputError(f"{path}, line {number}: no list of labels under 'skills'")
        rows.append(row)
    return rows
