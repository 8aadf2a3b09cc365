"""The library: whole documents, explanations, folders that hold a system, threads, and no side effects."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import socket
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from setuptools import find_packages
from small_world import BASE, write_config, write_esco
from tiny_system import write_system

import ranker as package
from ranker import Explanation, SkillRanker, Span, Tagging
from ranker.core.config import CONFIG_DIR, load_config
from ranker.core.errors import ArgumentError, ResourceError
from ranker.core.taxonomy import Skill, Taxonomy
from ranker.document import SPEAKS, UNCALIBRATED, split_document

ROOT = Path(__file__).resolve().parents[1]
VACANCY = """About us

We value people. We value people.
\u2022 You weld steel frames, e.g. in St. Mary's yard.
\u2022 Paint and weld steel frames
Call us today!
"""
UGLY = [
    *("", "  \n ", None, 7, float("nan"), b"weld", ["weld"], "\U0001f680\U0001f680", "...", "\udcff\ud800", "\x00\x07"),
    *("\u6eb6\u63a5\u3057\u307e\u3059\u3002\u5857\u88c5", "\u041f\u0440\u0438. \u0645\u0631\u062d"),
    *("x" * 100_000, "50lbs. IDS/IPS sensors are collecting. C++", "weld steel frames " * 3000, "- \n" * 5000),
]


class ByHand:
    """Stands in for a trained bag: a skill is as probable as the share of its label's words that stand in the text."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self.labels = [set(label.split()) for label in taxonomy.label]
        self.seen: list[str] = []

    def score(self, inputs):
        self.seen += inputs.queries
        shares = np.zeros(inputs.pool.shape, np.float32)
        for i, query in enumerate(inputs.queries):
            words = set(re.findall(r"\w+", query.casefold()))
            shares[i] = [len(self.labels[row] & words) / len(self.labels[row]) for row in inputs.pool[i]]
        return SimpleNamespace(scores=shares * 2, probabilities={2: shares * np.float32(0.9), 3: shares / 2})

    def contributions(self, inputs, position):
        return {"words": 1.0}


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> SkillRanker:
    folder = tmp_path_factory.mktemp("plain")
    return SkillRanker.load(write_config(folder / "small.yaml", write_esco(folder / "esco"), size=140))


@pytest.fixture
def by_hand(plain, monkeypatch) -> SkillRanker:
    monkeypatch.setattr(plain.pipeline, "fusion", ByHand(plain.taxonomy))
    return plain


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKER_CACHE", str(tmp_path_factory.mktemp("cache")))
        return write_system(tmp_path_factory.mktemp("system") / "tiny")


@pytest.fixture(scope="module")
def tiny(folder) -> SkillRanker:
    return SkillRanker.load(folder)


def texts(tagging: Tagging, spans: tuple[Span, ...]) -> list[str]:
    return [tagging.document[span.start : span.end] for span in spans]


def test_a_document_by_hand(by_hand):
    (tagging,) = by_hand.tag([VACANCY], top_k=2, min_probability=0.7)
    assert [(skill.label, round(skill.probability, 6), skill.score) for skill in tagging.skills] == [
        ("weld steel frames", 0.9, 2.0),
        ("paint steel frames", 0.9, 2.0),
    ]
    spans = {skill.label: texts(tagging, skill.spans) for skill in tagging.skills}
    both = "Paint and weld steel frames"
    assert spans == {
        "weld steel frames": ["You weld steel frames, e.g. in St. Mary's yard.", both],
        "paint steel frames": [both],
    }
    assert texts(tagging, tagging.dropped) == ["About us", *["We value people."] * 2, "Call us today!"]
    assert tagging.reason == ""
    assert tagging.document == VACANCY
    assert tagging.skills[0].evidence["matched"] == tagging.skills[0].label
    # Every sentence is ranked once, the repeated one too.
    assert len(by_hand.pipeline.fusion.seen) == len(set(by_hand.pipeline.fusion.seen)) == 5


def test_spans_are_those_where_the_skill_reaches_the_threshold(by_hand):
    # Two words of three: 0.6. One: 0.3.
    document = "You weld steel. You weld steel frames."
    label = "weld steel frames"

    def spans(least):
        (tagging,) = by_hand.tag([document], min_probability=least)
        return {skill.label: texts(tagging, skill.spans) for skill in tagging.skills}.get(label), tagging

    assert spans(0.5)[0] == ["You weld steel frames.", "You weld steel."]  # the one that says it most strongly first
    assert spans(0.7)[0] == ["You weld steel frames."]
    assert texts(spans(0.7)[1], spans(0.7)[1].dropped) == ["You weld steel."]
    nothing, tagging = spans(0.95)
    assert nothing is None
    assert (tagging.skills, tagging.reason) == ((), "no sentence reaches probability 0.95")
    assert len(tagging.dropped) == 2
    everything = spans(0.0)[1]
    assert len(everything.skills) == by_hand.config.top_k
    assert by_hand.tag([document])[0] == by_hand.tag([document], min_probability=SPEAKS)[0]


def test_boilerplate_speaks_for_nothing_whatever_is_asked_of_it(by_hand, monkeypatch):
    (tagging,) = by_hand.tag(["We value people. You weld steel frames."], min_probability=0.0)
    assert texts(tagging, tagging.dropped) == ["We value people."]
    assert all(texts(tagging, skill.spans) == ["You weld steel frames."] for skill in tagging.skills)


def test_without_probabilities_each_sentence_speaks_for_its_best(plain):
    document = "We weld steel frames. We paint stone walls."
    (tagging,) = plain.tag([document])
    best = [ranking.skills for ranking in plain.rank(document.split(". "), top_k=UNCALIBRATED)]
    assert {skill.uri for skill in tagging.skills} == {skill.uri for skills in best for skill in skills}
    assert [skill.score for skill in tagging.skills] == sorted((skill.score for skill in tagging.skills), reverse=True)
    assert all(skill.probability is None for skill in tagging.skills)
    assert tagging.dropped == ()
    with pytest.raises(ArgumentError, match="no calibrated probabilities"):
        plain.tag([document], min_probability=0.5)


def test_wrong_calls_are_refused(plain):
    with pytest.raises(ArgumentError, match=r"tag takes a list of documents; write tag\(\[document\]\)"):
        plain.tag(VACANCY)
    with pytest.raises(ArgumentError, match="top_k must be at least 1"):
        plain.tag([VACANCY], top_k=0)


def test_ugly_documents_get_a_reason_and_cost_the_others_nothing(by_hand):
    alone = by_hand.tag([VACANCY])[0]
    taggings = by_hand.tag([VACANCY, *UGLY, VACANCY])
    assert taggings[0] == taggings[-1] == alone
    reasons = [tagging.reason for tagging in taggings[1:-1]]
    assert reasons[:11] == [
        "the text is empty", "the text is empty", "not a text but NoneType", "not a text but int",
        "not a text but float", "not a text but bytes", "not a text but list", "the text holds no letter or digit",
        "the text holds no letter or digit", "the text holds no letter or digit", "the text holds no letter or digit",
    ]  # fmt: skip
    assert all(bool(tagging.skills) != bool(tagging.reason) for tagging in taggings)
    for document, tagging in zip(UGLY, taggings[1:-1], strict=True):
        assert tagging.document == (document if isinstance(document, str) else "")
        spans = {span for skill in tagging.skills for span in skill.spans} | set(tagging.dropped)
        assert sorted(spans, key=lambda span: span.start) == (split_document(tagging.document))
        json.dumps(tagging.to_dict())


def test_tagging_depends_on_neither_batch_nor_order(tiny):
    documents = [VACANCY, "You repair car engines. You sell leather shoes.", *UGLY[:8], "Plan roof tiles and cut them."]
    together = tiny.tag(documents, min_probability=0.0)
    assert tiny.tag(documents[::-1], min_probability=0.0)[::-1] == together
    assert [tiny.tag([document], min_probability=0.0)[0] for document in documents] == together


def test_explanations_agree_with_the_ranking(tiny):
    text = "You weld steel frames."
    ranking = tiny.rank([text])[0]
    for place in (0, 7, 40):
        skill = ranking.skills[place]
        explanation = tiny.explain(text, skill.uri)
        assert (explanation.rank, explanation.score) == (place + 1, skill.score)
        assert explanation.probability == skill.probability
        assert (explanation.query, explanation.label, explanation.reason) == (text, skill.label, "")
        assert {name: round(lane["z"], 2) for name, lane in explanation.lanes.items()} == skill.evidence["lanes"]
        assert explanation.matched == skill.evidence.get("matched")
        sizes = list(map(abs, explanation.contributions.values()))
        assert sizes == sorted(sizes, reverse=True)
        assert set(explanation.contributions) <= set(tiny.pipeline.fusion.bag.names)
        row = tiny.taxonomy.index[skill.uri]
        for name, scores in tiny.pipeline.lane_scores(tiny.prepare([text])[0]).items():
            order = np.lexsort((np.arange(len(scores[0])), -scores[0]))
            assert explanation.lanes[name]["rank"] == order.tolist().index(row) + 1
            assert explanation.lanes[name]["score"] == float(scores[0, row])
        assert tiny.explain(text, skill.label) == explanation


def test_explanations_of_what_is_not_ranked(tiny):
    text = "You weld steel frames."
    inside = {skill.uri for skill in tiny.rank([text])[0].skills}
    outside = next(uri for uri in tiny.taxonomy.uri if uri not in inside)
    explanation = tiny.explain(text, outside)
    assert (explanation.rank, explanation.score, explanation.probability) == (None, None, None)
    assert explanation.contributions == explanation.columns == {}
    reason = r"at place \d+ of the lanes' weighted sum, and the pool holds the first 100"
    assert re.fullmatch(reason, explanation.reason)
    assert set(explanation.lanes) == {"bm25", "tfidf", "dense"}
    for bad, reason in (("", "the text is empty"), ("..", "the text holds no letter or digit"), (None, "not a text")):
        explanation = tiny.explain(bad, "weld steel frames")
        assert explanation.reason.startswith(reason)
        assert (explanation.uri, explanation.rank, explanation.lanes) == (f"{BASE}000", None, {})


def test_explanations_without_a_bag(plain):
    explanation = plain.explain("You weld steel frames.", "weld steel frames")
    assert (explanation.rank, explanation.matched, explanation.probability) == (1, "weld steel frames", None)
    assert explanation.contributions == {}


def test_a_skill_that_is_none_or_several_is_refused(plain):
    with pytest.raises(ArgumentError, match="holds no skill 'juggling'"):
        plain.explain("weld", "juggling")
    skills = [Skill("urn:1", "weld", ("join metal",)), Skill("urn:2", "solder", ("join metal",))]
    with pytest.raises(ArgumentError, match=r"2 skills are called 'join metal'; .*weld \(urn:1\), solder \(urn:2\)"):
        SkillRanker(plain.config, Taxonomy.from_skills(skills)).explain("weld", "join metal")


def test_a_folder_holds_a_whole_system_and_can_be_moved(tiny, folder, tmp_path, monkeypatch):
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    expected = tiny.rank([VACANCY], top_k=5)
    assert SkillRanker.load(moved).rank([VACANCY], top_k=5) == expected
    monkeypatch.chdir(moved.parent)
    assert SkillRanker.load("elsewhere").rank([VACANCY], top_k=5) == expected
    monkeypatch.chdir(moved)
    assert SkillRanker.load(".").rank([VACANCY], top_k=5) == expected
    assert SkillRanker.load("config.yaml").config.digest == tiny.config.digest
    (moved / "lanes").mkdir()
    assert load_config("lanes").folder == str(CONFIG_DIR)  # a name comes before a folder of that name
    with pytest.raises(ResourceError, match=r"a folder that holds config\.yaml"):
        SkillRanker.load(moved / "bert")


def test_many_threads_get_the_answers_of_one(tiny):
    labels = list(tiny.taxonomy.label[:8])

    def work(label):
        document = f"You {label}. We value people.\n- You can {label} and count."
        return (
            tiny.rank([label, document], top_k=10),
            tiny.tag([document], top_k=10, min_probability=0.0),
            tiny.explain(document, label),
            tiny.order([label], 5)[0].tolist(),
        )

    alone = [work(label) for label in labels]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, labels * 2)) == alone * 2


def test_no_network_and_nothing_changed_outside(folder, tmp_path, monkeypatch):
    def refuse(*_args, **_keywords):
        raise AssertionError("the network was asked for")

    for name in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))

    def state():
        numbers = np.random.get_state()  # noqa: NPY002
        root = logging.getLogger()
        return [dict(os.environ), Path.cwd(), random.getstate(), numbers[1].tolist(), np.geterr(), root.level,
                list(root.handlers), socket.getdefaulttimeout()]  # fmt: skip

    before = state()
    ranker = SkillRanker.load(folder)
    assert ranker.rank([VACANCY])[0].skills
    assert ranker.tag([VACANCY], min_probability=0.0)[0].document == VACANCY
    assert ranker.explain(VACANCY, "weld steel frames").lanes
    assert state() == before


def test_two_rankers_know_nothing_of_each_other(plain, tiny):
    expected = plain.tag([VACANCY]), tiny.tag([VACANCY])
    other = SkillRanker(plain.config, Taxonomy.from_skills([Skill("urn:1", "weld metal")]))
    assert [skill.uri for skill in other.tag([VACANCY])[0].skills] == ["urn:1"]
    assert (plain.tag([VACANCY]), tiny.tag([VACANCY])) == expected


def test_records_become_what_json_gives_back(by_hand):
    records = [
        by_hand.rank([VACANCY, ""])[0], by_hand.rank([""])[0], by_hand.tag([VACANCY])[0], by_hand.tag([None])[0],
        by_hand.explain(VACANCY, "weld steel frames"), Span(1, 2),
    ]  # fmt: skip
    for record in records:
        value = record.to_dict()
        assert json.loads(json.dumps(value, allow_nan=False)) == value
        assert set(value) == set(record.__slots__)
        with pytest.raises(AttributeError):
            setattr(record, record.__slots__[0], None)
    assert isinstance(records[4], Explanation)
    assert records[2].to_dict()["skills"][0]["spans"][0].keys() == {"start", "end"}


def test_the_public_names_can_be_imported():
    assert all(getattr(package, name).__name__ == name for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = package.Nothing


def test_every_package_with_code_ships_its_types():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    tops = {name.split(".")[0] for name in find_packages(str(ROOT), include=settings["packages"]["find"]["include"])}
    coded = {top for top in tops if any((ROOT / top).rglob("*.py"))}
    assert {"ranker", "lanes", "rerankers", "fusion", "train"} <= coded
    assert {top for top in coded if not (ROOT / top / "py.typed").is_file()} == set()
    assert "py.typed" in settings["package-data"]["*"]


def blocks(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_examples_of_the_document_run(plain, folder, tmp_path, monkeypatch, capsys):
    load = SkillRanker.load.__func__

    def stand_in(cls, system="embedded", *, taxonomy=None):
        """Load the tiny system for the shipped ones, whose models take half a minute to load."""
        if system == "lanes":
            return cls(plain.config, taxonomy)
        return load(cls, folder if system == "embedded" else system, taxonomy=taxonomy)

    shutil.copytree(folder, tmp_path / "my-system")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(SkillRanker, "load", classmethod(stand_in))
    examples = blocks(ROOT / "docs" / "library.md")
    assert len(examples) >= 6
    names: dict[str, object] = {}
    for number, example in enumerate(examples, start=1):
        exec(compile(example, f"library.md, example {number}", "exec"), names)
    assert "weld steel frames" in capsys.readouterr().out
