"""Every example of docs/scale.md, on a small system; the one for Ray runs in test_tag_ray."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from small_world import write_config, write_esco
from test_tag import records, text, write_rows

from ranker import tag
from ranker.core.cli import run

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
KEPT = ("--min-probability", "0.5")  # the small system has no probabilities


def examples(language: str) -> list[str]:
    """Return the lines of every block of a language, blocks in the order of the document."""
    blocks = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return blocks if language == "python" else [line for block in blocks for line in block.splitlines() if line]


def arguments(line: str, config: Path) -> list[str]:
    """Return the arguments of a documented command, for the small system and with memory in place of a bucket."""
    words = shlex.split(line.replace("s3://", "memory://"))
    assert words[:3] == ["python", "-m", "ranker.tag"]
    return [word for word in words[3:] if word not in KEPT] + ["--config", str(config)]


def test_commands_and_what_is_done_with_their_output(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path / "small.yaml", write_esco(tmp_path / "esco"), size=40)
    source = write_rows(tmp_path / "vacancies.jsonl", 12)
    (tmp_path / "exports").mkdir()
    rows = "".join(f"{i};{text(i)};x\n" for i in range(9))
    (tmp_path / "exports" / "2026.csv").write_text(f"reference;body;other\n{rows}")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/bucket/vacancies/a.jsonl", source.read_bytes())
    lines = [line for line in examples("sh") if "--engine ray" not in line]
    assert len(lines) == 5
    for line in lines:
        assert run(tag.main, arguments(line, config)) == 0, line
    assert len(memory.find("/bucket/tagged")) == 2
    names = {"part-00000-000000000-000000011.jsonl", "_manifest.json"}
    for folder in ("tagged", "tagged-documents", "tagged-by-two"):
        assert {path.name for path in Path(folder).iterdir()} == names
    same = [Path(folder, "part-00000-000000000-000000011.jsonl").read_bytes() for folder in ("tagged", "tagged-by-two")]
    assert same[0] == same[1]
    document = json.loads(Path("tagged-documents", "part-00000-000000000-000000011.jsonl").read_text().splitlines()[0])
    assert set(document) == {"id", "skills", "dropped", "reason"}
    assert document["skills"][0]["spans"] == [{"start": 0, "end": len(text(0))}]
    scope: dict = {}
    reading, measuring = examples("python")
    exec(reading, scope)
    assert len(scope["answers"]) == 9
    assert scope["labels"].iloc[0] == "weld steel frames"
    exec(measuring.replace('"embedded"', repr(str(config))), scope)
    assert len(records(Path("measured"))) == 200
    assert all(spent > 0 for spent in scope["milliseconds"].values())
