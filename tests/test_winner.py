"""The winner's config with a tiny random model of the real class for every hub id, from files to the zip."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from small_world import BASE

from ranker.core.cli import run
from ranker.core.config import CONFIG_DIR, load_config

pytest.importorskip("FlagEmbedding")
pytest.importorskip("peft")
torch = pytest.importorskip("torch")

from tiny_bert import write_tiny_bert  # noqa: E402
from tiny_field import write_jobbert, write_m3, write_mpnet, write_qwen_embedding  # noqa: E402
from tiny_rerankers import write_deberta, write_qwen, write_xlmr  # noqa: E402

from fusion.features import load_statics  # noqa: E402
from ranker import submit  # noqa: E402
from ranker.core.sources import load_taxonomy  # noqa: E402
from train.fusion import main as train  # noqa: E402
from train.labels.standin import Reply, StandIn  # noqa: E402

LABELS = (
    "weld steel frames", "weld copper pipes", "paint stone walls", "paint ship hulls", "repair car engines",
    "repair electric motors", "cut glass panels", "cut roof tiles", "plan garden work", "plan music lessons",
    "care for people", "use C++",
)  # fmt: skip
MODELS = {
    "Aleksandruz/skillmatch-mpnet-curriculum-retriever": write_mpnet,
    "TechWolf/ConTeXT-Skill-Extraction-base": lambda folder: write_mpnet(folder, seed=1),
    "sentence-transformers/all-MiniLM-L6-v2": write_tiny_bert,
    "TechWolf/JobBERT-v2": lambda folder: write_jobbert(folder, seed=2),
    "BAAI/bge-reranker-base": lambda folder: write_xlmr(folder, positions=192),
    "BAAI/bge-reranker-v2-m3": lambda folder: write_xlmr(folder, seed=1, positions=192),
    "mixedbread-ai/mxbai-rerank-large-v1": lambda folder: write_deberta(folder, positions=192),
    "Qwen/Qwen3-Reranker-4B": write_qwen,
    "Qwen/Qwen3-Reranker-8B": lambda folder: write_qwen(folder, seed=1),
}


def uri(row: int) -> str:
    return f"{BASE}{row:08x}-0000-0000-0000-000000000000"


def write_taxonomy(folder: Path) -> None:
    folder.mkdir(parents=True)
    with (folder / "skills_en.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["conceptUri", "preferredLabel", "altLabels", "description"])
        for row, label in enumerate(LABELS):
            writer.writerow([uri(row), label, "", f"Be able to {label} in a team."])


def write_queries(folder: Path, texts: list[str], name: str = "task") -> Path:
    """Write a task: its grades are invented, 4 for what a text names, 2 for what shares a word with it, else 0."""
    task = folder / name
    task.mkdir(parents=True)
    rows = ["query-id\tcorpus-id\tscore"]
    for number, text in enumerate(texts):
        for row, label in enumerate(LABELS):
            grade = 4 if label in text else 2 * bool(set(label.split()) & set(text.split()))
            rows.append(f"q{number}\t{uri(row)}\t{grade}")
    lines = [json.dumps({"_id": f"q{number}", "text": text}) for number, text in enumerate(texts)]
    (task / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (task / "qrels.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def system(tmp_path_factory) -> Path:
    """Return a folder with the whole system: config, taxonomy, models, and a bag trained on invented grades."""
    place = tmp_path_factory.mktemp("winner")
    folder = place / "system"
    write_taxonomy(folder / "esco")
    text = (CONFIG_DIR / "winner-2026.yaml").read_text(encoding="utf-8")
    for number, (name, write) in enumerate(MODELS.items()):
        write(folder / f"model{number}")
        assert f"model: {name}," in text or f"model: {name}\n" in text
        text = text.replace(f"model: {name}", f"model: model{number}")
    text += "taxonomy: {source: official, path: esco}\n"
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    write_queries(place / "graded", list(LABELS[:4]), "names")
    data = write_queries(place / "graded", [f"You {label}" for label in LABELS[4:8]], "sentences")
    folds = place / "folds.json"  # by hand: to random weights all texts are near-duplicates
    folds.write_text(json.dumps({f"q{number}": number % 2 for number in range(4)}), encoding="utf-8")
    given = ["--config", folder, "--data", data, "--folds", folds, "--out", folder / "winner-2026", "--rounds", 5,
             "--negatives", "none"]  # fmt: skip
    options = ["--members", 2, "--repetitions", 1, "--objective", "lambdarank", "--override", "--json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKER_CACHE", str(place / "cache-of-training"))
        assert run(train, [str(value) for value in (*given, *options)]) == 0
    return folder


def test_the_system_is_the_documented_one(system):
    config = load_config(system)
    shape = load_config("winner-2026")
    assert (len(config.lanes), len(config.columns), config.pool.size) == (12, 13, 1000)
    assert config.pool.weights == {"curriculum": 0.6, "context": 0.4}
    assert len({column.options["model"] for column in shape.columns}) == 5
    assert {stage.options.get("model") for stage in (*shape.lanes, *shape.columns)} - {None} == set(MODELS)
    manifest = json.loads((system / "winner-2026" / "manifest.json").read_text())
    assert manifest["override"] is True
    assert manifest["prior"] is True
    columns = {column.name for column in config.columns}
    assert {name.split(".")[1] for name in manifest["features"] if name.split(".")[0] == "column"} == columns
    assert manifest["taxonomy"] == load_statics(load_taxonomy(config.taxonomy), None).fingerprint


def test_killed_in_the_middle_and_resumed_it_writes_the_bytes_of_the_undisturbed_run(system, tmp_path, monkeypatch):
    texts = ["* weld steel frames", "We repair engines; you plan the work"]
    data = write_queries(tmp_path / "asked", texts)
    given = ["--config", str(system), "--data", str(data), "--top-k", "500", "--device", "cpu"]
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache-a"))
    assert run(submit.main, [*given, "--out", str(tmp_path / "plain.zip")]) == 0

    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache-b"))
    stages, out = tmp_path / "cache-b" / "stages", tmp_path / "staged.zip"
    staged = [*given, "--stage-wise", "--out", str(out)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ranker.submit", *staged], env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=CONFIG_DIR.parent, stdout=log, stderr=log,
        )  # fmt: skip
        while process.poll() is None and not list(stages.glob("deberta-*/*.npy")):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()[-2000:]
    assert not out.exists()
    kept = {file: file.stat().st_mtime_ns for file in stages.rglob("*-*/*[0-9a-f].npy")}
    names = {file.parent.name.rsplit("-", 1)[0] for file in kept}
    assert {"token_set", "bge_m3_label"} <= names
    assert "qwen_8b_implied" not in names, "it was killed in the middle"

    assert run(submit.main, staged) == 0
    assert out.read_bytes() == (tmp_path / "plain.zip").read_bytes()
    assert {file: file.stat().st_mtime_ns for file in kept} == kept, "what was finished is not scored again"
    assert submit.validate(out)[0] == []
    with zipfile.ZipFile(out) as archive:
        ((_, tasks),) = json.loads(archive.read("submission.json")).items()
    scores = tasks["task"]["en"]["scores"]
    assert [len(row) for row in scores.values()] == [len(LABELS)] * 2
    assert next(iter(scores["q0"])) == submit.short_id(uri(0)), "the query is the skill's name: override"


OTHERS = {
    "hybrid": {
        "Qwen/Qwen3-Embedding-8B": write_qwen_embedding,
        "BAAI/bge-m3": write_m3,
        "Qwen/Qwen3-Reranker-0.6B": write_qwen,
        "Qwen/Qwen3-Reranker-8B": lambda folder: write_qwen(folder, seed=1, tied=False),
    },
    "llm": {},
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_families_run_from_their_configs(name, tmp_path, monkeypatch):
    pytest.importorskip("httpx", reason="needs the extra llm")
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    write_taxonomy(tmp_path / "esco")
    data = write_queries(tmp_path / "asked", ["* weld steel frames", "We repair engines; you plan the work"])
    text = (CONFIG_DIR / f"{name}.yaml").read_text(encoding="utf-8")
    for number, (model, write) in enumerate(OTHERS[name].items()):
        write(tmp_path / f"model{number}")
        assert f"model: {model}" in text
        text = text.replace(f"model: {model}", f"model: {tmp_path}/model{number}")

    async def script(body):  # the last first
        shown = body["messages"][-1]["content"].count("\n")
        return Reply(" > ".join(map(str, range(shown, 0, -1))))

    with StandIn(script) as server:
        text = text.replace("https://api.openai.com/v1", server.url)
        (tmp_path / "config.yaml").write_text(f"{text}taxonomy: {{source: official, path: {tmp_path}/esco}}\n")
        given = ["--config", str(tmp_path / "config.yaml"), "--data", str(data), "--top-k", "12", "--device", "cpu"]
        files = [tmp_path / "plain.zip", tmp_path / "staged.zip"]
        assert run(submit.main, [*given, "--out", str(files[0])]) == 0
        assert run(submit.main, [*given, "--stage-wise", "--out", str(files[1])]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert submit.validate(files[0])[0] == []
    assert len(server.requests) == (3 if name == "llm" else 0), "one to see whether it answers, one a query"
