"""Batch tagging: every row once, bad rows beside, restarts, refusals, formats, places and processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_world import THINGS, VERBS, write_config, write_esco

from ranker import SkillRanker, tag
from ranker.batch import engines
from ranker.batch import part as part_module
from ranker.core.cli import run
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.types import RankedSkill, Ranking, Span, TaggedSkill, Tagging

ROOT = Path(__file__).resolve().parents[1]


def text(i: int) -> str:
    return f"You {VERBS[i % len(VERBS)]} {THINGS[i % 7]} of kind {i}"


def write_rows(path: Path, n: int, *, first: int = 0) -> Path:
    rows = ({"id": f"v{i}", "text": text(i), "extra": [i]} for i in range(first, first + n))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for path in sorted(folder.glob("part-*.jsonl")) for line in path.read_text().splitlines()]


def bad(folder: Path) -> list[dict]:
    return [json.loads(line) for path in sorted(folder.glob("_bad/*")) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def system(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("world")
    return str(write_config(folder / "small.yaml", write_esco(folder / "esco"), size=40))


@pytest.fixture(scope="module")
def ranker(system) -> SkillRanker:
    return SkillRanker.load(system)


class Documents:
    """Answers documents without a model: a skill per word, one span each."""

    def tag(self, documents, *, top_k=None, min_probability=None):
        return [
            Tagging(
                document,
                tuple(
                    TaggedSkill(f"urn:{word}", word, 1.0, 0.5, {"lanes": {"bm25": 1.0}}, (Span(0, len(word)),))
                    for word in document.split()[:top_k]
                ),
                (Span(1, 2),),
            )
            for document in documents
        ]


class Picky:
    """Fails on texts that hold a word, each time."""

    def __init__(self, word: str) -> None:
        self.word = word

    def rank(self, texts, *, top_k=None, min_probability=None):
        if any(self.word in text for text in texts):
            raise ZeroDivisionError(self.word)
        return [Ranking(text, (RankedSkill("urn:1", "weld", 1.0, None, {}),)) for text in texts]


@pytest.fixture
def command(capsys, monkeypatch, ranker, system):
    loads = []

    def load(self):
        loads.append(self)
        return command.ranker

    monkeypatch.setattr(part_module.Job, "load", load)

    def command(source, out, *arguments):
        given = [source, "--out", out, "--config", system, "--json", *arguments]
        code = run(tag.main, list(map(str, given)))
        said = capsys.readouterr()
        return code, json.loads(said.out.splitlines()[-1]), said.err

    command.ranker, command.loads = ranker, loads
    return command


def test_answers_are_those_of_the_library(command, tmp_path, ranker):
    source = write_rows(tmp_path / "in.jsonl", 25)
    code, found, err = command(source, tmp_path / "out", "--top-k", 3, "--part-rows", 10)
    assert code == 0
    assert {key: found[key] for key in ("rows", "tagged", "bad", "parts", "parts_before")} == {
        "rows": 25, "tagged": 25, "bad": 0, "parts": 3, "parts_before": 0,
    }  # fmt: skip
    assert "25/25" in err
    assert "rows/s" in err
    expected = ranker.rank([text(i) for i in range(25)], top_k=3)
    assert records(tmp_path / "out") == [
        {"id": f"v{i}", "skills": ranking.to_dict()["skills"], "reason": ""} for i, ranking in enumerate(expected)
    ]
    assert sorted(tree(tmp_path / "out")) == [
        "_manifest.json",
        "part-00000-000000000-000000009.jsonl",
        "part-00000-000000010-000000019.jsonl",
        "part-00000-000000020-000000024.jsonl",
    ]


def test_bad_rows_go_beside_with_file_line_and_reason(command, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    lines = ['{"id": 1, "text": "weld"}', "nonsense", '{"id": 1, "text": "cut"}', '{"id": 2, "text": " "}']
    (source / "a.jsonl").write_text("\n".join(lines))
    (source / "b.csv").write_text("text,id\nsell,1\nplan,3\n4\n💥,5\n")
    code, found, _ = command(source, tmp_path / "out", "--part-rows", 2)
    assert code == 7
    assert (found["rows"], found["tagged"], found["bad"]) == (8, 3, 5)
    assert [(row["file"], row["line"], row["id"], row["reason"][:23]) for row in bad(tmp_path / "out")] == [
        ("a.jsonl", 2, "", "broken JSON: Expecting "), ("a.jsonl", 3, "1", "the id '1' stands in an"),
        ("a.jsonl", 4, "", "no text"), ("b.csv", 2, "1", "the id '1' stands in an"),
        ("b.csv", 4, "", "1 fields, the header ha"),
    ]  # fmt: skip
    answers = {row["id"]: row for row in records(tmp_path / "out")}
    assert sorted(answers) == ["1", "3", "5"]
    assert answers["5"] == {"id": "5", "skills": [], "reason": "the text holds no letter or digit"}
    again = command(source, tmp_path / "out", "--part-rows", 2)
    assert (again[0], again[1]["bad"], again[1]["parts_before"]) == (7, 5, 4)


def test_a_finished_run_is_left_alone_and_a_missing_part_made_again(command, tmp_path):
    source, out = write_rows(tmp_path / "in.jsonl", 30), tmp_path / "out"
    command(source, out, "--part-rows", 10)
    before = tree(out)
    assert command(source, out, "--part-rows", 10)[1]["parts_before"] == 3
    assert len(command.loads) == 1
    (out / "part-00000-000000010-000000019.jsonl").unlink()
    (out / ".part-00000-000000010-000000019.jsonl.x1").write_text("half a pa")
    code, found, err = command(source, out, "--part-rows", 10)
    assert (code, found["parts_before"]) == (0, 2)
    assert "20/30" in err
    assert tree(out) == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--top-k", 4], "top_k 3, now 4"),
        (["--part-rows", 9], "part_rows 10, now 9"),
        (["--format", "parquet"], "format 'jsonl', now 'parquet'"),
        (["--mode", "tag"], "mode 'rank', now 'tag'"),
    ],
)
def test_a_restart_with_other_options_is_refused(command, tmp_path, options, named):
    source = write_rows(tmp_path / "in.jsonl", 12)
    first = ["--top-k", 3, "--part-rows", 10]
    command(source, tmp_path / "out", *first)
    before = tree(tmp_path / "out")
    code, found, _ = command(source, tmp_path / "out", *first, *options)
    assert code == ArgumentError.exit_code
    assert f"was begun with {named}; run it as it was begun" in found["error"]
    assert tree(tmp_path / "out") == before


def test_a_restart_with_other_input_model_or_taxonomy_is_refused(command, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", 12)
    command(source, tmp_path / "out")
    write_rows(tmp_path / "in.jsonl", 12, first=1)
    assert "was begun with input '" in command(source, tmp_path / "out")[1]["error"]
    write_rows(tmp_path / "in.jsonl", 12)
    esco = write_esco(tmp_path / "esco")
    other = write_config(tmp_path / "small.yaml", esco, size=40, bm25=2.0)
    error = command(source, tmp_path / "out", "--config", other)[1]["error"]
    assert "was begun with model '" in error
    assert "taxonomy" not in error
    with (esco / "skills_en.csv").open("a") as stream:
        stream.write("urn:new,tune pianos,,\n")
    same = write_config(tmp_path / "small.yaml", esco, size=40)
    assert "was begun with taxonomy '" in command(source, tmp_path / "out", "--config", same)[1]["error"]
    assert len(command.loads) == 1


def test_a_folder_with_other_files_is_refused(command, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").write_text("x")
    code, found, _ = command(write_rows(tmp_path / "in.jsonl", 2), tmp_path / "out")
    assert code == ArgumentError.exit_code
    assert "holds files but no _manifest.json, such as thesis.doc" in found["error"]


def test_output_within_the_input_is_refused(command, tmp_path):
    write_rows(tmp_path / "in.jsonl", 2)
    for out in (tmp_path, tmp_path / "tagged"):
        code, found, _ = command(tmp_path, out)
        assert code == ArgumentError.exit_code
        assert "its files would be read as input" in found["error"]
    assert sorted(tree(tmp_path)) == ["in.jsonl"]


def test_input_is_checked_before_the_model_is_loaded(command, tmp_path):
    (tmp_path / "in.csv").write_text("key,body\n1,weld\n")
    code, found, _ = command(tmp_path / "in.csv", tmp_path / "out")
    assert code == InputError.exit_code
    assert "no column 'id' and 'text'; there are: key, body" in found["error"]
    assert command(tmp_path / "none.csv", tmp_path / "out")[0] == ResourceError.exit_code
    assert command(tmp_path / "in.csv", tmp_path / "out", "--min-probability", 2)[0] == ArgumentError.exit_code
    assert not command.loads
    assert not (tmp_path / "out").exists()
    found = command(tmp_path / "in.csv", tmp_path / "out", "--id-column", "key", "--text-column", "body")[1]
    assert found["tagged"] == 1


def test_empty_input_is_a_finished_run(command, tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    assert command(tmp_path / "in.jsonl", tmp_path / "out")[:1] == (0,)
    assert not command.loads


def test_a_row_that_the_ranker_fails_on_costs_no_other(command, tmp_path):
    command.ranker = Picky("kind 7")
    source = write_rows(tmp_path / "in.jsonl", 20)
    code, found, _ = command(source, tmp_path / "out", "--part-rows", 20)
    assert (code, found["tagged"], found["bad"]) == (7, 19, 1)
    assert bad(tmp_path / "out") == [
        {"file": "in.jsonl", "line": 8, "id": "v7", "reason": "the ranker failed: ZeroDivisionError: kind 7"}
    ]


def test_a_ranker_that_fails_on_every_row_stops_the_run(command, tmp_path):
    command.ranker = Picky("kind")
    code, found, _ = command(write_rows(tmp_path / "in.jsonl", 20), tmp_path / "out")
    assert code == 6
    assert "failed for every row of part-00000-000000000-000000019: ZeroDivisionError: kind" in found["error"]
    assert sorted(tree(tmp_path / "out")) == ["_manifest.json"]


def test_a_probability_asked_of_a_system_without_one_is_refused(command, tmp_path):
    code, found, _ = command(write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out", "--min-probability", 0.5)
    assert code == ArgumentError.exit_code
    assert "no calibrated probabilities" in found["error"]


def test_input_that_changes_under_way_stops_the_run(command, tmp_path, ranker):
    source = write_rows(tmp_path / "in.jsonl", 20)

    class Changing:
        def rank(self, texts, **options):
            write_rows(source, 20, first=1)
            return ranker.rank(texts, **options)

    command.ranker = Changing()
    code, found, _ = command(source, tmp_path / "out", "--part-rows", 10)
    assert code == InputError.exit_code
    assert "in.jsonl was changed while it was tagged" in found["error"]


def test_documents_keep_their_spans(command, tmp_path):
    command.ranker = Documents()
    command(write_rows(tmp_path / "in.jsonl", 2), tmp_path / "out", "--mode", "tag", "--top-k", 1)
    skill = {"uri": "urn:You", "label": "You", "score": 1.0, "probability": 0.5, "evidence": {"lanes": {"bm25": 1.0}}}
    assert records(tmp_path / "out")[1] == {
        "id": "v1", "skills": [skill | {"spans": [{"start": 0, "end": 3}]}],
        "dropped": [{"start": 1, "end": 2}], "reason": "",
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["rank", "tag"])
def test_parquet_holds_what_json_lines_hold(command, tmp_path, mode):
    pq = pytest.importorskip("pyarrow.parquet")
    if mode == "tag":
        command.ranker = Documents()
    source = write_rows(tmp_path / "in.jsonl", 12)
    options = ["--mode", mode, "--part-rows", 5, "--top-k", 3]
    command(source, tmp_path / "lines", *options)
    command(source, tmp_path / "table", *options, "--format", "parquet")
    expected = records(tmp_path / "lines")
    found = pq.read_table(tmp_path / "table").to_pylist()  # the whole folder; what begins with "_" is left out
    for row in found:
        for skill in row["skills"]:
            skill["evidence"] = json.loads(skill["evidence"])
    assert len(found) == 12
    for row, other in zip(found, expected, strict=True):
        for skill, same in zip(row["skills"], other["skills"], strict=True):
            assert skill["score"] == pytest.approx(same.pop("score"))
            del skill["score"]
    assert found == expected


def test_output_can_be_input(command, tmp_path):
    pytest.importorskip("pyarrow")
    command(write_rows(tmp_path / "in.jsonl", 6), tmp_path / "a", "--format", "parquet")
    found = command(tmp_path / "a", tmp_path / "b", "--text-column", "reason")[1]
    assert "not one row can be tagged; part-00000-000000000-000000005.parquet line 1: no text" in found["error"]


def test_urls_are_read_and_written(command, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    source = write_rows(tmp_path / "in.jsonl", 15)
    memory.makedirs("/data/in")
    memory.put(str(source), "/data/in/in.jsonl")
    options = ["--part-rows", 4]
    for place in ("memory://data/in", "memory://data/in/in.jsonl"):
        memory.rm("/out", recursive=True) if memory.exists("/out") else None
        command(place, "memory://out", *options)
        memory.rm("/out/part-00000-000000004-000000007.jsonl")
        assert command(place, "memory://out", *options)[1]["parts_before"] == 3
        local = tmp_path / place[-5:]
        command(source, local, *options)
        assert {path.removeprefix("/out/"): memory.cat(path) for path in memory.find("/out")} == tree(local)
    assert "was begun with top_k 20, now 3" in command(place, "memory://out", *options, "--top-k", 3)[1]["error"]
    assert command("memory://nothing/here", "memory://other")[0] == ResourceError.exit_code
    assert "nonsense" in command("nonsense://x", "memory://other")[1]["error"]


def test_help_states_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        tag.main(["--help"])
    assert "7 some rows were not" in capsys.readouterr().out


# --- processes -------------------------------------------------------------------------------------------------------


def batch(source: Path, out: Path, system: str, *options: object) -> list[str]:
    return [str(o) for o in (source, "--out", out, "--config", system, "--part-rows", 20, "--top-k", 2, *options)]


def test_killed_at_ten_random_moments_the_result_is_the_same(tmp_path, system):
    """Each start is a process of its own, forked from a server that has the imports done."""
    source, out, whole = write_rows(tmp_path / "in.jsonl", 600), tmp_path / "out", tmp_path / "whole"
    with source.open("a") as stream:
        stream.write("broken\n" * 3)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ranker.pipeline", "ranker.tag"])

    def start(folder: Path, seconds: float | None = None) -> int:
        child = context.Process(target=run, args=(tag.main, batch(source, folder, system)))
        child.start()
        child.join(seconds)
        child.kill()
        child.join()
        return child.exitcode

    start(tmp_path / "first", 0)  # the server's own start is not to be measured
    begun = time.monotonic()
    assert start(whole) == 0
    usual = time.monotonic() - begun
    draw = random.Random(0)
    middle = 0
    for _ in range(10):
        killed = start(out, draw.uniform(0, usual / 3)) == -signal.SIGKILL
        middle += killed and 0 < len(list(out.glob("part-*"))) < 31
    assert middle >= 3
    assert start(out) == 0  # what `run` returns is not the exit code here
    assert tree(out) == tree(whole)
    assert len(records(out)) == 600
    assert len(bad(out)) == 3


def test_processes_write_the_same_and_end_with_their_parent(tmp_path, system):
    source = write_rows(tmp_path / "in.jsonl", 500)
    arguments = batch(source, tmp_path / "out", system, "--workers", 2)
    start = [sys.executable, "-m", "ranker.tag", *arguments]
    with subprocess.Popen(start, cwd=ROOT, stderr=subprocess.DEVNULL) as first:
        while len(list((tmp_path / "out").glob("part-*"))) < 4:
            assert first.poll() is None
            time.sleep(0.05)
        family = [int(pid) for pid in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()]
        assert len(family) >= 2
        first.kill()
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in family):
        assert time.monotonic() < deadline, "worker processes outlive their parent"
        time.sleep(0.05)
    assert 4 <= len(list((tmp_path / "out").glob("part-*"))) < 25
    assert run(tag.main, batch(source, tmp_path / "out", system)) == 0
    assert run(tag.main, batch(source, tmp_path / "whole", system)) == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_error_in_a_worker_process_is_told_as_such(tmp_path, capsys):
    source = write_rows(tmp_path / "in.jsonl", 3)
    config = write_config(tmp_path / "small.yaml", write_esco(tmp_path / "esco"), size=40)
    code = run(tag.main, [*batch(source, tmp_path / "out", str(config)), "--workers", "2", "--min-probability", "0.5"])
    assert code == ArgumentError.exit_code
    assert "no calibrated probabilities" in capsys.readouterr().err


def test_a_worker_process_that_dies_is_told_with_what_to_do(tmp_path, system, monkeypatch, capsys):
    monkeypatch.setattr(engines, "_work", dies)
    source = write_rows(tmp_path / "in.jsonl", 3)
    assert run(tag.main, [*batch(source, tmp_path / "out", system), "--workers", "2"]) == 6
    assert "a worker process died" in capsys.readouterr().err


def dies(job, part):
    os._exit(1)
