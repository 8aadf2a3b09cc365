"""Graded tasks: both folder layouts, the hub, and rows that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ranker.core import tasks as tasks_module
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.tasks import OFFICIAL_TASKS, load_tasks
from ranker.core.taxonomy import Skill, Taxonomy

GRADED = Path(__file__).resolve().parents[2] / "shared" / "data" / "graded"
BASE = "http://data.europa.eu/esco/skill/"


@pytest.fixture
def taxonomy():
    return Taxonomy.from_skills([Skill(BASE + name, name) for name in ("weld", "solder", "braze")])


def write_task(folder, queries, qrels, *, qrels_path="qrels.tsv"):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [line if isinstance(line, str) else json.dumps(line) for line in queries]
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = folder / qrels_path
    path.parent.mkdir(exist_ok=True)
    rows = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in qrels)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def good(folder, **kwargs):
    return write_task(folder, [{"_id": "q1", "text": "weld it"}], [("q1", BASE + "weld", 4)], **kwargs)


def test_a_folder_per_task(tmp_path, taxonomy):
    good(tmp_path / "b")
    good(tmp_path / "a")
    (tmp_path / "notes").mkdir()
    loaded = load_tasks(tmp_path, taxonomy=taxonomy)
    assert [task.name for task in loaded] == ["a", "b"]
    assert loaded.failed == {}
    assert loaded[0].query_ids == ("q1",)
    assert loaded[0].queries == ("weld it",)
    assert loaded[0].qrels == {"q1": {BASE + "weld": 4}}
    assert loaded[0].problems == ()
    assert [task.name for task in load_tasks(tmp_path, tasks=["b"])] == ["b"]


def test_one_task_folder_itself(tmp_path, monkeypatch):
    good(tmp_path / "house")
    assert [task.name for task in load_tasks(tmp_path / "house")] == ["house"]
    monkeypatch.chdir(tmp_path / "house")
    assert [task.name for task in load_tasks(".")] == ["house"]


def test_split_layout_takes_the_queries_that_the_qrels_name(tmp_path):
    queries = [{"_id": f"q{i}", "text": f"text {i}"} for i in range(4)]
    write_task(tmp_path / "t", queries, [("q0", "u", 1), ("q2", "u", 2)], qrels_path="qrels/validation.tsv")
    write_task(tmp_path / "t", queries, [("q3", "u", 3)], qrels_path="qrels/test.tsv")
    assert load_tasks(tmp_path)[0].query_ids == ("q0", "q2")
    assert load_tasks(tmp_path, "test")[0].queries == ("text 3",)
    (tmp_path / "t" / "qrels" / "test.tsv").unlink()
    with pytest.raises(ResourceError, match=r"no test\.tsv; splits there: validation"):
        load_tasks(tmp_path, "test")


def test_a_flat_file_has_no_splits_and_says_so(tmp_path):
    good(tmp_path / "t")
    (problem,) = load_tasks(tmp_path, "test")[0].problems
    assert "'test' chose nothing" in problem


def test_bad_rows_are_named_and_good_rows_survive(tmp_path, taxonomy):
    folder = write_task(
        tmp_path / "t",
        [
            {"_id": "q1", "text": "weld it"},
            '{"_id": "q2", "text": NaN}',
            {"_id": "q3", "text": 12},
            {"_id": "q1", "text": "again"},
            {"text": "no id"},
            "not json",
            "[1]",
            "",
            {"_id": "q4"},
            {"_id": 5, "text": "a number as id, IDS/IPS \u2028 \U0001f600"},
            {"_id": "q6", "text": ""},
        ],
        [
            ("q1", BASE + "weld", 4),
            ("q1", BASE + "solder", 5),
            ("q1", BASE + "solder", "NaN"),
            ("q1", BASE + "solder", 1.5),
            ("q1", BASE + "solder", "2.0"),
            ("q1", BASE + "solder", 1),
            ("q1", BASE + "gone", 3),
            ("q2", BASE + "weld", 1),
            ("q2", BASE + "braze", 1),
            ("q1", BASE + "braze"),
            ("q1", "", 1),
            ("5", "braze", 0),
        ],
    )
    (task,) = load_tasks(tmp_path, taxonomy=taxonomy)
    assert task.query_ids == ("q1", "5", "q6")
    assert task.queries == ("weld it", "a number as id, IDS/IPS \u2028 \U0001f600", "")
    # A judged skill that the taxonomy lacks stays: the ideal ranking must not become easier.
    assert task.qrels["q1"] == {BASE + "weld": 4, BASE + "solder": 2, BASE + "gone": 3}
    assert task.qrels["5"] == {BASE + "braze": 0}  # the last part of a URI is enough
    assert task.qrels["q6"] == {}
    queries, qrels = folder / "queries.jsonl", folder / "qrels.tsv"
    expected = [
        f"{queries}, line 2: query 'q2' has no text under 'text' but NaN",
        f"{queries}, line 3: query 'q3' has no text under 'text' but 12",
        f"{queries}, line 4: query id 'q1' stands twice; the first is kept",
        f"{queries}, line 5: no query id under '_id'",
        f"{queries}, line 6: not JSON",
        f"{queries}, line 7: not a JSON object",
        f"{queries}, line 9: query 'q4' has no text under 'text' but null",
        f"{qrels}, line 3: score '5' is not a grade",
        f"{qrels}, line 4: score 'NaN' is not a grade",
        f"{qrels}, line 5: score '1.5' is not a grade",
        f"{qrels}, line 7: 'q1' and {BASE}solder are graded 2 and 1; the first is kept",
        f"{qrels}, line 11: score None is not a grade",
        f"{qrels}, line 12: query-id or corpus-id is missing",
        f"{qrels}, line 9: query 'q2' is not among the queries (2 rows left out)",
        f"{qrels}, line 8: skill {BASE}gone is not in the taxonomy",
        f"{folder}: query 'q6' has no judgement; it is not scored",
    ]
    assert len(task.problems) == len(expected), "\n".join(task.problems)
    for wanted in expected:
        assert any(problem.startswith(wanted) for problem in task.problems), (wanted, task.problems)


def test_windows_line_ends_a_byte_order_mark_and_other_column_order(tmp_path):
    good(tmp_path)
    (tmp_path / "qrels.tsv").write_bytes(b"\xef\xbb\xbfscore\tquery-id\tcorpus-id\textra\r\n3\tq1\tu\tx\r\n")
    (task,) = load_tasks(tmp_path)
    assert task.qrels == {"q1": {"u": 3}}
    assert task.problems == ()


def test_missing_column(tmp_path):
    good(tmp_path)
    (tmp_path / "qrels.tsv").write_text("query-id\tskill\tscore\nq1\tu\t3\n")
    with pytest.raises(InputError, match=r"qrels\.tsv, line 1: column missing: corpus-id; found"):
        load_tasks(tmp_path)


def test_nothing_usable(tmp_path):
    write_task(tmp_path / "a", ['{"_id": "q", "text": null}'], [("q", "u", 1)])
    write_task(tmp_path / "b", [{"_id": "q", "text": "x"}], [("q", "u", 9)])
    with pytest.raises(InputError) as caught:
        load_tasks(tmp_path)
    message = str(caught.value)
    assert "  a: " in message
    assert "no usable query" in message
    assert "  b: " in message
    assert "no usable judgement" in message
    assert "line 2: score '9'" in message


def test_a_bad_task_does_not_cost_the_good_one(tmp_path):
    good(tmp_path / "a")
    good(tmp_path / "b")
    (tmp_path / "b" / "qrels.tsv").unlink()
    loaded = load_tasks(tmp_path)
    assert [task.name for task in loaded] == ["a"]
    assert list(loaded.failed) == ["b"]
    assert "no file" in loaded.failed["b"]
    unscored = load_tasks(tmp_path, need_qrels=False)
    assert [task.name for task in unscored] == ["a", "b"]
    assert unscored[1].qrels == {"q1": {}}


def test_files_and_folders_mixed_up(tmp_path):
    with pytest.raises(ResourceError, match="no data at"):
        load_tasks(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds neither"):
        load_tasks(tmp_path)
    good(tmp_path / "t")
    with pytest.raises(InputError, match="is a file; give the folder"):
        load_tasks(tmp_path / "t" / "queries.jsonl")
    good(tmp_path / "u")
    (tmp_path / "u" / "queries.jsonl").unlink()
    (tmp_path / "u" / "queries.jsonl").mkdir()
    with pytest.raises(InputError, match=r"queries\.jsonl is a folder"):
        load_tasks(tmp_path / "u")
    (tmp_path / "t" / "queries.jsonl").write_bytes(b'{"_id": "q", "text": "\xff"}')
    with pytest.raises(InputError, match="not UTF-8"):
        load_tasks(tmp_path / "t")


def test_unknown_split_and_task(tmp_path):
    good(tmp_path / "t")
    with pytest.raises(ArgumentError, match="unknown split 'train'; allowed: validation, test"):
        load_tasks(tmp_path, "train")
    with pytest.raises(ArgumentError, match=r"no task x in .*; there are: t"):
        load_tasks(tmp_path, tasks=["t", "x"])
    with pytest.raises(ArgumentError, match=r"unknown official task 'x'; allowed: house \(Skill Ex"):
        load_tasks("hub", tasks=["x"])
    with pytest.raises(ArgumentError, match="made from a taxonomy"):
        load_tasks("esco")


# --- the hub, with its answers made up here ---------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    """Replace the hub by a dict of rows by (data set, part, split)."""
    datasets = pytest.importorskip("datasets", reason="datasets is in the extra 'train'")
    graded_beir = pytest.importorskip("workrb.tasks.ranking.graded_beir", reason="workrb is in the extra 'train'")
    store = {}

    def load_dataset(name, part, split):
        if (name, part, split) not in store:
            raise ConnectionError(f"cannot reach {name}")
        return datasets.Dataset.from_list(store[name, part, split])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(graded_beir, "load_dataset", load_dataset)
    monkeypatch.setattr(tasks_module, "_hub_reachable", lambda endpoint: True)
    return store


def publish(store, name, split):
    store[name, "corpus", "corpus"] = [{"_id": BASE + t, "title": t, "text": ""} for t in ("weld", "solder", "braze")]
    store[name, "queries", split] = [{"_id": "b", "text": "weld it"}, {"_id": "a", "text": "solder it"}]
    store[name, "qrels", split] = [
        {"query-id": "b", "corpus-id": BASE + "weld", "score": 4},
        {"query-id": "a", "corpus-id": BASE + "solder", "score": 3},
        {"query-id": "a", "corpus-id": BASE + "weld", "score": 1},
    ]


def test_official_tasks_load_and_the_rest_are_named(hub, taxonomy):
    publish(hub, "TechWolf/Skill-extraction-House-graded", "validation")
    loaded = load_tasks("hub", taxonomy=taxonomy)
    (task,) = loaded
    assert task.name == "Skill Extraction House Graded"
    assert task.query_ids == ("b", "a")
    assert task.qrels["a"] == {BASE + "solder": 3, BASE + "weld": 1}
    assert task.problems == ()
    # TechWolf has no validation split and is not asked for.
    assert sorted(loaded.failed) == sorted(
        official.name for official in OFFICIAL_TASKS if official.key in {"tech", "skillskape", "skillnorm"}
    )
    assert all("cannot reach TechWolf/" in reason for reason in loaded.failed.values())


def test_every_official_name_is_workrbs(hub):
    workrb_tasks = pytest.importorskip("workrb.tasks", reason="workrb is in the extra 'train'")
    for name in ("extraction-House", "extraction-Tech", "extraction-SkillSkape", "normalisation-ESCO"):
        publish(hub, f"TechWolf/Skill-{name}-graded", "validation")
    loaded = load_tasks("hub", tasks=["house", "tech", "Skill Extraction SkillSkape Graded", "skillnorm"])
    assert loaded.failed == {}
    assert [task.name for task in loaded] == [
        "Skill Extraction House Graded",
        "Skill Extraction Tech Graded",
        "Skill Extraction SkillSkape Graded",
        "Skill Normalization ESCO Graded",
    ]
    techwolf = next(task for task in OFFICIAL_TASKS if task.key == "techwolf")
    assert hasattr(workrb_tasks, techwolf.workrb_class)


def test_hub_out_of_reach_names_each_task_with_its_reason(hub):
    with pytest.raises(ResourceError) as caught:
        load_tasks("hub", tasks=["house", "techwolf"])
    message = str(caught.value)
    assert "Skill Extraction House Graded: neither the hub nor its cache gave it (ConnectionError: cannot" in message
    assert "Skill Extraction TechWolf Graded: has no validation split; it has: test" in message


def test_a_hub_that_does_not_answer_is_asked_offline(hub, monkeypatch):
    import datasets
    import huggingface_hub

    seen = []

    def adapter():
        """Return how the hub's client would send a request now."""
        return type(huggingface_hub.utils.get_session().get_adapter("https://hub")).__name__

    def load_dataset(name, part, split):
        seen.append((datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE, adapter()))
        raise ConnectionError("offline")

    monkeypatch.setattr("workrb.tasks.ranking.graded_beir.load_dataset", load_dataset)
    monkeypatch.setattr(tasks_module, "_hub_reachable", lambda endpoint: False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    huggingface_hub.utils.reset_sessions()
    connected = adapter()
    with pytest.raises(ResourceError):
        load_tasks("hub", tasks=["house"])
    assert seen == [(True, True, "OfflineAdapter")]
    assert not datasets.config.HF_HUB_OFFLINE
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    assert adapter() == connected != "OfflineAdapter", "a session made offline would stay so"


@pytest.mark.skipif(not GRADED.is_dir(), reason="the graded validation data is not beside the checkout")
def test_the_validation_data():
    loaded = load_tasks(GRADED)
    assert {task.name: len(task) for task in loaded} == {
        "house": 56,
        "tech": 56,
        "skillskape": 44,
        "skillnorm": 32,
        "generic": 64,
    }
    assert sum(len(judged) for task in loaded for judged in task.qrels.values()) == 88169
    assert not any(task.problems for task in loaded)
    first = next(task for task in loaded if task.name == "house")
    assert first.query_ids[0] == "house-val-00"
    assert first.qrels["house-val-00"][BASE + "001115fb-569f-4ee6-8381-c6807ef2527f"] == 1
