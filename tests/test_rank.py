"""The rank command: tables, JSON lines, files, standard input, and input that nobody meant."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest

from ranker import rank
from ranker.core.cli import run
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.types import RankedSkill, Ranking

UGLY = ["", "   ", "50lbs", "IDS/IPS sensors", "🚀", "溶接工", "\x07bell", "NaN", "C++\u2028R", "a" * 100_000]


class Fake:
    """One skill per letter of the text, as many as asked for."""

    calls: list[int]

    def __init__(self) -> None:
        self.calls = []

    def rank(self, texts, *, top_k=None, min_probability=None):
        self.calls.append(len(texts))
        return [self.one(text, top_k, min_probability) for text in texts]

    @staticmethod
    def one(text, top_k, least):
        if not text.strip():
            return Ranking(text, (), "the text is empty")
        skills = tuple(
            RankedSkill(
                f"http://x/{i}",
                f"skill {i}",
                1.0 - i / 10,
                None if least is None else 0.75,
                {"lanes": {"bm25": 0.2, "dense": 3.14, "fuzzy": 1.0, "group": 2.0}} | ({} if i else {"matched": "C++"}),
            )
            for i in range(min(top_k, 5))
        )
        return Ranking(text, skills)


@pytest.fixture
def command(monkeypatch, capsys):
    fake = Fake()
    loader = SimpleNamespace(SkillRanker=SimpleNamespace(load=lambda config: fake))
    monkeypatch.setitem(sys.modules, "ranker.pipeline", loader)

    def call(*arguments, stdin=None):
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: False))
        code = run(rank.main, [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    call.fake = fake
    return call


def test_table(command):
    code, out, _ = command("weld C++ frames", "--top-k", 2)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "> weld C++ frames"
    assert lines[1].split() == ["#", "skill", "score", "prob", "evidence", "uri"]
    assert " ".join(lines[3].split()) == '1 skill 0 1.000 - "C++" dense 3.1 group 2.0 fuzzy 1.0 http://x/0'
    assert len([line for line in lines if "http" in line]) == 2


def test_json_is_one_object_a_line(command):
    code, out, _ = command("--json", "weld", "", "--min-probability", 0.5, "--top-k", 3)
    assert code == 0
    first, second = map(json.loads, out.splitlines())
    assert first["query"] == "weld"
    assert [s["label"] for s in first["skills"]] == ["skill 0", "skill 1", "skill 2"]
    assert set(first["skills"][0]) == {"uri", "label", "score", "probability", "evidence"}
    assert first["skills"][0]["probability"] == 0.75
    assert second == {"query": "", "skills": [], "reason": "the text is empty"}


def test_an_empty_line_says_why_and_costs_no_other_line(command, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\n\n\xff two\nlast")
    code, out, _ = command("--file", file, "--json")
    answers = list(map(json.loads, out.splitlines()))
    assert code == 0
    assert [a["query"] for a in answers] == ["one", "", "\ufffd two", "last"]
    assert [bool(a["reason"]) for a in answers] == [False, True, False, False]
    assert "no skills: the text is empty" in command("--file", file)[1]


def test_ugly_text_keeps_one_answer_per_line(command):
    data = "\n".join(UGLY).encode()
    code, out, _ = command("-", "--json", stdin=data)
    answers = [json.loads(line) for line in out.split("\n")[:-1]]
    assert code == 0
    assert [a["query"] for a in answers] == UGLY
    assert command("-", stdin=data)[0] == 0


def test_standard_input_is_read_without_arguments_and_in_chunks(command):
    code, out, _ = command("--json", stdin=b"text\n" * (rank.CHUNK + 1))
    assert code == 0
    assert len(out.splitlines()) == rank.CHUNK + 1
    assert command.fake.calls == [rank.CHUNK, 1]


def test_an_argument_that_is_a_file_is_read(command, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("a\nb\n")
    code, out, err = command(file, "--json")
    assert (code, len(out.splitlines())) == (0, 2)
    assert "reading" in err


def test_a_skill_that_names_a_folder_is_still_a_text(command, tmp_path, monkeypatch):
    (tmp_path / "java").mkdir()
    monkeypatch.chdir(tmp_path)
    assert json.loads(command("java", "--json")[1])["query"] == "java"


def test_a_lone_surrogate_can_be_printed(command):
    code, out, _ = command("weld \udcff", "--json")
    assert code == 0
    out.encode()


@pytest.mark.parametrize("flag", ["--file", None])
def test_a_folder_is_invalid_input(command, tmp_path, flag):
    code, out, err = command(*([flag] if flag else []), tmp_path, "--json")
    assert code == InputError.exit_code
    assert "is a folder" in err
    assert json.loads(out)["exit_code"] == InputError.exit_code


def test_errors_have_their_codes(command, tmp_path):
    assert command("--file", tmp_path / "none")[0] == ResourceError.exit_code
    assert command("text", "--file", "-")[0] == ArgumentError.exit_code
    assert command("text", "--min-probability", 1.5)[0] == ArgumentError.exit_code
    with pytest.raises(SystemExit) as stop:
        command("text", "--top-k", 0)
    assert stop.value.code == 2


def test_help_needs_no_model(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ranker.pipeline", None)
    with pytest.raises(SystemExit) as stop:
        rank.main(["--help"])
    assert stop.value.code == 0
    assert "example" in capsys.readouterr().out
