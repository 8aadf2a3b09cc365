"""Cross-encoders against transformers, sentence-transformers and FlagEmbedding; int8 against fp32; sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_rerankers import LABELS, TAXONOMY, write_bert, write_deberta, write_xlmr

from lanes.encoder import Encoder
from ranker import bench, quantise, size
from ranker.core.cli import run
from ranker.core.config import parse_config
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.views import view_texts
from rerankers import onnx
from rerankers.classifier import Source, load_classifier
from rerankers.encoder import EncoderColumn
from rerankers.flag import FlagColumn
from rerankers.pairs import Documents, Template, batches
from rerankers.smoothing import smooth

QUERIES = ["Welding of steel frames with the team.", "teach c++ & python"]
POOL = np.tile(np.arange(12, dtype=np.int32), (2, 1))
WRITERS = {"bert": write_bert, "xlm-r": write_xlmr, "deberta": write_deberta}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write(folder / name) for name, write in WRITERS.items()}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))


def fitted(model: Path, **options) -> EncoderColumn:
    column = EncoderColumn("c", model=str(model), **{"max_length": 64, **options})
    column.fit(TAXONOMY)
    return column


@pytest.mark.parametrize("name", WRITERS)
def test_scores_are_those_of_sentence_transformers(models, name):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    plain = sentence_transformers.CrossEncoder(str(models[name]), max_length=64, device="cpu")
    texts = view_texts(TAXONOMY, "label_description")
    wanted = [
        plain.predict([(query, text) for text in texts], activation_fn=torch.nn.Identity(), show_progress_bar=False)
        for query in QUERIES
    ]
    np.testing.assert_allclose(fitted(models[name]).score(QUERIES, POOL), wanted, rtol=0, atol=2e-5)


def test_scores_are_those_of_flag_embedding(models):
    pytest.importorskip("FlagEmbedding", reason="needs the extra flag")
    from sentence_transformers import CrossEncoder

    flag = FlagColumn("f", model=str(models["xlm-r"]), max_length=96, batch_size=5)
    flag.fit(TAXONOMY)
    scores = flag.score(QUERIES, POOL)
    wanted = fitted(models["xlm-r"], max_length=96).score(QUERIES, POOL)
    np.testing.assert_allclose(scores, wanted, rtol=0, atol=2e-5)
    plain = CrossEncoder(str(models["xlm-r"]), max_length=96, device="cpu")
    pairs = [(QUERIES[0], text) for text in view_texts(TAXONOMY, "label_description")]
    theirs = plain.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
    np.testing.assert_allclose(scores[0], theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", WRITERS)
def test_pairs_are_those_of_the_tokeniser_also_where_they_are_cut(models, name):
    tokenizer = Source(str(models[name])).tokenizer()
    texts = ["weld", "Welding of steel frames, with the team", "plan " * 30, "c++ / C# 語学 💥"]
    for max_length in (12, 13, 31, 96):
        template = Template.of_tokenizer(tokenizer, max_length)
        for query in texts:
            for document in texts:
                wanted = tokenizer(query, document, truncation="longest_first", max_length=max_length)
                ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (query, document)]
                joined, types = template.join(*ids)
                assert joined == wanted["input_ids"]
                assert types == wanted.get("token_type_ids", types)


def test_documents_are_tokenised_once(models, monkeypatch):
    tokenizer = Source(str(models["bert"])).tokenizer()
    made = Documents.build(TAXONOMY, tokenizer, view="label", max_length=9)
    assert [made[row] for row in range(12)] == [
        tokenizer(label, add_special_tokens=False)["input_ids"][:9] for label in LABELS
    ]
    monkeypatch.setattr("rerankers.pairs.view_texts", lambda *_: pytest.fail("tokenised again"))
    again = Documents.build(TAXONOMY, tokenizer, view="label", max_length=9)
    assert again.sizes(POOL[0]).tolist() == [len(made[row]) for row in range(12)]
    with pytest.raises(pytest.fail.Exception):
        Documents.build(TAXONOMY, tokenizer, view="label", max_length=8)


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 200))
@settings(deadline=None)
def test_batches_hold_every_pair_once_and_keep_to_the_budget(sizes, budget):
    sizes, rows = np.array(sizes, dtype=np.intp), np.arange(len(sizes), dtype=np.int32)[::-1]
    found = list(batches(sizes, rows, budget))
    assert sorted(place for places in found for place in places) == list(range(len(sizes)))
    assert all(len(places) == 1 or sizes[places].max() * len(places) <= budget for places in found)
    longest = [sizes[places].max() for places in found]
    assert longest == sorted(longest)


def test_an_adapter_gives_what_peft_gives_and_counts_beside_its_model(models, tmp_path):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(1)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "dense"], init_lora_weights=False)
    network = AutoModelForSequenceClassification.from_pretrained(models["bert"])
    adapted = peft.get_peft_model(network, config).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    column = fitted(models["bert"], adapter=str(tmp_path / "adapter"))
    feed = column.tokenizer(QUERIES[0], view_texts(TAXONOMY, "label_description")[1], return_tensors="pt")
    with torch.no_grad():
        wanted = float(adapted(**feed).logits)
    scores = column.score(QUERIES, POOL)
    assert scores[0, 1] == pytest.approx(wanted, abs=2e-5)
    plain = fitted(models["bert"])
    assert not np.allclose(plain.score(QUERIES, POOL), scores, atol=1e-3)
    shared = {**plain.backbones(), **column.backbones()}
    assert len(shared) == 2
    assert next(iter(shared)) == Encoder(str(models["bert"])).identity
    with pytest.raises(ResourceError, match=r"holds no adapter_config\.json"):
        EncoderColumn("c", model=str(models["bert"]), adapter=str(models["bert"]), max_length=64)
    with pytest.raises(ResourceError, match="does not fit its model"):
        fitted(write_bert(tmp_path / "wide", positions=80), adapter=str(_other_shape(tmp_path)))


def _other_shape(folder: Path) -> Path:
    """An adapter for a model of another width."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
    made = get_peft_model(BertForSequenceClassification(config), LoraConfig(task_type="SEQ_CLS", r=2))
    made.save_pretrained(folder / "other")
    return folder / "other"


def test_a_model_without_a_trained_head_is_refused_unless_the_adapter_brings_it(models, tmp_path):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertModel

    BertModel.from_pretrained(models["bert"]).save_pretrained(tmp_path / "bare")
    AutoTokenizer.from_pretrained(models["bert"]).save_pretrained(tmp_path / "bare")
    with pytest.raises(ResourceError, match=r"no weights for classifier\.bias, classifier\.weight: it is no"):
        fitted(tmp_path / "bare")
    network = AutoModelForSequenceClassification.from_pretrained(tmp_path / "bare", num_labels=1)
    made = peft.get_peft_model(network, peft.LoraConfig(task_type="SEQ_CLS", r=2))
    made.save_pretrained(tmp_path / "adapter")
    scores = fitted(tmp_path / "bare", adapter=str(tmp_path / "adapter")).score(QUERIES, POOL)
    assert np.isfinite(scores).all()


def test_positions_and_outputs_are_checked_before_anything_is_loaded(models, tmp_path):
    with pytest.raises(ArgumentError, match="reads at most 96 tokens, not 97"):
        EncoderColumn("c", model=str(models["bert"]), max_length=97)
    with pytest.raises(ArgumentError, match="reads at most 96 tokens"):  # 98 positions, two before the first token
        EncoderColumn("c", model=str(models["xlm-r"]), max_length=97)
    with pytest.raises(ResourceError, match="has 3 outputs; a reranker has 1 or 2"):
        fitted(write_bert(tmp_path / "three", labels=3))


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory) -> Path:
    pytest.importorskip("onnx", reason="needs the extra int8")
    folder = tmp_path_factory.mktemp("int8") / "bert"
    assert run(quantise.main, ["export", "--model", str(models["bert"]), "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("name", WRITERS)
def test_int8_stays_near_fp32(models, name):
    pytest.importorskip("onnx", reason="needs the extra int8")
    plain = fitted(models[name]).score(QUERIES, POOL)
    small = fitted(models[name], precision="int8").score(QUERIES, POOL)
    assert np.abs(plain - small).max() < 0.35 * plain.std()  # random weights of width 32; a trained model is far closer
    assert min(quantise.spearman(a, b) for a, b in zip(plain, small, strict=True)) > 0.9


@pytest.mark.parametrize("name", WRITERS)
def test_smoothing_changes_nothing_in_fp32_and_evens_the_channels_out(models, name):
    source = Source(str(models[name]))
    network, tokenizer = load_classifier(source, "float32"), source.tokenizer()
    with torch.no_grad():
        for weight in (value for key, value in network.named_parameters() if "LayerNorm.weight" in key):
            weight[3] *= 20  # an outlier, as trained models have them

    def feed(one, other):
        return tokenizer(one, other, truncation=True, return_tensors="pt")

    seen = []
    layer = next(part for key, part in network.named_modules() if key.endswith("intermediate.dense"))
    with torch.no_grad():
        before = network(**feed(*QUERIES)).logits
        smooth(network, feed)
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].abs().flatten(0, -2).amax(0)))
        after = network(**feed(*QUERIES)).logits
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    assert seen[0].max() < 8 * seen[0].median()


def test_an_exported_folder_scores_alike_and_states_what_it_was_made_of(models, exported):
    column = fitted(exported, precision="int8")
    np.testing.assert_array_equal(
        column.score(QUERIES, POOL), fitted(models["bert"], precision="int8").score(QUERIES, POOL)
    )
    assert column.backbones() == fitted(models["bert"]).backbones()
    with pytest.raises(ArgumentError, match="takes precision: int8 and no adapter"):
        EncoderColumn("c", model=str(exported), max_length=64)


def test_a_damaged_export_is_refused(exported, tmp_path):
    import shutil

    folder = Path(shutil.copytree(exported, tmp_path / "copy"))
    with (folder / onnx.FILE).open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(InputError, match="is not the file that its manifest describes"):
        fitted(folder, precision="int8")
    manifest = json.loads((folder / onnx.MANIFEST).read_text())
    (folder / onnx.MANIFEST).write_text(json.dumps({**manifest, "format": 9}))
    with pytest.raises(InputError, match="has format 9, this version reads 1"):
        fitted(folder, precision="int8")
    (folder / onnx.MANIFEST).write_text("{")
    with pytest.raises(InputError, match="is not readable"):
        fitted(folder, precision="int8")


def test_the_export_is_cached_by_revision(models, monkeypatch):
    pytest.importorskip("onnx", reason="needs the extra int8")
    first = onnx.cached_export(Source(str(models["bert"])))
    monkeypatch.setattr(onnx, "export", lambda *_: pytest.fail("exported again"))
    assert onnx.cached_export(Source(str(models["bert"]))) == first
    with pytest.raises(pytest.fail.Exception):
        onnx.cached_export(Source(str(models["xlm-r"])))


def test_compare_by_hand():
    reference = np.array([[3.0, 2.0, 1.0, 0.0], [1.0, 2.0, 3.0, 4.0]], np.float32)
    other = np.array([[3.0, 1.0, 2.0, 0.0], [1.0, 2.0, 3.0, 4.0]], np.float32)
    pool = np.array([[7, 1, 2, 3], [0, 1, 2, 3]], np.int32)
    found = quantise.compare(reference, other, pool, [{7: 4, 1: 2}, {3: 4}], 9)
    assert found["spearman"] == pytest.approx((0.8 + 1.0) / 2)
    assert found["spearman_min"] == pytest.approx(0.8)
    ideal = 15 + 3 / np.log2(3)
    assert found["ndcg_reference"] == pytest.approx(1.0)
    assert found["ndcg"] == pytest.approx(((15 + 3 / 2) / ideal + 1) / 2)
    assert found["ndcg_lost"] == pytest.approx(found["ndcg_reference"] - found["ndcg"])
    assert not found["passed"]
    assert quantise.compare(reference, reference, pool, [{7: 4}, {3: 4}], 9)["passed"]


def test_check_command_and_size_of_a_system_with_columns(models, tmp_path, capsys):
    pytest.importorskip("onnx", reason="needs the extra int8")
    from small_world import write_config, write_esco, write_tasks

    path = write_config(tmp_path / "small.yaml", write_esco(tmp_path / "esco"), size=30)
    column = f"family: encoder, model: {models['bert']}, max_length: 64, depth: 20"
    path.write_text(
        path.read_text()
        + f"columns:\n  - {{name: a, {column}, view: label}}\n  - {{name: b, {column}, precision: int8}}\n"
    )
    data = write_tasks(tmp_path / "tasks", n_tasks=1, n_queries=3)
    arguments = ["check", "--config", str(path), "--data", str(data), "--queries", "2", "--json"]
    assert run(quantise.main, arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"a", "b"}
    assert found["a"]["queries"] == 2
    assert 0.5 < found["a"]["spearman"] <= 1
    assert run(size.main, ["--config", str(path), "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)
    assert list(sizes["backbones"].values()) == [sum(p.numel() for p in _network(models["bert"]).parameters())]


def _network(folder: Path):
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(folder)


def test_the_bench_runs_the_same_columns_plainly(models, exported, tmp_path, capsys, monkeypatch):
    from small_world import write_config, write_esco

    from ranker.pipeline import SkillRanker

    path = write_config(tmp_path / "small.yaml", write_esco(tmp_path / "esco"), size=10)
    ranker = SkillRanker.load(path)
    value = {
        "name": "d", "lanes": [{"name": "b", "family": "bm25"}], "pool": {"size": 9, "weights": {"b": 1}},
        "columns": [
            {"name": "a", "family": "encoder", "model": str(models["bert"]), "view": "label"},
            {"name": "b8", "family": "encoder", "model": str(exported), "precision": "int8"},
            {"name": "c", "family": "llm", "url": "http://x/v1", "model": "m"},
        ],
    }  # fmt: skip
    value["lanes"][0]["name"] = "bm25"
    value["pool"]["weights"] = {"bm25": 1}
    monkeypatch.setattr(ranker, "config", parse_config(value))
    rank = bench.naive_cross_encoder(ranker)
    assert "without the columns c" in capsys.readouterr().err
    scores = rank(QUERIES[0])
    assert [len(part) for part in scores] == [9, 9]
    monkeypatch.setattr(ranker, "config", parse_config({**value, "columns": value["columns"][2:]}))
    with pytest.raises(Exception, match="columns c are of families that it does not have"):
        bench.naive_cross_encoder(ranker)
