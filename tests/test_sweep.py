"""The instruction sweep: figures by hand, an honest choice, and the command end to end on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_world import write_esco, write_tasks
from tiny_bert import write_tiny_bert

from ranker.core.cli import run
from ranker.core.config import load_config
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.metrics import macro
from ranker.sweep import NONE, choose_in_folds, lane_values, main, read_instructions, report

CONFIG = """
name: sweep
taxonomy: {{source: official, path: {esco}}}
lanes:
  - {{name: dense, family: dense, model: "{model}"}}
  - {{name: bm25, family: bm25}}
pool: {{weights: {{dense: 1.0}}}}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("world")
    esco, tasks = write_esco(folder / "esco"), write_tasks(folder / "tasks")
    model = write_tiny_bert(folder / "model")
    (folder / "sweep.yaml").write_text(CONFIG.format(esco=esco, model=model))
    (folder / "lines.txt").write_text("find the skill: \n\nplan music staff\\nand: \nfind the skill: \n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKER_CACHE", str(folder / "cache"))
        yield folder, tasks


def arguments(folder: Path, tasks: Path, **changes: str) -> list[str]:
    given = {"config": str(folder / "sweep.yaml"), "lane": "dense", "instructions": str(folder / "lines.txt"),
             "data": str(tasks), "folds": "3", **changes}  # fmt: skip
    return [part for name, value in given.items() for part in (f"--{name}", value)]


def test_the_choice_is_made_without_the_queries_it_is_scored_on() -> None:
    # Each instruction is right on one query alone: whatever is chosen on the others is wrong on the one left out.
    lucky = {f"i{k}": {"t": np.eye(6)[k]} for k in range(6)}
    found = choose_in_folds({NONE: {"t": np.zeros(6)}, **lucky}, folds=6)
    assert macro(found.values[found.best]) == pytest.approx(1 / 6)
    assert found.honest["t"].tolist() == [0.0] * 6
    better = choose_in_folds({NONE: {"t": np.zeros(6)}, "good": {"t": np.full(6, 0.5)}}, folds=3)
    assert better.chosen == ("good",) * 3
    assert better.honest["t"].tolist() == [0.5] * 6


def test_every_task_counts_alike_in_the_choice() -> None:
    values = {"a": {"big": np.full(90, 0.5), "small": np.full(6, 0.1)},
              "b": {"big": np.full(90, 0.45), "small": np.full(6, 0.9)}}  # fmt: skip
    assert choose_in_folds({NONE: values["a"], **values}, folds=2).chosen == ("b", "b")


def test_a_report_compares_with_none_and_with_the_best() -> None:
    values = {NONE: {"t": np.array([0.2, 0.4])}, "x": {"t": np.array([0.3, 0.5])}}
    value = report(choose_in_folds(values, folds=2))
    assert [row["instruction"] for row in value["instructions"]] == ["x", NONE]
    best, none = value["instructions"]
    assert best["macro"] == pytest.approx(0.4)
    assert best["against_none"]["difference"] == pytest.approx(0.1)
    assert none["against_best"]["difference"] == pytest.approx(-0.1)
    assert value["honest"]["macro"] == pytest.approx(0.4)


def test_too_many_folds() -> None:
    with pytest.raises(ArgumentError, match="7 folds of t leave some empty"):
        choose_in_folds({NONE: {"t": np.zeros(6)}}, folds=7)


def test_instructions_file(world, tmp_path: Path) -> None:
    assert read_instructions(world[0] / "lines.txt") == ["find the skill: ", "plan music staff\nand: "]
    with pytest.raises(ResourceError, match="no instructions at"):
        read_instructions(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(InputError, match="holds no instruction"):
        read_instructions(tmp_path / "empty.txt")


def test_the_command(world, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from lanes.registry import build_lanes
    from ranker.core.sources import load_taxonomy
    from ranker.core.tasks import load_tasks

    pytest.importorskip("matplotlib")
    folder, tasks = world
    picture = tmp_path / "sweep.png"
    assert run(main, [*arguments(folder, tasks, template="{}\\n", plot=str(picture)), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    rows = {row["instruction"]: row for row in value["instructions"]}
    assert list(rows) == sorted(rows, key=lambda name: -rows[name]["macro"])
    assert set(rows) == {NONE, "find the skill: ", "plan music staff\nand: "}
    assert rows[NONE]["against_none"]["difference"] == 0
    assert len(value["honest"]["chosen"]) == 3
    assert value["honest"]["macro"] <= max(row["macro"] for row in rows.values())
    # The same figure from a lane whose config holds the prompt.
    config = load_config(folder / "sweep.yaml")
    spec = config.lanes[0]
    spec.options["query_prompt"] = "plan music staff\nand: \n"
    lane, taxonomy = build_lanes([spec])["dense"], load_taxonomy(config.taxonomy)
    lane.fit(taxonomy)
    values = lane_values(lane, load_tasks(tasks, taxonomy=taxonomy), taxonomy, strip_bullets=True)
    assert rows["plan music staff\nand: "]["macro"] == pytest.approx(macro(values))

    assert run(main, [*arguments(folder, tasks), "--option", "document_prompt"]) == 0
    shown = capsys.readouterr().out
    assert "chosen in folds" in shown
    assert "plan music staff\\nand:" in shown


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"lane": "densest"}, 2, "no lane 'densest'; allowed: dense, bm25"),
        ({"lane": "bm25"}, 2, "unknown option 'query_prompt'"),
        ({"template": "find"}, 2, "has no {}"),
        ({"folds": "1"}, 2, "at least 2"),
        ({"instructions": "nowhere.txt"}, 4, "no instructions at nowhere.txt"),
    ],
)
def test_what_is_wrong_is_named(world, capsys, changes: dict[str, str], code: int, message: str) -> None:
    assert run(main, arguments(*world, **changes)) == code
    assert message in capsys.readouterr().err
