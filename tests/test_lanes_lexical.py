"""Lexical lanes against independent implementations, and by hand."""

from __future__ import annotations

import math
import string
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rapidfuzz import fuzz
from test_lanes_contract import UGLY, toy

from lanes.fuzzy import FuzzyLane
from lanes.lexical import BM25Lane, TfidfLane, char_ngrams, char_wb_ngrams
from lanes.views import view_texts
from ranker.core.config import load_config
from ranker.core.taxonomy import Skill, Taxonomy
from ranker.core.text import tokens

QUERIES = ["Welding steel frames, steel walls", "care for for nurse teams in the plant", "unknown words only", *UGLY]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path))


def taxonomy_of(labels: list[str]) -> Taxonomy:
    return Taxonomy.from_skills(Skill(f"urn:{i:03d}", label) for i, label in enumerate(labels))


def test_bm25_by_hand() -> None:
    lane = BM25Lane("x")
    lane.fit(taxonomy_of(["weld steel", "paint steel walls", "sell"]))
    # N = 3, mean length 2; df(weld) = 1: idf = log(2.5 / 1.5). Length 2: norm 1.5; tf 1: 2.5 / 2.5 = 1.
    assert lane.score(["weld"])[0] == pytest.approx([math.log(2.5 / 1.5), 0, 0])
    # df(steel) = 2: log(1.5 / 2.5) < 0, so 0.25 times the mean of the four idfs (weld, steel, paint, walls, sell).
    floor = 0.25 * (4 * math.log(2.5 / 1.5) + math.log(1.5 / 2.5)) / 5
    longer = 2.5 / (1 + 1.5 * (0.25 + 0.75 * 1.5))
    assert lane.score(["steel steel"])[0] == pytest.approx([2 * floor, 2 * floor * longer, 0])


@pytest.mark.parametrize("view", ["label", "label_alt", "description", "label_description"])
def test_bm25_equals_rank_bm25(view: str) -> None:
    rank_bm25 = pytest.importorskip("rank_bm25")
    lane = BM25Lane("x", view=view)
    lane.fit(toy())
    other = rank_bm25.BM25Okapi([tokens(text) for text in view_texts(toy(), view)])
    want = np.stack([other.get_scores(tokens(query)) for query in QUERIES])
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(lane.score(QUERIES), want, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({"tokenizer": "word2"}, {}),
        ({"tokenizer": "word2", "ngrams": [1, 2]}, {"ngram_range": (1, 2)}),
        ({"analyzer": "char_wb", "ngrams": [3, 4]}, {"analyzer": "char_wb", "ngram_range": (3, 4)}),
        ({"analyzer": "char", "ngrams": [1, 3]}, {"analyzer": "char", "ngram_range": (1, 3)}),
    ],
)
def test_tfidf_equals_sklearn(options: dict, theirs: dict) -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    lane = TfidfLane("x", view="label_alt", **options)
    lane.fit(toy())
    vectorizer = text.TfidfVectorizer(strip_accents=None, **theirs)
    documents = vectorizer.fit_transform(view_texts(toy(), "label_alt"))
    want = (vectorizer.transform(QUERIES) @ documents.T).toarray()
    assert want.max() > 0.5
    np.testing.assert_allclose(lane.score(QUERIES), want, atol=1e-6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=string.ascii_lowercase + "  .\t", max_size=60), st.integers(1, 4), st.integers(0, 3))
def test_ngrams_equal_sklearn(text: str, low: int, more: int) -> None:
    sk = pytest.importorskip("sklearn.feature_extraction.text")
    for analyzer, ours in (("char_wb", char_wb_ngrams), ("char", char_ngrams)):
        analyse = sk.CountVectorizer(analyzer=analyzer, ngram_range=(low, low + more)).build_analyzer()
        assert sorted(ours(text, low, low + more)) == sorted(analyse(text))


def test_words_match_whole_not_as_substrings() -> None:
    labels = ["use R", "use C++", "use C", "carpentry", "use Java", "use JavaScript"]
    taxonomy = taxonomy_of(labels)
    lane = BM25Lane("x")
    lane.fit(taxonomy)
    for query, label in (("R", "use R"), ("c++", "use C++"), ("C", "use C"), ("car", None), ("java", "use Java")):
        assert [labels[i] for i in np.flatnonzero(lane.score([query])[0])] == ([label] if label else [])


@pytest.mark.parametrize(("name", "scorer"), [("ratio", fuzz.ratio), ("token_set_ratio", fuzz.token_set_ratio)])
def test_fuzzy_equals_rapidfuzz_pair_by_pair(name: str, scorer) -> None:
    lane = FuzzyLane("x", scorer=name, max_characters=40)
    lane.fit(toy())
    got = lane.score(QUERIES)
    for row, query in enumerate(QUERIES):
        want = [scorer(query.casefold()[:40], label.casefold()) for label in toy().label]
        np.testing.assert_allclose(got[row], want, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "model"),
    [("baseline-bm25", "BM25Model"), ("baseline-tfidf", "TfIdfModel"), ("baseline-edit", "EditDistanceModel")],
)
def test_baselines_equal_the_benchmarks_own(config: str, model: str) -> None:
    models = pytest.importorskip("workrb.models")
    from lanes.registry import build_lanes

    lane = next(iter(build_lanes(load_config(config).lanes).values()))
    lane.fit(toy())
    queries = [*filter(None, QUERIES), "Straße für Köche, crème brûlée"]
    want = getattr(models, model)()._compute_rankings(queries, list(toy().label)).numpy()
    np.testing.assert_allclose(lane.score(queries), want, atol=1e-5)
