"""What every lane promises, whatever its family."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_bert import write_tiny_bert

from lanes.base import DerivedLane, Lane
from lanes.registry import FAMILIES, build_lanes
from ranker.core.config import LaneConfig
from ranker.core.errors import ArgumentError, RankerError, ResourceError
from ranker.core.taxonomy import Skill, Taxonomy
from ranker.core.text import normalise

VERBS = ("weld", "paint", "repair", "plan", "program", "care for")
THINGS = ("steel frames", "walls", "car engines", "music staff", "C++ tools", "nurse teams")
QUERIES = (
    "Welding of steel frames with the team",
    "",
    "IDS/IPS sensors are collecting",
    "50lbs",
    "C++ / C# / .NET / Node.js",
    "💥 日本語 текст",
    "x" * 5_000,
    "the and of " * 400,
    "r",
)
UGLY = [normalise(text) for text in QUERIES]


def toy() -> Taxonomy:
    """Return 36 skills with alt labels, descriptions (one missing), groups (one skill without)."""
    skills = []
    for i, verb in enumerate(VERBS):
        for j, thing in enumerate(THINGS):
            skills.append(
                Skill(
                    f"urn:{i}{j}",
                    f"{verb} {thing}",
                    (f"{thing} {verb}", f"{verb}ing") if j else (),
                    "" if i == j == 1 else f"To {verb} {thing} in the plant, with care.",
                    () if i == j == 2 else (f"S{i}.{j % 2}.0", f"K0{j}11"),
                )
            )
    return Taxonomy.from_skills(skills)


def configs(model: str) -> list[LaneConfig]:
    """Return at least one lane of every family."""
    dense = {"model": model}
    return [
        LaneConfig("bm25", "bm25", {"view": "label_alt"}),
        LaneConfig("bm25_desc", "bm25", {"view": "description"}),
        LaneConfig("tfidf", "tfidf", {}),
        LaneConfig("tfidf_wb", "tfidf", {"analyzer": "char_wb", "ngrams": [2, 4]}),
        LaneConfig("tfidf_char", "tfidf", {"analyzer": "char", "ngrams": [1, 3]}),
        LaneConfig("ratio", "fuzzy", {"scorer": "ratio"}),
        LaneConfig("set", "fuzzy", {"scorer": "token_set_ratio"}),
        LaneConfig("dense", "dense", dense),
        LaneConfig("dense_desc", "dense", {**dense, "view": "label_description", "query_prompt": "plan: "}),
        LaneConfig("dense_mean", "dense", {**dense, "view": "alt_mean"}),
        LaneConfig("dense_max", "dense", {**dense, "view": "alt_max"}),
        LaneConfig("context", "context", dense),
        LaneConfig("span", "span", {**dense, "size": 2, "limit": 5}),
        LaneConfig("span_max", "span", {**dense, "view": "alt_max"}),
        LaneConfig("group", "group", {"base": "dense"}),
        LaneConfig("group_bm25", "group", {"base": "bm25"}),
        LaneConfig("near", "neighbour", {"base": "dense", "k": 5}),
        LaneConfig("near_max", "neighbour", {"base": "dense_max", "k": 5, "steps": 2, "own": 0.3}),
        LaneConfig("feedback", "feedback", {"base": "near", "top": 4}),
        LaneConfig("feedback_max", "feedback", {"base": "dense_max", "top": 4}),
        LaneConfig("rank", "pagerank", {"base": "dense", "top": 4}),
        LaneConfig("late", "late", dense),
    ]


NAMES = [config.name for config in configs("")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def fitted(model: Path | str, taxonomy: Taxonomy) -> dict[str, Lane]:
    lanes = build_lanes(configs(str(model)))
    for lane in lanes.values():
        lane.fit(taxonomy)
    return lanes


@pytest.fixture(scope="module")
def lanes(model: Path) -> dict[str, Lane]:
    return fitted(model, toy())


def test_every_family_is_under_contract() -> None:
    # "tuned" and "memory" need a checkpoint and are tested where it is made; "bge_m3" needs torch: test_lanes_field.
    assert {config.family for config in configs("")} == set(FAMILIES) - {"tuned", "memory", "bge_m3"}


@pytest.mark.parametrize("name", NAMES)
def test_shape_dtype_finite_on_ugly_text(lanes: dict[str, Lane], name: str) -> None:
    lane = lanes[name]
    assert isinstance(lane, Lane)
    assert lane.name == name
    scores = lane.score(UGLY)
    assert scores.shape == (len(UGLY), 36)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    assert lane.score([]).shape == (0, 36)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_does_not_depend_on_the_others_to_the_bit(model: Path, lanes: dict[str, Lane], name: str) -> None:
    together = lanes[name].score(UGLY)
    apart = fitted(model, toy())[name]  # another object: no memo of the queries
    for row, query in reversed(list(enumerate(UGLY))):
        np.testing.assert_array_equal(apart.score([query])[0], together[row])


@pytest.mark.parametrize("name", NAMES)
def test_second_fit_comes_from_the_cache_and_is_equal(lanes: dict[str, Lane], model: Path, name: str) -> None:
    np.testing.assert_array_equal(fitted(model, toy())[name].score(UGLY), lanes[name].score(UGLY))


@pytest.mark.parametrize("name", NAMES)
def test_taxonomy_of_one_skill(model: Path, name: str) -> None:
    one = Taxonomy.from_skills([Skill("urn:1", "weld steel")])
    scores = fitted(model, one)[name].score(["weld steel frames", ""])
    assert scores.shape == (2, 1)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("name", NAMES)
def test_scoring_before_fit_is_an_error(model: Path, name: str) -> None:
    with pytest.raises(RankerError, match="fit"):
        build_lanes(configs(str(model)))[name].score(["weld"])


def test_derived_lanes_are_known_by_their_base(lanes: dict[str, Lane]) -> None:
    derived = {"group", "group_bm25", "near", "near_max", "feedback", "feedback_max", "rank"}
    for name, lane in lanes.items():
        assert isinstance(lane, DerivedLane) == (name in derived)
        if isinstance(lane, DerivedLane):
            np.testing.assert_array_equal(lane.smooth(lanes[lane.base].score(UGLY)), lane.score(UGLY))


def test_one_encoder_per_model_and_its_parameters(lanes: dict[str, Lane]) -> None:
    found = {k: v for lane in lanes.values() for k, v in lane.backbones().items()}
    assert len(found) == 1
    width, inner, layers = 16, 32, 2
    vocabulary = len(list((Path(next(iter(found)).split("@")[0]) / "vocab.txt").read_text().splitlines()))
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    assert list(found.values()) == [(vocabulary + 42) * width + 2 * width + layers * layer + width * width + width]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=200))
def test_any_text_gives_finite_scores(lanes: dict[str, Lane], text: str) -> None:
    for lane in lanes.values():
        assert np.isfinite(lane.score([normalise(text)])).all()


def _fit_and_score(model: str, cache: str, start: float) -> list[np.ndarray]:
    import time

    os.environ["RANKER_CACHE"] = cache
    time.sleep(max(0.0, start - time.time()))  # both processes begin at the same moment
    return [lane.score(["weld steel frames"]) for lane in fitted(model, toy()).values()]


def test_two_processes_share_an_empty_cache(model: Path, tmp_path: Path, lanes: dict[str, Lane]) -> None:
    import time

    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(str, [("warm",)] * 2)
        jobs = [(str(model), str(tmp_path / "cache"), time.time() + 1.0)] * 2
        for scores in pool.starmap(_fit_and_score, jobs, chunksize=1):
            for got, lane in zip(scores, lanes.values(), strict=True):
                np.testing.assert_array_equal(got, lane.score(["weld steel frames"]))
    assert not list(tmp_path.rglob(".*npy*"))  # no half-written file is left


def test_damaged_cache_file_is_made_anew(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path))
    before = [lane.score(UGLY) for lane in fitted(model, toy()).values()]
    files = list(tmp_path.rglob("*.npy"))
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:20])
    for got, want in zip([lane.score(UGLY) for lane in fitted(model, toy()).values()], before, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_damaged_model_stops_the_lane(model: Path, tmp_path: Path) -> None:
    broken = write_tiny_bert(tmp_path / "broken", seed=5)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1_000])
    lane = build_lanes([LaneConfig("dense", "dense", {"model": str(broken)})])["dense"]
    with pytest.raises(ResourceError, match=r"model\.safetensors"):
        lane.fit(toy())


def test_weights_that_are_not_numbers_stop_the_lane(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    broken = write_tiny_bert(tmp_path / "nan", seed=6)
    weights = load_file(broken / "model.safetensors")
    weights["encoder.layer.1.output.dense.bias"][3] = np.nan
    save_file(weights, broken / "model.safetensors")
    lane = build_lanes([LaneConfig("dense", "dense", {"model": str(broken)})])["dense"]
    with pytest.raises(RankerError, match="not finite"):
        lane.fit(toy())


def test_queries_need_neither_torch_nor_transformers(model: Path, lanes: dict[str, Lane]) -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests'); import test_lanes_contract as c; "
        f"[lane.score(['weld']) for lane in c.fitted({str(model)!r}, c.toy()).values()]; "
        "print([m for m in ('torch', 'transformers', 'sentence_transformers', 'sklearn', 'faiss') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LaneConfig("x", "bm52"), "unknown family 'bm52'; allowed: bm25, tfidf"),
        (LaneConfig("x", "bm25", {"k2": 1}), "unknown option 'k2'; options of family bm25: view, tokenizer, k1, b"),
        (LaneConfig("x", "bm25", {"view": "labels"}), "'labels' is not one of label, label_alt"),
        (LaneConfig("x", "bm25", {"b": 3}), "b: 3 is not a number from 0 to 1"),
        (LaneConfig("x", "tfidf", {"ngrams": 3}), "ngrams: 3 is not a list of two"),
        (LaneConfig("x", "tfidf", {"ngrams": [4, 2]}), "ngrams"),
        (LaneConfig("x", "fuzzy", {"scorer": "partial"}), "ratio, token_set_ratio"),
        (LaneConfig("x", "dense", {}), "option model of family dense is missing"),
        (LaneConfig("x", "group", {"base": "y"}), "base 'y' is no lane before it"),
        (LaneConfig("x", "group", {}), "option base of family group is missing"),
    ],
)
def test_bad_config_names_what_is_allowed(config: LaneConfig, message: str) -> None:
    with pytest.raises(ArgumentError, match=message.replace("[", r"\[")):
        build_lanes([config])


def test_a_graph_needs_embeddings() -> None:
    with pytest.raises(ArgumentError, match="bm25 has no embeddings"):
        build_lanes([LaneConfig("bm25", "bm25"), LaneConfig("x", "neighbour", {"base": "bm25"})])


@pytest.mark.parametrize("name", ["package:no_such_package_here", "./no/such/folder", "checkpoints/none", "plainname"])
def test_a_model_that_is_not_there(name: str) -> None:
    with pytest.raises(ResourceError, match="no such"):
        build_lanes([LaneConfig("x", "dense", {"model": name})])


def test_a_hub_model_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ResourceError, match="neither cached nor to be had from the hub"):
        build_lanes([LaneConfig("x", "dense", {"model": "owner/model-that-is-not-cached"})])
