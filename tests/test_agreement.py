"""Agreement: statistics equal to scikit-learn and scipy, bootstraps, manifests and the command."""

from __future__ import annotations

import csv
import json
import math
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr, wilcoxon
from sklearn.metrics import cohen_kappa_score, confusion_matrix
from small_world import BASE, write_esco, write_tasks

from ranker import agreement as command
from ranker import labels
from ranker.core import kappa
from ranker.core.cli import run
from ranker.core.errors import ArgumentError, InputError
from ranker.core.tasks import load_tasks
from ranker.core.taxonomy import Skill, Taxonomy

GRADES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=40)


def pairs_of(*grades, query=None):
    matrix = np.array(grades, dtype=np.int64)
    zeros = np.zeros(matrix.shape[1], dtype=np.int64)
    return labels.Aligned(matrix, zeros, zeros if query is None else query)


def noisy(seed=0, n=400, wrong=(0.2, 0.5)):
    """Return a reference and two judges, of which the second errs more often."""
    draw = np.random.default_rng(seed)
    reference = draw.integers(0, 5, n)
    judges = [
        np.where(draw.random(n) < share, np.clip(reference + draw.choice([-1, 1], n), 0, 4), reference)
        for share in wrong
    ]
    return reference, *judges


@settings(deadline=None)
@given(GRADES)
def test_statistics_are_those_of_sklearn_and_scipy(rows):
    a, b = np.array(rows).T
    found = command.agreement(pairs_of(a, b), resamples=10)
    assert found.confusion == confusion_matrix(a, b, labels=range(5)).tolist()
    if set(a) != set(b) or len(set(a)) > 1:  # else kappa is 0 / 0
        weighted = cohen_kappa_score(a, b, labels=list(range(5)), weights="quadratic")
        assert found.weighted_kappa == pytest.approx(weighted, abs=1e-12)
        assert found.kappa == pytest.approx(cohen_kappa_score(a, b, labels=list(range(5))), abs=1e-12)
    else:
        assert math.isnan(found.weighted_kappa)
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert found.spearman == pytest.approx(spearmanr(a, b).statistic)
    assert found.exact + found.generous + found.strict == pytest.approx(1)


def test_figures_by_hand():
    found = command.agreement(pairs_of([0, 0, 2, 4], [0, 1, 4, 4]), resamples=10)
    assert (found.exact, found.within_one, found.generous, found.strict) == (0.5, 0.75, 0.5, 0.0)
    assert found.calibration[0] == 0.0
    assert found.calibration[1] == 0.0
    assert found.calibration[4] == 3.0  # 2 and 4 were graded 4 by the second
    assert math.isnan(found.calibration[2])


def test_collapsed_grades_agree_where_only_3_and_4_were_confused():
    a, b = np.array([0, 3, 4, 1]), np.array([0, 4, 3, 1])
    found = command.agreement(pairs_of(kappa.collapse(a), kappa.collapse(b)), k=4, resamples=10)
    assert found.weighted_kappa == 1.0
    assert len(found.confusion) == 4


def test_resamples_keep_the_size_of_every_stratum_and_have_the_observed_mean():
    reference, a, b = noisy()
    draws = kappa.resampled(np.array([reference, a, b]), reference, None, 5, resamples=4000, seed=1)
    assert draws.shape == (4000, 5, 5, 5)
    assert (draws.sum(axis=(2, 3)) == np.bincount(reference, minlength=5)).all()
    observed = kappa.confusion(reference, a, 5)
    assert draws.sum(axis=3).mean(axis=0) == pytest.approx(observed, abs=0.6)


def test_resampled_queries_equal_a_plain_bootstrap():
    reference, a, _ = noisy(n=60)
    query = np.arange(60) // 4
    draws = kappa.resampled(np.array([reference, a]), np.zeros(60, dtype=int), query, 5, resamples=3000, seed=0)
    fast = kappa.kappa(draws, quadratic=True)
    rng = np.random.default_rng(5)
    slow = []
    for _ in range(3000):
        rows = (rng.integers(0, 15, 15)[:, None] * 4 + np.arange(4)).ravel()
        slow.append(kappa.kappa(kappa.confusion(reference[rows], a[rows], 5), quadratic=True))
    assert fast.mean() == pytest.approx(np.mean(slow), abs=0.004)
    assert fast.std() == pytest.approx(np.std(slow), rel=0.1)


def test_the_better_judge_is_told_from_the_worse_and_equals_are_not():
    reference, good, bad = noisy()
    for unit in command.UNITS:
        pairs = pairs_of(reference, good, bad, query=np.arange(400) // 8)
        found = command.compare_judges(pairs, unit=unit, resamples=2000)
        expected = cohen_kappa_score(reference, good, weights="quadratic")
        expected -= cohen_kappa_score(reference, bad, weights="quadratic")
        assert found.difference == pytest.approx(expected)
        assert 0 < found.low < found.difference < found.high
        assert found.p_value < 0.01
        assert found.signed_rank_p < 0.01
    pairwise = command.compare_judges(pairs, resamples=100)
    test = wilcoxon(abs(good - reference), abs(bad - reference))
    assert (pairwise.signed_rank, pairwise.signed_rank_p) == (test.statistic, test.pvalue)
    same = command.compare_judges(pairs_of(reference, good, good), resamples=100)
    assert (same.difference, same.p_value, same.signed_rank_p) == (0.0, 1.0, 1.0)


# --- labels and manifests --------------------------------------------------------------------------------------------


@pytest.fixture
def taxonomy():
    text = 'weld "ship" hulls, \n</script><b>'
    return Taxonomy.from_skills([Skill(f"{BASE}{i:03d}", f"{text} {i}", description="=1+1; é") for i in range(144)])


def test_align_matches_pairs_tasks_and_single_tasks_of_any_name():
    one = {"house": {labels.Pair("q", "a"): 1, labels.Pair("q", "b"): 2}, "x": {labels.Pair("q", "a"): 3}}
    two = {"Skill Extraction House Graded": {labels.Pair("q", "b"): 4, labels.Pair("r", "a"): 0}}
    assert labels.align([one, two]).grades.tolist() == [[2], [4]]
    assert labels.align([{"mine": one["house"]}, two]).grades.tolist() == [[2], [4]]
    with pytest.raises(InputError, match="share no pair"):
        labels.align([{"a": {labels.Pair("q", "a"): 1}}, {"b": {labels.Pair("q", "b"): 1}}])


def test_a_manifest_is_stratified_blind_and_repeatable(tmp_path, taxonomy):
    tasks = load_tasks(write_tasks(tmp_path / "data"))
    items, drawn = labels.draw_items(tasks, taxonomy, per_grade=8, seed=1)
    grades = {(t.name, q, labels.tail(u)): g for t in tasks for q in t.query_ids for u, g in t.qrels[q].items()}
    assert drawn == {0: 8, 1: 8, 2: 8, 3: 0, 4: 8}
    for grade, n in drawn.items():
        assert sum(grades[item[:3]] == grade for item in items) == n
    assert len({item[:3] for item in items}) == len(items)
    assert labels.draw_items(tasks, taxonomy, per_grade=8, seed=1)[0] == items
    assert labels.draw_items(tasks, taxonomy, per_grade=8, seed=2)[0] != items
    # One query's pairs stand together, and within it the grade decides nothing about the place.
    runs = [item[:2] for i, item in enumerate(items) if not i or item[:2] != items[i - 1][:2]]
    assert len(runs) == len(set(runs))
    assert "grade" not in labels.Item._fields


def test_a_manifest_filled_in_is_read_back_and_bad_rows_are_named(tmp_path, taxonomy, capsys):
    tasks = load_tasks(write_tasks(tmp_path / "data"))
    items, _ = labels.draw_items(tasks, taxonomy, per_grade=3)
    path = tmp_path / "pairs.csv"
    labels.write_manifest(path, items)
    with pytest.raises(InputError, match="holds no grade"):
        labels.read_labels(path)
    rows = list(csv.DictReader(path.open(encoding="utf-8-sig", newline="")))
    assert [tuple(row.values())[:-1] for row in rows] == [tuple(item) for item in items]
    assert {row["grade"] for row in rows} == {""}
    for i, row in enumerate(rows):
        row["grade"] = " 3 " if i else "5"
    rows[1]["grade"] = ""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, labels.COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    found = labels.read_labels(path)
    assert sum(map(len, found.values())) == len(items) - 2
    assert {grade for task in found.values() for grade in task.values()} == {3}
    said = capsys.readouterr().err
    assert "'5' is not a grade" in said
    assert "1 pairs are not graded yet" in said


def test_the_page_holds_the_pairs_and_no_text_can_end_its_script(tmp_path, taxonomy):
    items, _ = labels.draw_items(load_tasks(write_tasks(tmp_path / "data")), taxonomy, per_grade=2)
    labels.write_manifest(tmp_path / "pairs.html", items)
    page = (tmp_path / "pairs.html").read_text(encoding="utf-8")
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    value = json.loads(data.group(1))
    assert [labels.Item(*row) for row in value["items"]] == items
    assert tuple(value["columns"]) == labels.COLUMNS
    assert "http" not in page.replace(BASE, "")  # it needs no network
    with pytest.raises(ArgumentError, match="a manifest is a"):
        labels.write_manifest(tmp_path / "pairs.txt", items)


def test_command_from_manifest_to_comparison(tmp_path, capsys):
    data = write_tasks(tmp_path / "data", n_queries=20)
    esco = write_esco(tmp_path / "esco")
    manifest = tmp_path / "pairs.csv"
    arguments = [str(data), "--make-manifest", str(manifest), "--per-grade", "20", "--taxonomy", str(esco), "--json"]
    assert run(command.main, arguments) == 0
    assert json.loads(capsys.readouterr().out)["by_grade"] == {"0": 20, "1": 20, "2": 20, "3": 0, "4": 20}
    truth = labels.read_labels(data)
    rows = list(csv.DictReader(manifest.open(encoding="utf-8-sig", newline="")))
    draw = random.Random(0)
    for name, error in (("people.csv", 0.0), ("poor.csv", 0.6)):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, labels.COLUMNS)
            writer.writeheader()
            for row in rows:
                grade = truth[row["task"]][labels.Pair(row["query_id"], row["skill_id"])]
                writer.writerow({**row, "grade": draw.randrange(5) if draw.random() < error else grade})

    people, poor = str(tmp_path / "people.csv"), str(tmp_path / "poor.csv")
    assert run(command.main, [people, str(data), "--json", "--resamples", "200"]) == 0
    found = json.loads(capsys.readouterr().out)["agreement"]["A / B"]
    assert (found["weighted_kappa"], found["exact"], found["pairs"]) == (1.0, 1.0, 80)

    plot = tmp_path / "out" / "agreement.png"
    judges = [str(data), poor, "--reference", people, "--collapse", "--unit", "query", "--resamples", "200"]
    assert run(command.main, [*judges, "--plot", str(plot)]) == 0
    said = capsys.readouterr().out
    assert "reference / B" in said
    assert re.search(r"A minus B, weighted kappa with the reference: \+0\.\d", said)
    assert plot.read_bytes().startswith(b"\x89PNG")

    assert run(command.main, [people]) == 2
    assert run(command.main, [people, str(data), "--plot", str(tmp_path / "x.nope")]) == 2
    assert "unknown format" in capsys.readouterr().err
