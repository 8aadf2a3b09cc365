"""The silver labels: what is shipped can be read, is complete, and other people's sentences are not in it."""

from __future__ import annotations

import json

import pytest

from ranker.core.errors import ResourceError
from ranker.core.tasks import load_tasks
from train.labels.silver import main, write_silver

REFERENCES = 1813  # rows whose text is a sentence of a public data set, and is looked up


def test_without_sentences_only_our_own_texts_are_written(tmp_path):
    written, left_out = write_silver(tmp_path / "silver")
    task = load_tasks(tmp_path / "silver")[0]
    assert (written, left_out) == (len(task), REFERENCES)
    assert not task.problems
    assert all(set(row.values()) <= {0, 1, 2, 3, 4} and len(row) > 100 for row in task.qrels.values())
    grades = task.qrels["own-000"]  # "Administer medication and monitor vital signs ..."
    assert sum(grade == 4 for grade in grades.values()) == 2
    assert grades["http://data.europa.eu/esco/skill/1fd57242-267e-46df-bd8c-849fdd593a50"] == 4


def test_sentences_are_looked_up_by_their_id(tmp_path):
    sentences = tmp_path / "sentences"
    sentences.mkdir()
    row = {"_id": "skillskape_train-04207", "text": "A sentence of its own."}
    (sentences / "x.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    alone = write_silver(tmp_path / "alone")
    assert write_silver(tmp_path / "more", sentences) == (alone[0] + 1, alone[1] - 1)
    assert "A sentence of its own." in load_tasks(tmp_path / "more")[0].queries


def test_no_sentences_is_an_error_that_says_what_to_do(tmp_path, capsys):
    with pytest.raises(ResourceError, match="leave --sentences out"):
        write_silver(tmp_path / "out", tmp_path)
    assert main(["--out", str(tmp_path / "silver")]) == 0
    assert f"{REFERENCES} left out" in capsys.readouterr().out
