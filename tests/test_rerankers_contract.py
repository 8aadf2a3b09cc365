"""The contract that every family of columns keeps, on tiny random models of the real classes and a real HTTP server."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_rerankers import TAXONOMY, write_bert, write_deberta, write_qwen, write_xlmr

from ranker.core.config import ColumnConfig
from ranker.core.errors import ArgumentError, RankerError, ResourceError
from rerankers.base import Column
from rerankers.registry import FAMILIES, build_columns
from train.labels.standin import Reply, StandIn

QUERIES = ["Welding of steel frames with the team.", "c++ & python / ", "Ünïcödé 語学 💥 \t 50lbs", "x" * 3000,
           "plan the work of staff, " * 40, "a"]  # fmt: skip
POOL = np.stack([np.random.default_rng(i).permutation(12)[:9] for i in range(len(QUERIES))]).astype(np.int32)


@dataclass
class Case:
    """A column of a family: its options, and what its score may depend on besides the pair."""

    family: str
    options: dict[str, Any]
    sized: bool = True
    ordered: bool = False  # the pool's order is part of its input
    needs: str = ""
    servers: list[StandIn] = field(default_factory=list)


def letters(text: str) -> set[str]:
    return set(re.sub(r"[^a-z]", "", text.lower()))


async def reply(body):
    """Order or rate by shared letters."""
    lines = body["messages"][-1]["content"].splitlines()
    fits = [len(letters(line) & letters(lines[0])) for line in lines[1:]]
    await asyncio.sleep(0.001 * (len(lines[1]) % 3))  # answers come in another order than the requests went out
    if lines[1].startswith("Skill: "):
        return Reply(str(min(100, 4 * fits[0])))
    return Reply(" > ".join(str(i + 1) for i in sorted(range(len(fits)), key=lambda i: (-fits[i], i))))


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("models")
    peft = pytest.importorskip("peft")
    bert, xlmr, qwen = write_bert(folder / "bert"), write_xlmr(folder / "xlmr"), write_qwen(folder / "qwen")
    deberta, small = write_deberta(folder / "deb"), {"model": str(bert), "max_length": 64}
    from transformers import AutoModelForSequenceClassification

    network = AutoModelForSequenceClassification.from_pretrained(bert)
    made = peft.get_peft_model(network, peft.LoraConfig(task_type="SEQ_CLS", r=2, init_lora_weights=False))
    made.save_pretrained(folder / "adapter")
    with StandIn(reply) as server:
        hosted = {"url": server.url, "model": "m", "backoff": 0.01, "cache": str(folder / "a.sqlite")}
        yield {
            "bert": Case("encoder", small),
            "bert in small batches": Case("encoder", {**small, "token_budget": 80}),
            "bert of two outputs": Case("encoder", {**small, "model": str(write_bert(folder / "two", labels=2))}),
            "bert with adapter": Case("encoder", {**small, "adapter": str(folder / "adapter")}),
            "xlm-r": Case("encoder", {**small, "model": str(xlmr), "view": "label"}),
            "deberta": Case("encoder", {**small, "model": str(deberta), "precision": "bfloat16"}),
            "int8": Case("encoder", {**small, "precision": "int8"}, needs="onnxruntime"),
            "flag": Case("flag", {"model": str(xlmr), "max_length": 64, "batch_size": 4}, needs="FlagEmbedding"),
            "causal": Case("causal", {"model": str(qwen), "max_length": 420, "token_budget": 1500}),
            "listwise": Case("llm", {**hosted, "window": 4, "step": 2}, sized=False, ordered=True, needs="httpx"),
            "pointwise": Case("llm", {**hosted, "mode": "pointwise"}, sized=False, needs="httpx"),
        }


NAMES = ["bert", "bert in small batches", "bert of two outputs", "bert with adapter", "xlm-r", "deberta", "int8",
         "flag", "causal", "listwise", "pointwise"]  # fmt: skip


@pytest.fixture(scope="module", params=NAMES)
def case(request, world, tmp_path_factory):
    """A fitted column and its case."""
    found = world[request.param]
    if found.needs:
        pytest.importorskip(found.needs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKER_CACHE", str(tmp_path_factory.mktemp("cache")))
        column = build_columns([ColumnConfig("c", found.family, options=found.options)])["c"]
        column.fit(TAXONOMY)
        yield column, found, column.score(QUERIES, POOL)


def test_every_family_is_here(world):
    assert set(FAMILIES) <= {case.family for case in world.values()} | {"late"}


def test_scores_are_finite_float32_of_the_pools_shape_and_tell_skills_apart(case):
    column, _, scores = case
    assert isinstance(column, Column)
    assert scores.dtype == np.float32
    assert scores.shape == POOL.shape
    assert np.isfinite(scores).all()
    assert len(np.unique(scores[0])) > 2


def test_a_query_does_not_depend_on_the_others_of_the_call(case):
    column, _, scores = case
    np.testing.assert_array_equal(column.score(QUERIES[::-1], POOL[::-1])[::-1], scores)
    for i in (0, 3):
        np.testing.assert_array_equal(column.score(QUERIES[i : i + 1], POOL[i : i + 1])[0], scores[i])


def test_a_pair_does_not_depend_on_the_pools_order_and_hardly_on_its_neighbours(case):
    column, found, scores = case
    if found.ordered:
        pytest.skip("a list's order is what this family improves")
    back = column.score(QUERIES[:2], POOL[:2, ::-1])
    np.testing.assert_array_equal(back[:, ::-1], scores[:2])
    alone = column.score(QUERIES[:1], POOL[:1, 2:3])
    near = found.options.get("precision") == "bfloat16"
    np.testing.assert_allclose(alone[0, 0], scores[0, 2], rtol=0, atol=0.05 if near else 2e-5)


def test_nothing_in_nothing_out(case):
    column, _, _ = case
    assert column.score([], np.zeros((0, 3), np.int32)).shape == (0, 3)
    assert column.score(["weld"], np.zeros((1, 0), np.int32)).shape == (1, 0)


def test_a_second_column_gives_the_same_bits(case):
    column, found, scores = case
    again = build_columns([ColumnConfig("c", found.family, options=found.options)])["c"]
    with pytest.raises(RankerError, match=r"before fit\(taxonomy\)"):
        again.score(QUERIES, POOL)
    again.fit(TAXONOMY)
    np.testing.assert_array_equal(again.score(QUERIES[:2], POOL[:2]), scores[:2])
    assert again.backbones() == column.backbones()


def test_parameters_are_counted(case):
    column, found, _ = case
    sizes = column.backbones()
    assert bool(sizes) == found.sized
    assert all(type(size) is int and size > 0 and "@" in name for name, size in sizes.items())


@pytest.mark.parametrize(
    ("family", "options", "error", "words"),
    [
        ("other", {}, ArgumentError, "unknown column family 'other'; allowed: causal, encoder, flag"),
        ("encoder", {}, ArgumentError, "column c: option model of family encoder is missing"),
        ("encoder", {"model": "m", "depht": 3}, ArgumentError, "unknown option 'depht'; options of family encoder: m"),
        ("encoder", {"model": "no/such/folder"}, ResourceError, "column c: model no/such/folder: no such folder"),
        ("encoder", {"model": "m", "view": "alt"}, ArgumentError, "view: 'alt' is not one of label, label_description"),
        ("encoder", {"model": "m", "precision": "int4"}, ArgumentError, "precision: 'int4' is not one of float32"),
        ("encoder", {"model": "m", "max_length": 2}, ArgumentError, "max_length: 2 is not a whole number from 8"),
        ("causal", {"model": "m", "token_budget": 0.5}, ArgumentError, "token_budget: 0.5 is not a whole number"),
        ("llm", {"model": "m", "url": "nowhere"}, ArgumentError, "'nowhere' is not a base URL"),
        ("llm", {"model": "m", "url": "http://x/v1", "step": 20}, ArgumentError, "step: 20 is not a whole"),
        ("llm", {"model": "m", "url": "http://x/v1", "max_cost": 1.0}, ArgumentError, "needs the price"),
        ("llm", {"model": "m", "url": "http://x/v1", "price": 3}, ArgumentError, "price: 3 is not two numbers"),
        ("llm", {"model": "m", "url": "http://x/v1", "examples": "no"}, ResourceError, "examples: no file no"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(family, options, error, words, tmp_path, monkeypatch):
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path))
    with pytest.raises(error, match=re.escape(words)):
        build_columns([ColumnConfig("c", family, options=options)])


def test_weights_that_are_damaged_or_of_another_kind_are_named(tmp_path: Path):
    bert = write_bert(tmp_path / "bert")
    (bert / "model.safetensors").write_bytes(b"\x00" * 200)
    column = build_columns([ColumnConfig("c", "encoder", options={"model": str(bert), "max_length": 64})])["c"]
    with pytest.raises(ResourceError, match="transformers cannot read it"):
        column.fit(TAXONOMY)
    with pytest.raises(ResourceError, match="cannot be read"):
        column.backbones()
    qwen = write_qwen(tmp_path / "qwen", answers=("yes",))
    with pytest.raises(ResourceError, match="no single token for the answer 'no' but 'n', 'o'"):
        build_columns([ColumnConfig("c", "causal", options={"model": str(qwen)})])
