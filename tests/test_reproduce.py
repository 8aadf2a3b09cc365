"""Published figures against their commands."""

from __future__ import annotations

import json

import pytest

from ranker import reproduce
from ranker.core.errors import InputError
from ranker.reproduce import DEFAULT, Condition, main, pick, read_conditions


def test_the_comparison_has_two_sides(monkeypatch):
    monkeypatch.setattr(reproduce, "measure", lambda command, data: {"x": {"a@1": 0.5}})
    given = [Condition(str(e), "c", "x.a@1", e, 0.01) for e in (0.5, 0.509, 0.491, 0.511, 0.489)]
    assert [r["ok"] for r in reproduce.reproduce(given, "d")] == [True, True, True, False, False]


def test_a_command_for_several_figures_runs_once_and_a_failure_is_told_for_each(monkeypatch):
    calls = []

    def measure(command: str, data: str):
        calls.append((command, data))
        raise InputError("broke")

    monkeypatch.setattr(reproduce, "measure", measure)
    results = reproduce.reproduce([Condition("a", "c", "x", 1, 0), Condition("b", "c", "y", 1, 0)], "d")
    assert calls == [("c", "d")]
    assert [(r["ok"], r["measured"]) for r in results] == [(False, None), (False, None)]
    assert "broke" in results[0]["error"]


def test_a_real_command_is_run_and_its_last_line_read():
    value = reproduce.measure("ranker.size --config {data} --json", "lanes")
    assert pick(value, "total_parameters") == 22_713_216


def test_a_path_that_leads_nowhere_lists_what_is_there():
    with pytest.raises(InputError, match="there is: a, b"):
        pick({"a": 1, "b": 2}, "c")
    with pytest.raises(InputError, match="no number"):
        pick({"a": "1"}, "a")


def test_the_shipped_file_is_valid_and_a_wrong_one_is_told(tmp_path, capsys):
    conditions = read_conditions(DEFAULT)
    assert len({c.name for c in conditions}) == len(conditions)
    assert all(c.tolerance >= 0 and c.command.split()[0].startswith(("ranker.", "train.")) for c in conditions)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("- {name: a, comand: b}\n")
    with pytest.raises(InputError, match="entry 1: comand; known keys"):
        read_conditions(wrong)
    wrong.write_text("- {name: a, command: ranker.size --config embedded --json, figure: nothing, "
                     "expected: 1, tolerance: 0}\n")
    assert main(["--file", str(wrong), "--data", "x", "--json"]) == 6
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["conditions"][0]["ok"] is False


def test_the_fast_subset_of_the_published_figures_holds(capsys):
    assert main(["--ci", "--data", "none", "--json"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])["conditions"]
    assert [c["name"] for c in done] == ["parameters-lanes", "parameters-embedded"]
