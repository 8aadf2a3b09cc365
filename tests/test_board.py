"""The board: figures by hand and equal to scipy's, its report, and runs as files."""

from __future__ import annotations

import base64
import json
import re
import uuid
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr
from small_world import BASE, write_esco, write_tasks

from ranker import board, runs
from ranker.core import metrics
from ranker.core.cli import run
from ranker.core.errors import ArgumentError, InputError
from ranker.core.tasks import GradedTask, load_tasks


def write_run(path, name, tasks, noise, seed=0):
    """Write a challenge file that ranks by grade plus noise."""
    rng = np.random.default_rng(seed)
    by_task = {}
    for task in tasks:
        scores = {
            query: {uri.removeprefix(BASE): grade + noise * rng.normal() for uri, grade in task.qrels[query].items()}
            for query in task.query_ids
        }
        by_task[task.name] = {"en": {"num_queries": len(task), "num_targets": 144, "scores": scores}}
    path.write_text(json.dumps({name: by_task}), encoding="utf-8")
    return path


@pytest.fixture
def world(tmp_path):
    data = write_tasks(tmp_path / "data", n_queries=8)
    tasks = load_tasks(data)
    files = [
        write_run(tmp_path / f"{name}.json", name, tasks, noise, seed=i)
        for i, (name, noise) in enumerate({"poor": 4.0, "<good> & 'co'": 0.5, "middle": 1.5}.items())
    ]
    return data, files


def one_task(qrels):
    return GradedTask("t", "validation", tuple(qrels), tuple(qrels), qrels)


def test_figures_of_a_ranking_by_hand():
    task = one_task({"q": {"x/a": 4, "x/b": 0, "x/c": 4, "x/d": 2}, "r": {"x/a": 4}})
    graded = runs.grade_run({"q": {"b": 3.0, "a": 2.0, "d": 2.0, "z": 1.0}}, task)
    assert graded.order == (("b", "a", "d", "z"), ())  # equal scores by skill
    assert graded.grades[0, :5].tolist() == [0, 4, 2, metrics.UNJUDGED, metrics.ABSENT]
    assert graded.missing == 1
    system = board.measure("s", {"t": graded})
    dcg = 15 / np.log2(3) + 3 / np.log2(4)
    ideal = 15 + 15 / np.log2(3) + 3 / np.log2(4)
    assert system.graded == pytest.approx(dcg / ideal / 2)  # the query without a row counts 0
    assert system.binary == pytest.approx((1 / 2) / 2 / 2)  # one of two gold skills, at rank 2
    assert system.gold_recall == pytest.approx(0.5 / 2)
    assert system.nonsense == {5: pytest.approx(1 / 5 / 2), 10: pytest.approx(1 / 10 / 2)}
    assert system.composition == {"0": 0.5, "1": 0, "2": 0.5, "3": 0, "4": 0.5, "holes": 0.5}
    with pytest.raises(InputError, match="none of the 2 queries"):
        runs.grade_run({"x": {}}, task)


def test_order_agreement_is_scipys_on_the_first_by_the_graded_score():
    rng = np.random.default_rng(0)
    base = board.measure("s", {"t": runs.grade_run({"q": {"a": 1.0}}, one_task({"q": {"x/a": 4}}))})
    scores = sorted(rng.random(22).tolist(), reverse=True)
    systems = [
        board.replace(base, name=f"s{i}", graded=score, binary=score + rng.normal(0, 0.2))
        for i, score in enumerate(scores)
    ]
    found = board.order_agreement(systems)
    assert set(found) == {"all", "top 12", "top 20"}
    for name, k in (("all", 22), ("top 12", 12), ("top 20", 20)):
        pair = [s.graded for s in systems[:k]], [s.binary for s in systems[:k]]
        assert found[name].systems == k
        assert found[name].kendall == pytest.approx(kendalltau(*pair).statistic)
        assert found[name].spearman == pytest.approx(spearmanr(*pair).statistic)
    assert set(board.order_agreement(systems[:15])) == {"all", "top 12"}
    assert board.order_agreement(systems[:1]) == {}


def test_a_board_orders_systems_and_says_what_it_cannot_tell(world):
    data, files = world
    found = board.analyse(runs.read_runs(files), load_tasks(data), resamples=500)
    assert [system.name for system in found.systems] == ["<good> & 'co'", "middle", "poor"]
    first, second = found.duels
    assert (first.first, first.second, second.second) == ("<good> & 'co'", "middle", "poor")
    assert first.found.difference == pytest.approx(found.systems[0].graded - found.systems[1].graded)
    assert not first.too_close
    again = board.analyse(
        {"a": runs.read_run(files[1]), "b": runs.read_run(files[1])}, load_tasks(data), resamples=100
    )
    assert again.duels[0].found.difference == 0
    assert 0 < found.prior < found.systems[0].graded
    lengths = [min(100, len(task.qrels[query])) for task in load_tasks(data) for query in task.query_ids]
    assert sum(found.systems[0].composition.values()) == pytest.approx(np.mean(lengths))  # tasks of equal size


def test_tasks_that_a_run_lacks_are_left_out_and_official_names_match(world, capsys):
    data, files = world
    whole = runs.read_run(files[0])
    part = runs.Run("part", {"task1": whole.tasks["task1"]})
    found = board.analyse({"whole": whole, "part": part}, load_tasks(data), resamples=50)
    assert found.tasks == {"task1": 8}
    assert "task0: left out, not in part" in capsys.readouterr().err
    with pytest.raises(InputError, match="no task is in every run"):
        board.analyse({"none": runs.Run("none", {})}, load_tasks(data))
    official = runs.Run("o", {"Skill Extraction House Graded": {"q": {"a": 1.0}}})
    assert runs.rows_of(official, "house") == {"q": {"a": 1.0}}
    assert runs.rows_of(official, "tech") is None


class Checker(HTMLParser):
    """Collects the text of a page, and fails on a tag that is not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_command_writes_one_page_that_needs_nothing_else(world, tmp_path, capsys):
    data, files = world
    out, esco = tmp_path / "out" / "board.html", write_esco(tmp_path / "esco")
    arguments = [*map(str, files), "--qrels", str(data), "--size", "middle=0.02", "--out", str(out)]
    assert run(board.main, arguments) == 0
    assert "middle minus poor" in capsys.readouterr().out
    assert "give <code>--taxonomy</code>" in out.read_text(encoding="utf-8")
    assert run(board.main, [*arguments, "--taxonomy", str(esco), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    page = out.read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert "<good> & 'co'" in checker.texts  # escaped in the source, whole for the reader
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(images) == 3
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)
    assert not re.search(r'(src|href)="http', page)

    def shown(values, digits=4):
        return [f"{value:.{digits}f}" for value in values if value is not None]

    wanted = []
    for system in found["systems"]:
        wanted += shown([system["graded"], system["binary"], system["gold_recall"], *system["nonsense"].values()])
        wanted += shown([system["hard"], system["size"], *system["by_task"].values()])
        wanted += shown(system["composition"].values(), 1)
    for order in found["orders"].values():
        wanted += shown([order["kendall"], order["spearman"]], 3)
    for duel in found["duels"]:
        wanted += shown([duel["adjusted_p"], duel["found"]["difference"], duel["found"]["minimum_detectable"]])
        wanted += map(str, duel["more_queries"].values())
    wanted += shown([found["prior"]])
    for row in found["overlap"]:
        wanted += [str(row["pairs"]), *shown([row["label"], row["any_label"], row["stem"]], 3)]
    assert len(wanted) > 60
    assert set(wanted) <= set(checker.texts)


def test_command_as_json_with_labels(world, tmp_path, capsys):
    data, files = world
    esco = write_esco(tmp_path / "esco")
    assert run(board.main, [*map(str, files), "--qrels", str(data), "--taxonomy", str(esco), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_grade = {row["grade"]: row for row in found["overlap"]}
    # The texts of this world name verb and thing of the right skill in a row, and another skill's thing at most.
    assert by_grade[4]["label"] == 1.0
    assert by_grade[1]["label"] < 0.5
    assert by_grade[2]["stem"] == 1.0
    assert all(0 <= system["hard"] <= 1 for system in found["systems"] if system["hard"] is not None)
    assert "per_query" not in found["systems"][0]
    assert all(isinstance(duel["too_close"], bool) for duel in found["duels"])


def test_runs_of_one_name_are_told_apart_and_bad_files_are_named(world, tmp_path):
    data, files = world
    tasks = load_tasks(data)
    (tmp_path / "other").mkdir()
    twin = write_run(tmp_path / "twin.json", "middle", tasks, 1.0)
    assert list(runs.read_runs([files[2], twin])) == ["middle (middle)", "middle (twin)"]
    with pytest.raises(ArgumentError, match="share model and file name"):
        runs.read_runs([twin, write_run(tmp_path / "other" / "twin.json", "middle", tasks, 1.0)])
    twin.write_text(json.dumps({"m": {"t": {"en": {"num_queries": 2, "num_targets": 9, "scores": {"q": {"a": "x"}}}}}}))
    with pytest.raises(InputError, match="num_queries"):
        runs.read_run(twin)
    payload = {"num_queries": 1, "num_targets": 9, "scores": {"q": {f"http://x/{uuid.UUID(int=1)}": 1.0}}}
    twin.write_text(json.dumps({"m": {"t": {"en": payload}}}))
    assert runs.read_run(twin).tasks["t"]["q"] == {str(uuid.UUID(int=1)): 1.0}


def test_sizes_come_from_the_field_or_the_command():
    assert board.read_sizes(["a=b=0.5"], ["a=b", "BM25"]) == {"BM25": 0.0, "a=b": 0.5}
    for bad in ("x=1", "a=", "a=-1", "a=nan"):
        with pytest.raises(ArgumentError, match="--size"):
            board.read_sizes([bad], ["a"])
