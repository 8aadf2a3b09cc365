"""Training columns: losses by hand, lists without leaks, the same bytes after a kill, models that can be served."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import tiny_rerankers as tiny
import torch
from small_world import write_config, write_esco, write_tasks

import train.rerank.fit as fit_module
import train.rerank.job as job_module
from ranker.core.config import ColumnConfig, load_config
from ranker.core.errors import ArgumentError, RankerError, ResourceError
from ranker.core.sources import load_taxonomy
from rerankers.registry import build_columns
from train.crossval import HELPER_TASK
from train.lanes import Graded
from train.rerank.fit import Stage, Stepper, fit
from train.rerank.job import Job
from train.rerank.lists import (
    Lists,
    Sentences,
    alike,
    graded_lists,
    load_sentences,
    sentence_lists,
    training_rows,
)
from train.rerank.losses import MU, gain_entropy, lambda_loss, listnet
from train.rerank.report import out_of_fold
from train.rerank.scorer import Scorer
from train.rerank.study import Recipe, Study
from train.rerankers import main

N = len(tiny.LABELS)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> str:
    return str(tiny.write_bert(tmp_path_factory.mktemp("bert") / "model"))


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


# Losses


def test_lambda_loss_of_two_candidates_by_hand() -> None:
    # Ranks 1 and 2: both weights are 1 - 1 / log2(3); equal scores cost log2(1 + e^0) = 1 bit.
    expected = (1 - 1 / math.log2(3)) * (1 + MU)
    assert lambda_loss(tensor(0, 0), tensor(1, 0)).item() == pytest.approx(expected, rel=1e-6)
    assert lambda_loss(tensor(0, 0), tensor(0.2, 0)).item() == pytest.approx(expected, rel=1e-6)  # scale of gains


def test_lambda_loss_equals_the_sum_over_pairs_written_out() -> None:
    draw = np.random.default_rng(3)
    for n in (2, 5, 9):
        scores, gains = draw.normal(size=n), draw.choice([0, 1 / 15, 3 / 15, 7 / 15, 1], n)
        gains[0], gains[1] = 1, 0
        rank = np.empty(n, int)
        rank[np.argsort(-scores)] = np.arange(1, n + 1)
        best = sum(gain / math.log2(1 + i) for i, gain in enumerate(sorted(gains, reverse=True), start=1))
        total = 0.0
        for i in range(n):
            for j in range(n):
                if gains[i] > gains[j]:
                    apart = abs(rank[i] - rank[j])
                    rho = abs(1 / math.log2(1 + rank[i]) - 1 / math.log2(1 + rank[j]))
                    delta = abs(1 / math.log2(1 + apart) - 1 / math.log2(2 + apart))
                    bits = math.log2(1 + math.exp(scores[j] - scores[i]))
                    total += (rho + MU * delta) * (gains[i] - gains[j]) / best * bits
        assert lambda_loss(tensor(*scores), tensor(*gains)).item() == pytest.approx(total, rel=1e-5)


def test_the_other_losses_by_hand() -> None:
    assert listnet(tensor(0, 0, 0), tensor(1, 0.5, 0)).item() == pytest.approx(math.log(3), rel=1e-6)
    assert listnet(tensor(math.log(2), 0), tensor(1, 0)).item() == pytest.approx(math.log(1.5), rel=1e-6)
    assert gain_entropy(tensor(0, 0), tensor(1, 0.2)).item() == pytest.approx(math.log(2), rel=1e-6)


# Lists


def graded(n: int = 9, *, folds: int = 3, seed: int = 0) -> Graded:
    """Return queries that quote a label; grades 4 for it, 2 and 1 beside it, many zeros, some unjudged."""
    draw = np.random.default_rng(seed)
    grades = np.where(draw.random((n, N)) < 0.7, 0, -1).astype(np.int8)
    for row in range(n):
        for grade, step in ((4, 0), (2, 1), (1, 2), (0, 3)):
            grades[row, (row + step) % N] = grade
    texts = tuple(f"we {tiny.LABELS[row % N]} here {row}" for row in range(n))
    tasks = tuple("ab"[row % 2] for row in range(n))
    return Graded(tuple(map(str, range(n))), texts, tasks, grades, np.arange(n) % folds)


def pools(data: Graded, depth: int = 8) -> np.ndarray:
    return np.stack([np.roll(np.arange(N), -row + 1)[:depth] for row in range(len(data.texts))]).astype(np.int32)


def test_a_list_takes_from_every_stratum_in_turn() -> None:
    skills = np.arange(20, dtype=np.int32)
    strata = np.array([4] * 1 + [2] * 4 + [0] * 15, np.int8)
    lists = Lists(("x",), (skills,), (strata / np.float32(4),), (strata,))
    chosen, gains = lists.draw(0, 7, [1])
    assert sorted(strata[chosen].tolist(), reverse=True) == [4, 2, 2, 2, 0, 0, 0]
    assert (gains == strata[chosen] / np.float32(4)).all()
    assert (lists.draw(0, 7, [1])[0] == chosen).all()
    assert any((lists.draw(0, 7, [seed])[0] != chosen).any() for seed in range(2, 6))
    assert sorted(lists.draw(0, 99, [1])[0].tolist()) == skills.tolist()


def test_graded_lists_hold_the_pool_and_what_is_relevant_outside_it() -> None:
    data = graded(4, folds=2)
    data = replace(data, tasks=("a", "a", "a", HELPER_TASK))
    pool = pools(data, depth=3)
    data.grades[0] = -1
    data.grades[0, [0, 11]] = [0, 3]  # pool of row 0: 1, 2, 3
    data.grades[3] = -1
    data.grades[3, [4, 5]] = [2, 0]  # pool of row 3: 4, 5, 6, of which 6 is unjudged
    pool[0], pool[3] = [1, 2, 3], [4, 5, 6]
    lists = graded_lists(data, pool, "graded")
    assert lists.skills[0].tolist() == [1, 2, 3, 11]
    assert lists.gains[0].tolist() == pytest.approx([0, 0, 0, 7 / 15])
    assert lists.skills[3].tolist() == [4, 5]  # a helper's unjudged skill is in no list
    binary = graded_lists(data, pool, "binary")
    assert binary.gains[0].tolist() == [0, 0, 0, 0]
    assert binary.usable().tolist() == [1, 2]  # no grade 4: nothing to learn
    assert lists.usable().tolist() == [0, 1, 2, 3]


def test_the_ladder_leaves_out_or_softens_the_head() -> None:
    ranking = np.arange(400, dtype=np.int32)[None]
    sentences = Sentences(("x",), ((3, 390),))
    lists = sentence_lists(sentences, ranking, 0.0)
    assert lists.skills[0][:2].tolist() == [3, 390]
    assert not set(range(11)) - {3} & set(lists.skills[0].tolist())  # ten ranks that are not gold: 0..10 without 3
    assert lists.gains[0].sum() == 2
    assert np.bincount(-lists.strata[0][2:]).tolist() == [0, 40, 250, 98]
    soft = sentence_lists(sentences, ranking, 0.25)
    head = soft.strata[0] == 0
    assert soft.skills[0][head].tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert (soft.gains[0][head] == 0.25).all()


def test_graded_and_repeated_sentences_are_not_read(tmp_path) -> None:
    uri = tiny.TAXONOMY.uri
    rows = [
        {"text": "Weld it.", "skills": [uri[0], "u:none", uri[0]]},
        {"text": "weld IT", "skills": [uri[1]]},
        {"text": "Known query", "skills": [uri[1]], "graded": True},
        {"text": "Nothing known", "skills": ["u:none"]},
        {"text": "", "skills": [uri[1]]},
        {"text": "• Paint walls", "skills": [uri[1]]},
    ]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_sentences(tmp_path, tiny.TAXONOMY, strip_bullets=True)
    assert found == Sentences(("Weld it.", "Paint walls"), ((0,), (1,)))
    with pytest.raises(ResourceError, match=r"no \.jsonl file of sentences"):
        load_sentences(tmp_path / "none", tiny.TAXONOMY, strip_bullets=True)


def test_near_duplicates_of_a_held_out_query_train_nowhere_near_it() -> None:
    texts = ["Weld metal", "weld METAL!", "join iron", "paint", "sell"]
    vectors = np.eye(5, dtype=np.float32)
    vectors[1], vectors[2] = vectors[0], [0.96, 0, 0.28, 0, 0]
    same = alike(texts, vectors, texts, vectors)
    assert np.flatnonzero(same[0]).tolist() == [0, 1, 2]
    folds = np.array([0, 1, 2, 0, 1])  # as a careless file of folds may put them
    assert training_rows(folds, same, 0).tolist() == [4]
    assert training_rows(folds, same, 1).tolist() == [3]
    assert training_rows(folds, same, 2).tolist() == [3, 4]


# The loop


def stage(data: Graded, **changes) -> Stage:
    lists = graded_lists(data, pools(data), changes.pop("targets", "graded"))
    usual = {"number": 2, "size": 6, "batch": 4, "passes": 4, "rate": 3e-3, "loss": "lambda", "seed": 0}
    return Stage(lists, **{**usual, **changes})


def scorer(model: str, **options) -> Scorer:
    return Scorer(model, tiny.TAXONOMY, max_length=40, **options)


def scores(made: Scorer, data: Graded) -> np.ndarray:
    return np.stack([made.predict(text, np.arange(N, dtype=np.int32)) for text in data.texts])


@pytest.mark.parametrize("loss", ["lambda", "listnet", "gain"])
def test_training_lowers_the_loss_and_places_what_is_relevant(bert, tmp_path, loss) -> None:
    data = graded(6)
    made = scorer(bert)
    before = out_of_fold(data, pools(data, N), scores(made, data))["column"]["macro"]
    fit(made, stage(data, loss=loss, rate=1e-2), np.arange(6), name="x", steps=40, folder=tmp_path)
    log = json.loads((tmp_path / "x.log.json").read_text())
    assert log[-1]["step"] == 40
    assert np.mean([line["loss"] for line in log[-10:]]) < 0.8 * np.mean([line["loss"] for line in log[:10]])
    assert out_of_fold(data, pools(data, N), scores(made, data))["column"]["macro"] > before + 0.05


class Killed(Exception):
    pass


@pytest.mark.parametrize("lora", [0, 2])
def test_a_run_that_is_killed_ends_as_one_that_is_not(bert, tmp_path, monkeypatch, lora) -> None:
    data = graded(6)
    whole = scorer(bert, lora=lora)
    fit(whole, stage(data), np.arange(6), name="x", steps=6, folder=tmp_path / "a", evaluate=lambda: 0.5)
    again = scorer(bert, lora=lora)
    fit(again, stage(data), np.arange(6), name="x", steps=6, folder=tmp_path / "b")
    assert (scores(again, data) == scores(whole, data)).all()

    monkeypatch.setattr(fit_module, "SAVE_SECONDS", 0)
    taken = Stepper.step

    def dies(self, step: int) -> float:
        if step == dies.at:
            raise Killed
        return taken(self, step)

    monkeypatch.setattr(Stepper, "step", dies)
    resumed = None
    for dies.at in (1, 4, 5, None):
        resumed = scorer(bert, lora=lora)
        try:
            fit(resumed, stage(data), np.arange(6), name="x", steps=6, folder=tmp_path / "c", evaluate=lambda: 0.5)
        except Killed:
            continue
    assert (scores(resumed, data) == scores(whole, data)).all()
    assert (tmp_path / "c" / "x.log.json").read_text() == (tmp_path / "a" / "x.log.json").read_text()


def test_another_seed_is_another_model(bert, tmp_path) -> None:
    data = graded(6)
    results = []
    for seed in (0, 1):
        made = scorer(bert, seed=seed)
        fit(made, stage(data, seed=seed), np.arange(6), name=f"x{seed}", steps=2, folder=tmp_path)
        results.append(scores(made, data))
    assert (results[0] != results[1]).any()


def test_memory_that_runs_out_halves_the_batch(bert, tmp_path, monkeypatch, capsys) -> None:
    data, asked = graded(6), []
    forward = Scorer.forward

    def scarce(self, pairs):
        asked.append(len(pairs))
        if len(pairs) > 12:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, pairs)

    monkeypatch.setattr(Scorer, "forward", scarce)
    made = scorer(bert)
    fit(made, stage(data), np.arange(6), name="x", steps=3, folder=tmp_path)
    assert asked == [24, *[12, 12] * 3]  # four lists of six at once, then two at a time, never four again
    assert "memory ran out: 2 lists at once from step 1 on" in capsys.readouterr().err
    assert np.isfinite(scores(made, data)).all()


def test_accumulated_gradients_are_those_of_the_whole_batch(bert, monkeypatch) -> None:
    data, gradients = graded(6), []
    for micro in (4, 1):
        made = scorer(bert)
        monkeypatch.setattr(made.network, "train", lambda *_: None)  # it was loaded without dropout
        stepper = Stepper(made, stage(data, rate=1e-9), np.arange(6), 3)
        stepper.micro = micro
        stepper.step(0)
        gradients.append(torch.cat([p.grad.flatten() for p in stepper.parameters if p.grad is not None]))
    assert gradients[0].norm() > 0.5
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-4)


def test_errors_of_memory_that_cannot_be_helped_and_others_are_told(bert, monkeypatch) -> None:
    stepper = Stepper(scorer(bert), stage(graded(6)), np.arange(6), 3)
    monkeypatch.setattr(Scorer, "forward", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(RankerError, match="one list of 6 pairs does not fit into memory"):
        stepper.step(0)
    monkeypatch.setattr(Scorer, "forward", lambda *_: (_ for _ in ()).throw(RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        stepper.step(0)


def test_a_loss_that_is_not_finite_stops_with_advice(bert, tmp_path, monkeypatch) -> None:
    forward = Scorer.forward
    monkeypatch.setattr(Scorer, "forward", lambda self, pairs: forward(self, pairs) * math.nan)
    with pytest.raises(RankerError, match=r"stage 2: the loss is not finite at step 1 of 3; lower --rate"):
        fit(scorer(bert), stage(graded(6)), np.arange(6), name="x", steps=3, folder=tmp_path)
    assert not (tmp_path / "x.log.json").exists()


# A whole training


def study(data: Graded, targets: str = "graded", train=None) -> Study:
    second = stage(data, targets=targets, passes=2)
    folds = [second.lists.usable(np.flatnonzero(data.folds != fold)) for fold in range(3)]
    sentences = Sentences(tuple(f"{label} every day" for label in tiny.LABELS), tuple((i,) for i in range(N)))
    ranking = np.stack([np.roll(np.arange(N), -i) for i in range(N)]).astype(np.int32)
    first = replace(second, lists=sentence_lists(sentences, ranking, 0.1), number=1, size=5, passes=1)
    return Study(data, pools(data), first, second, tuple(folds if train is None else train), {})


def recipe(model: str, **options) -> Recipe:
    return Recipe(model, **{"max_length": 40, **options}, depth=8, list_size=6, batch=4, rate=3e-3)


def test_held_out_grades_cannot_change_their_own_scores(bert, tmp_path) -> None:
    data = graded()
    turned = data.grades.copy()
    held = data.folds == 1
    turned[held] = np.where(turned[held] == 4, 0, np.where(turned[held] == 0, 4, turned[held]))
    results = []
    for name, given in (("a", data), ("b", replace(data, grades=turned))):
        job = Job(study(given), recipe(bert), tiny.TAXONOMY, tmp_path / name)
        results.append(job.cross_fit())
    assert (np.isfinite(results[0]) == np.isfinite(results[1])).all()
    assert (np.isfinite(results[0]).sum(axis=1) == 8).all()
    same = (np.nan_to_num(results[0]) == np.nan_to_num(results[1])).all(axis=1)
    assert same[held].all()
    assert not same[~held].any()


def test_what_is_done_is_not_done_again_and_the_plan_is_kept(bert, tmp_path, monkeypatch) -> None:
    made = Job(study(graded()), recipe(bert), tiny.TAXONOMY, tmp_path)
    assert made.steps == {"stage-1": 3, "fold-0": 3, "fold-1": 3, "fold-2": 3, "full": 5}
    first = made.cross_fit()
    (tmp_path / "fold-2.npy").unlink()  # as if it had been killed in the last fold
    trained = []
    monkeypatch.setattr(
        job_module, "fit", lambda *a, **k: (trained.append((k["name"], k["steps"])), fit(*a, **k))[1]
    )
    again = Job(study(graded()), recipe(bert), tiny.TAXONOMY, tmp_path, minutes=1e-9)
    np.testing.assert_array_equal(again.cross_fit(), first)
    assert trained == [("fold-2", 3)]
    assert not list(tmp_path.glob("*.pt"))
    assert set(made.logs()) == {"stage-1", "fold-0", "fold-1", "fold-2"}
    assert all(0 < line["ndcg"] <= 1 for line in made.logs()["fold-0"] if "ndcg" in line)


def test_a_budget_shortens_all_fits_alike(bert, tmp_path, monkeypatch, capsys) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(job_module.time, "monotonic", lambda: float(next(ticks)))
    # The clock moves one second per look: 1/3 s per step, 1 s per pool of 8; 9 pools and 3 x 4 evaluations of 32 lists
    # of 6 are (72 + 2304) / 8 = 297 s; all passes are 17 steps = 17/3 s.
    job = Job(study(graded()), recipe(bert), tiny.TAXONOMY, tmp_path / "a", minutes=(297 + 17 / 6 + 0.01) / 60)
    assert job.steps == {"stage-1": 1, "fold-0": 1, "fold-1": 1, "fold-2": 1, "full": 2}
    assert "3.00 steps per second in stage 1, 3.00 steps per second in stage 2" in capsys.readouterr().err
    fresh = scorer(bert, seed=0)
    assert (scores(job.scorer, graded()) == scores(fresh, graded())).all()  # measuring leaves no trace
    ample = Job(study(graded()), recipe(bert), tiny.TAXONOMY, tmp_path / "b", minutes=1e6)
    assert ample.steps["full"] == 5
    with pytest.raises(ArgumentError, match=r"scoring the pools takes about 5\.0 minutes by itself"):
        Job(study(graded()), recipe(bert), tiny.TAXONOMY, tmp_path / "c", minutes=297 / 60)


def write_bare(folder):
    """Write an encoder without pooler and head, which adapters must bring whole."""
    from transformers import BertModel

    tiny.write_bert(folder)
    BertModel.from_pretrained(folder, add_pooling_layer=False).save_pretrained(folder)
    return folder


KINDS = {
    "bare, adapters": (write_bare, {"lora": 2}),
    "bert": (tiny.write_bert, {}),
    "bert, adapters": (tiny.write_bert, {"lora": 2}),
    "xlm-r": (tiny.write_xlmr, {}),
    "deberta, adapters": (tiny.write_deberta, {"lora": 2}),
    "qwen3": (tiny.write_qwen, {"causal": True, "max_length": 600}),
    "qwen3, adapters": (tiny.write_qwen, {"causal": True, "max_length": 600, "lora": 2}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_scores_as_the_trainer(tmp_path, kind) -> None:
    write, options = KINDS[kind]
    model = str(write(tmp_path / "model"))
    data = graded(3)
    job = Job(study(data), recipe(model, **options), tiny.TAXONOMY, tmp_path / "job")
    before = scores(job.scorer, data)
    job.full(tmp_path / "out")
    expected = scores(job.scorer, data)
    assert np.abs(expected - before).max() > 0.01
    out = str(tmp_path / "out")
    weights = {"model": model, "adapter": out} if "lora" in options else {"model": out}
    family = "causal" if "causal" in options else "encoder"
    length = {"max_length": options.get("max_length", 40)}
    column = build_columns([ColumnConfig("c", family, options={**weights, **length})])["c"]
    column.fit(tiny.TAXONOMY)
    served = column.score(data.texts, np.tile(np.arange(N, dtype=np.int32), (3, 1)))
    np.testing.assert_allclose(served, expected, atol=1e-4)
    if "lora" in options:
        assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == model


# The command


def command(tmp_path, bert: str, *extra: str) -> list[str]:
    esco = tmp_path / "esco"
    if not esco.is_dir():
        write_esco(esco)
        write_tasks(tmp_path / "data", n_queries=8)
        write_tasks(tmp_path / "help", n_tasks=1, n_queries=3, seed=5)
        text = "Paint the ship hulls of the yard"
        rows = [{"text": text, "skills": ["http://data.europa.eu/esco/skill/015"]}]
        query = json.loads((tmp_path / "data" / "task0" / "queries.jsonl").read_text().splitlines()[0])["text"]
        rows.append({"text": query.upper(), "skills": ["http://data.europa.eu/esco/skill/015"]})
        (tmp_path / "sentences.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = write_config(tmp_path / "small.yaml", esco)
    return [
        *("--config", str(config), "--model", bert, "--data", str(tmp_path / "data"), "--max-length", "40"),
        *("--helpers", str(tmp_path / "help"), "--sentences", str(tmp_path), "--depth", "20", "--list-size", "6"),
        *("--passes", "1", "--json", *extra),
    ]


def test_the_command_from_texts_to_a_fusion_with_the_column(bert, tmp_path, capsys, monkeypatch) -> None:
    from train.fusion import main as train_fusion

    oof, out = tmp_path / "column.npy", tmp_path / "column"
    arguments = command(tmp_path, bert, "--oof", str(oof), "--out", str(out))
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["counts"] == {
        "queries": 19, "queries_with_one_grade": 0, "sentences": 1, "sentences_like_a_query": 1,
    }
    assert set(report["out_of_fold"]["column"]["tasks"]) == {"task0", "task1"}
    first = np.load(oof)
    assert first.shape == (19, 144)
    assert (np.isfinite(first).sum(axis=1) == 20).all()
    assert {"model.safetensors", "tokenizer.json", "training.json", "training.png", "README.md"} <= {
        path.name for path in out.iterdir()
    }
    assert oof.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"

    system = (tmp_path / "small.yaml").read_text() + (
        f"columns:\n  - {{name: cross, family: encoder, model: {out}, max_length: 40, depth: 15}}\n"
    )
    (tmp_path / "with.yaml").write_text(system.replace("name: small", "name: with"))
    given = [f"--config={tmp_path / 'with.yaml'}", f"--data={tmp_path / 'data'}", f"--helpers={tmp_path / 'help'}"]
    small = ["--rounds", "5", "--members", "4", "--repetitions", "1", "--json"]
    assert train_fusion([*given, *small, "--oof", f"cross={oof}"]) == 0
    assert 0 < json.loads(capsys.readouterr().out.splitlines()[-1])["cv"]["macro"] <= 1

    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "another"))
    assert main(command(tmp_path, bert, "--oof", str(tmp_path / "again.npy"))) == 0
    assert (tmp_path / "again.npy").read_bytes() == oof.read_bytes()


def test_a_judges_grades_are_distilled_into_a_column_of_a_config(bert, tmp_path, capsys) -> None:
    """Judge's folder -> train.rerankers -> column; the judge prefers short labels, which nothing else here does."""
    pytest.importorskip("httpx", reason="needs the extra llm")
    from ranker import SkillRanker
    from train.judge import main as judge
    from train.labels.gates import GATES
    from train.labels.standin import Reply, StandIn

    async def script(body):
        label = next(line for line in body["messages"][1]["content"].splitlines() if line.startswith("Skill: "))[7:]
        gate = GATES.index(body["response_format"]["json_schema"]["name"])
        return Reply(json.dumps({"answer": gate < (22 - len(label)) / 2}))

    esco = write_esco(tmp_path / "esco")
    write_tasks(tmp_path / "data", n_tasks=1, n_queries=6)
    config = write_config(tmp_path / "small.yaml", esco)
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"we do {word} all day\n" for word in ("welding", "gardens", "music", "glass", "cars")))
    labels, student = tmp_path / "labels", tmp_path / "student"
    with StandIn(script) as server:
        given = ["--queries", texts, "--out", labels, "--system", config, "--lane", "tfidf", "--depth", "60"]
        assert judge([str(value) for value in (*given, "--url", server.url, "--model", "teacher")]) == 0
    given = ["--config", config, "--model", bert, "--data", tmp_path / "data", "--helpers", labels, "--out", student,
             "--view", "label", "--max-length", "40", "--depth", "60", "--passes", "40", "--rate", "0.003",
             "--json"]  # fmt: skip
    capsys.readouterr()
    assert main([str(value) for value in given]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["counts"]["queries"] == 6 + 5

    def lengths(model) -> float:
        """Return how much longer the labels are that a column puts last than those it puts first."""
        path = tmp_path / "with.yaml"
        column = f"{{name: student, family: encoder, model: {model}, view: label, max_length: 40, depth: 60}}"
        path.write_text(config.read_text() + f"columns:\n  - {column}\nfusion: {{order: student}}\n")
        skills = SkillRanker.load(path).rank(["we do repairs all day"], top_k=60)[0].skills
        sizes = [len(skill.label) for skill in skills]
        return float(np.mean(sizes[-15:]) - np.mean(sizes[:15]))

    assert lengths(student) > 2
    assert lengths(student) > lengths(bert) + 2


def test_a_trained_lane_must_bring_scores_of_unseen_queries(bert, tmp_path, monkeypatch) -> None:
    from train.rerank import study as study_module

    arguments = command(tmp_path, bert, "--oof", str(tmp_path / "x.npy"))
    config = load_config(tmp_path / "small.yaml")
    lanes = (replace(config.lanes[0], family="tuned"), *config.lanes[1:])
    monkeypatch.setattr(study_module, "Pipeline", lambda *_, **__: type("P", (), {"lanes": {"bm25": None}}))
    with pytest.raises(ArgumentError, match="lane bm25 was trained on graded queries; give its out-of-fold scores"):
        study_module.clean_pool(replace(config, lanes=lanes), load_taxonomy(config.taxonomy), graded(4), [], 10)
    with pytest.raises(ArgumentError, match="no untrained lane of that name; there are: tfidf"):
        study_module.lane_ranking(replace(config, lanes=lanes), load_taxonomy(config.taxonomy), "bm25", ["x"])
    with pytest.raises(ArgumentError, match="nothing to do"):
        main(arguments[: arguments.index("--json")])
