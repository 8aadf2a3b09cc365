"""The field's encoders through the loader that real checkpoints take, each against a computation of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_field
import torch
import transformers as hf
from test_lanes_contract import UGLY, toy

from lanes.base import Lane
from lanes.dense import DenseLane
from lanes.encoder import EncoderPool
from lanes.registry import build_lanes
from lanes.views import view_texts
from ranker.core.config import LaneConfig
from ranker.core.errors import ArgumentError, RankerError, ResourceError

QUERIES = ["Welding of steel frames with the team", "plan music staff", "C++ tools, python"]
WRITERS: dict[str, Callable[[Path], Path]] = {
    "mpnet": tiny_field.write_mpnet,
    "jobbert": tiny_field.write_jobbert,
    "qwen": tiny_field.write_qwen_embedding,
    "m3": tiny_field.write_m3,
    "pylate": tiny_field.write_pylate,
    "stanford": tiny_field.write_stanford,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield {name: str(write(folder / name)) for name, write in WRITERS.items()}


def configs(models: dict[str, str]) -> list[LaneConfig]:
    """Return the lanes whose models need torch; those of `test_lanes_contract` do without."""
    m3 = {"model": models["m3"], "max_length": 60}
    branches = {"query_branch": "positive", "document_branch": "anchor"}
    prompts = {"query_prompt": "Instruct: find skills\nQuery:", "document_prompt": "Skill: "}
    return [
        LaneConfig("curriculum", "dense", {"model": models["mpnet"], "stored": "float32"}),
        LaneConfig("half", "dense", {"model": models["mpnet"], "precision": "bfloat16"}),
        LaneConfig("jobbert", "dense", {"model": models["jobbert"], **branches}),
        LaneConfig("qwen", "dense", {"model": models["qwen"], **prompts}),
        LaneConfig("m3_dense", "bge_m3", {**m3, "part": "dense"}),
        LaneConfig("m3_sparse", "bge_m3", {**m3, "part": "sparse"}),
        LaneConfig("m3_colbert", "bge_m3", {**m3, "part": "colbert"}),
        LaneConfig("late", "late", {"model": models["pylate"], "view": "label_description"}),
        LaneConfig("late_some", "late", {"model": models["stanford"], "candidates": 5}),
    ]


NAMES = [config.name for config in configs(dict.fromkeys(WRITERS, ""))]


def fitted(models: dict[str, str], names: list[str]) -> dict[str, Lane]:
    if any(name.startswith("m3") for name in names):
        pytest.importorskip("FlagEmbedding")
    lanes = build_lanes([config for config in configs(models) if config.name in names])
    for lane in lanes.values():
        lane.fit(toy())
    return lanes


@pytest.mark.parametrize("name", NAMES)
def test_contract(models: dict[str, str], name: str) -> None:
    lane = fitted(models, [name])[name]
    assert isinstance(lane, Lane)
    scores = lane.score(UGLY)
    assert scores.shape == (len(UGLY), 36)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    assert np.ptp(scores[0]) > 1e-3
    assert lane.score([]).shape == (0, 36)
    again = fitted(models, [name])[name]  # from the cache, and without the memo of the queries
    for row in reversed(range(len(UGLY))):
        np.testing.assert_array_equal(again.score([UGLY[row]])[0], scores[row])
    with pytest.raises(RankerError, match="fit"):
        build_lanes([config for config in configs(models) if config.name == name])[name].score(["weld"])


def states(folder: str, kind: str, text: str) -> tuple[torch.Tensor, list[int]]:
    """Return the last hidden states of one text, straight from transformers."""
    ids = hf.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    with torch.inference_mode():
        return getattr(hf, kind).from_pretrained(folder)(torch.tensor([ids])).last_hidden_state[0], ids


def test_curriculum_equals_the_benchmarks_own(models: dict[str, str]) -> None:
    curriculum = pytest.importorskip("workrb.models.curriculum_encoder")
    lane = fitted(models, ["curriculum"])["curriculum"]
    want = curriculum.CurriculumMatchModel(models["mpnet"])._compute_rankings(QUERIES, list(toy().label)).numpy()
    np.testing.assert_allclose(lane.score(QUERIES), want, atol=1e-5)


def test_half_precision_is_close_and_is_another_model(models: dict[str, str]) -> None:
    lanes = fitted(models, ["curriculum", "half"])
    gap = np.abs(lanes["half"].score(QUERIES) - lanes["curriculum"].score(QUERIES)).max()
    assert 1e-5 < gap < 0.1
    assert len({name for lane in lanes.values() for name in lane.backbones()}) == 2


def test_jobbert_puts_queries_and_skills_through_their_branches(models: dict[str, str]) -> None:
    from safetensors.torch import load_file

    lane = fitted(models, ["jobbert"])["jobbert"]

    def embed(text: str, branch: str) -> np.ndarray:
        layer = load_file(Path(models["jobbert"]) / "2_Asym" / f"{branch}_0_Dense" / "model.safetensors")
        mean = states(models["jobbert"], "MPNetModel", text)[0].mean(dim=0)
        out = torch.tanh(layer["linear.weight"] @ mean + layer["linear.bias"])
        return (out / out.norm()).numpy()

    some = [0, 17, 35]
    for query in QUERIES:
        want = [embed(query, "positive") @ embed(toy().label[row], "anchor") for row in some]
        np.testing.assert_allclose(lane.score([query])[0, some], want, atol=1e-3)  # skills are kept as float16
        assert np.abs(embed(query, "positive") - embed(query, "anchor")).max() > 0.05


def test_jobbert_equals_the_benchmarks_own(models: dict[str, str]) -> None:
    # The benchmark names "positive" in a field that sentence-transformers 5 does not read: all its texts go through the
    # first branch.
    bi_encoder = pytest.importorskip("workrb.models.bi_encoder")
    kinds = pytest.importorskip("workrb.types").ModelInputType
    options = {"model": models["jobbert"], "query_branch": "anchor", "document_branch": "anchor", "stored": "float32"}
    lane = build_lanes([LaneConfig("x", "dense", options)])["x"]
    lane.fit(toy())
    their = bi_encoder.JobBERTModel(models["jobbert"])
    want = their._compute_rankings(QUERIES, list(toy().label), kinds.SKILL_SENTENCE, kinds.SKILL_NAME).numpy()
    np.testing.assert_allclose(lane.score(QUERIES), want, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("jobbert", {}, "query_branch: None is no branch .* it has anchor, positive"),
        ("jobbert", {"query_branch": "anchor"}, "document_branch: None is no branch"),
        ("jobbert", {"query_branch": "query", "document_branch": "anchor"}, "'query' is no branch"),
        ("mpnet", {"query_branch": "anchor"}, "'anchor' is no branch of model .*; it has none"),
        ("mpnet", {"precision": "int4"}, "float32, float16, bfloat16"),
        ("mpnet", {"stored": "int8"}, "float16, float32"),
    ],
)
def test_a_branch_or_precision_that_is_not_there(
    models: dict[str, str], name: str, options: dict, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        build_lanes([LaneConfig("x", "dense", {"model": models[name], **options})])


def test_qwen_takes_the_last_token_and_instructions_on_both_sides(models: dict[str, str]) -> None:
    lane = fitted(models, ["qwen"])["qwen"]

    def embed(text: str) -> np.ndarray:
        hidden, ids = states(models["qwen"], "Qwen3Model", text)
        assert hf.AutoTokenizer.from_pretrained(models["qwen"]).convert_ids_to_tokens(ids)[-1] == "<|endoftext|>"
        return (hidden[-1] / hidden[-1].norm()).numpy()

    some = [0, 17, 35]
    for query in QUERIES[1:]:  # short enough for 48 tokens of one byte each
        query = query[:12]
        asked = embed(f"Instruct: find skills\nQuery:{query}")
        want = [asked @ embed(f"Skill: {toy().label[row]}") for row in some]
        np.testing.assert_allclose(lane.score([query])[0, some], want, atol=1e-3)


def test_an_instruction_changes_only_the_query(models: dict[str, str]) -> None:
    pool, taxonomy = EncoderPool(), toy()
    options = {"encoders": pool, "model": models["qwen"], "document_prompt": "Skill: "}
    lanes = [DenseLane("x", query_prompt=prompt, **options) for prompt in ("", "find: ")]
    for lane in lanes:
        lane.fit(taxonomy)
    np.testing.assert_array_equal(lanes[0].vectors, lanes[1].vectors)
    assert np.abs(lanes[0].score(["weld"]) - lanes[1].score(["weld"])).max() > 1e-3


def test_the_three_scores_of_bge_m3(models: dict[str, str]) -> None:
    flag = pytest.importorskip("FlagEmbedding")
    lanes = fitted(models, ["m3_dense", "m3_sparse", "m3_colbert"])
    their = flag.BGEM3FlagModel(models["m3"], use_fp16=False, devices=["cpu"])
    labels = toy().label
    pairs = [(query, label) for query in QUERIES for label in labels]
    want = their.compute_score(pairs, max_query_length=60, max_passage_length=60, batch_size=256)
    for part, tolerance in (("dense", 1e-3), ("sparse", 1e-5), ("colbert", 1e-3)):  # vectors are kept as float16
        expected = np.reshape(want[part], (len(QUERIES), len(labels)))
        assert np.ptp(expected) > 0.01
        np.testing.assert_allclose(lanes[f"m3_{part}"].score(QUERIES), expected, atol=tolerance, rtol=1e-5)
    found = {name: count for lane in lanes.values() for name, count in lane.backbones().items()}
    body = hf.XLMRobertaModel.from_pretrained(models["m3"], add_pooling_layer=False)
    assert list(found.values()) == [sum(p.numel() for p in body.parameters()) + (32 * 32 + 32) + (32 + 1)]


def test_bge_m3_without_its_heads_is_refused(models: dict[str, str]) -> None:
    with pytest.raises(ResourceError, match=r"no colbert_linear.pt and no sparse_linear.pt"):
        build_lanes([LaneConfig("x", "bge_m3", {"model": models["mpnet"]})])
    with pytest.raises(ArgumentError, match="dense, sparse, colbert"):
        build_lanes([LaneConfig("x", "bge_m3", {"model": models["m3"], "part": "lexical"})])


def colbert_vectors(folder: Path, text: str, *, query: bool) -> np.ndarray:
    """Return a ColBERT's token vectors of one text, step by step."""
    from safetensors.torch import load_file

    stanford = (folder / "artifact.metadata").is_file()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    body = tokenizer.encode(text, add_special_tokens=False)
    if stanford:
        marker, length, skip = "[unused0]" if query else "[unused1]", 12 if query else 20, "!\"#$%&'()*+,-./:;<=>?@"
        layer = load_file(folder / "model.safetensors")["linear.weight"]
    else:
        settings = json.loads((folder / "config_sentence_transformers.json").read_text())
        marker, length, skip = "[Q] " if query else "[D] ", 14 if query else 20, settings["skiplist_words"]
        layer = load_file(folder / "1_Dense" / "model.safetensors")["linear.weight"]
    marked = [tokenizer.cls_token_id, tokenizer.convert_tokens_to_ids(marker)]
    ids = [*marked, *body[: length - 3], tokenizer.sep_token_id]
    mask = [1] * len(ids)
    if query:
        mask += [0] * (length - len(ids))
        ids += [tokenizer.mask_token_id] * (length - len(ids))
    with torch.inference_mode():
        network = hf.AutoModel.from_pretrained(folder)
        hidden = network(torch.tensor([ids]), attention_mask=torch.tensor([mask])).last_hidden_state[0] @ layer.T
    vectors = (hidden / hidden.norm(dim=1, keepdim=True)).numpy()
    left_out = [] if query else [tokenizer.convert_tokens_to_ids(sign) for sign in skip]
    return vectors[[token not in left_out for token in ids]]


@pytest.mark.parametrize(("kind", "view"), [("pylate", "label_description"), ("stanford", "label")])
def test_colbert_checkpoints_equal_a_naive_maxsim(models: dict[str, str], kind: str, view: str) -> None:
    folder = Path(models[kind])
    lane = build_lanes([LaneConfig("x", "late", {"model": models[kind], "view": view})])["x"]
    lane.fit(toy())
    texts = view_texts(toy(), view)
    some = [0, 4, 10, 35]
    for query in QUERIES:
        asked = colbert_vectors(folder, query, query=True)
        want = []
        for row in some:
            found = colbert_vectors(folder, texts[row], query=False)
            want.append(sum(max(float(a @ b) for b in found) for a in asked))
        np.testing.assert_allclose(lane.score([query])[0, some], want, atol=5e-3)  # skills are kept as float16
    body = hf.AutoModel.from_pretrained(folder, add_pooling_layer=False)
    assert list(lane.backbones().values()) == [sum(p.numel() for p in body.parameters()) + 24 * 32]


def test_a_colbert_whose_tokeniser_lacks_its_prefix_is_refused(models: dict[str, str], tmp_path: Path) -> None:
    folder = tiny_field.write_pylate(tmp_path / "model")
    path = folder / "config_sentence_transformers.json"
    path.write_text(path.read_text().replace("[Q] ", "[QQ] "))
    lane = build_lanes([LaneConfig("x", "late", {"model": str(folder)})])["x"]
    with pytest.raises(ResourceError, match=r"no token '\[QQ\] '"):
        lane.fit(toy())
