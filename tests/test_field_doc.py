"""docs/field.md names code, families and tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lanes.registry import FAMILIES as LANES
from rerankers.registry import FAMILIES as COLUMNS

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "field.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| part")]


def test_all_parts_have_rows() -> None:
    assert len(ROWS) >= 30
    families = set(re.findall(r"family: (\w+)", "\n".join(ROWS)))
    assert families <= set(LANES) | set(COLUMNS)
    assert {"bge_m3", "late", "pagerank", "neighbour", "context", "dense", "encoder"} <= families


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_what_is_there(row: str) -> None:
    _, part, code, _, tests, _ = row.split("|")
    assert part.strip()
    for path in re.findall(r"`([\w/]+\.py|[\w/]+/)`", code):
        assert (ROOT / path).exists(), path
    files = re.findall(r"`(test_\w+)\.py", tests)
    for file in files:
        assert (ROOT / "tests" / f"{file}.py").is_file(), file
    text = "".join((ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8") for file in files)
    for name in re.findall(r"::(test_\w+)", tests):
        assert f"def {name}(" in text, name
