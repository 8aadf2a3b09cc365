"""The judge, end to end over HTTP against a stand-in server, and its parts."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ranker.core.answers import AnswerCache
from ranker.core.chat import Endpoint
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.tasks import load_tasks
from ranker.core.taxonomy import Skill, Taxonomy
from tests.small_world import BASE, write_config, write_esco
from train.judge import main
from train.labels.cascade import Judge, Outcome
from train.labels.client import JudgeClient
from train.labels.gates import DIRECT, GATES, Pair, load_questions
from train.labels.standin import Reply, StandIn
from train.labels.stream import candidates, pairs, read_stream

pytest.importorskip("httpx", reason="needs the extra llm")

YES, NO = '{"answer": true}', '{"answer": false}'
PAIR = Pair("weld frames", "weld metal", "Join metal.")


def asked(body):
    """The gate, skill label and user message of a request."""
    gate = body["response_format"]["json_schema"]["name"]
    user = body["messages"][1]["content"]
    label = next(line for line in user.splitlines() if line.startswith("Skill: ")).removeprefix("Skill: ")
    return gate, label, user


def scripted(answer):
    """A script from a plain function of gate, label and body."""

    async def script(body):
        gate, label, _ = asked(body)
        reply = answer(gate, label, body)
        return reply if isinstance(reply, Reply) else Reply(reply)

    return script


def grade(script, *, mode="cascade", juror=None, cache=":memory:", pair=PAIR, **options):
    """Grade one pair against a server; return the outcome, the server and the client."""

    async def go(url):
        endpoint = Endpoint(url, "judge", **{"backoff": 0.01, "timeout": 5.0, "retries": 2, **options})
        with AnswerCache(Path(cache)) as answers:
            async with JudgeClient(endpoint) as client, JudgeClient(Endpoint(url, "juror", backoff=0.01)) as second:
                judge = Judge(load_questions(), client, answers, second if juror else None, mode)
                return await judge.grade(pair), client

    with StandIn(script) as server:
        outcome, client = asyncio.run(go(server.url))
    return outcome, server, client


@pytest.mark.parametrize("passed", range(5))
def test_the_first_no_fixes_the_grade_and_ends_the_questions(passed):
    outcome, server, _ = grade(scripted(lambda gate, *_: YES if GATES.index(gate) < passed else NO))
    assert outcome.grade == passed
    assert [asked(body)[0] for body in server.requests] == list(GATES[: passed + 1])


def test_a_request_asks_for_one_boolean_at_temperature_0_and_shows_label_and_description():
    _, server, client = grade(scripted(lambda *_: YES), pair=PAIR._replace(gold="forge metal; $label {x}"))
    for body in server.requests:
        schema = body["response_format"]["json_schema"]
        assert body["temperature"] == 0
        assert schema["strict"] is True
        assert schema["schema"]["properties"] == {"answer": {"type": "boolean"}}
        assert schema["schema"]["additionalProperties"] is False
        assert all(part in asked(body)[2] for part in ("weld frames", "weld metal", "Join metal."))
    assert "forge metal; $label {x}" in asked(server.requests[3])[2]
    assert "forge metal" not in asked(server.requests[0])[2]
    lengths = [sum(len(message["content"]) for message in body["messages"]) for body in server.requests]
    assert client.usage.prompt_tokens == sum(length // 4 for length in lengths)
    assert client.usage.cost((1e6, 0.0)) == client.usage.prompt_tokens


BAD = {
    "nonsense": Reply("I think so"),
    "a number": Reply('{"answer": 1}'),
    "a rationale": Reply('{"answer": true, "why": "x"}'),
    "half an answer": Reply('{"answer": tr', finish="length"),
    "no completion": Reply(raw=b"<html>"),
    "no choices": Reply(raw=b'{"choices": []}'),
    "refused": Reply("", message={"refusal": "I cannot"}),
    "filtered": Reply(NO, finish="content_filter"),
    "429": Reply("slow down", status=429, headers={"retry-after": "0"}),
    "500": Reply("boom", status=500),
    "cut": Reply(NO, cut=20),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_answer_is_tried_again_and_then_unjudged_never_0(name):
    outcome, server, client = grade(scripted(lambda *_: BAD[name]))
    assert outcome.grade is None
    assert outcome.gate == "domain"
    assert outcome.reason
    assert len(server.requests) == 3
    assert client.usage.retries == 2


@pytest.mark.parametrize("name", BAD)
def test_an_answer_after_trouble_counts(name):
    left = [BAD[name], BAD[name]]
    outcome, server, _ = grade(scripted(lambda *_: left.pop() if left else NO))
    assert outcome == Outcome(0, "domain")
    assert len(server.requests) == 3


def test_a_server_that_hangs_is_left_after_the_timeout():
    async def script(body):
        await asyncio.sleep(30)

    start = time.monotonic()
    outcome, server, client = grade(script, timeout=0.2, retries=1)
    assert outcome.grade is None
    assert outcome.reason.startswith("timed out")
    assert len(server.requests) == 2
    assert client.usage.failures == {"timed out": 2}
    assert time.monotonic() - start < 10


def test_a_later_gate_without_an_answer_leaves_the_pair_unjudged():
    outcome, *_ = grade(scripted(lambda gate, *_: YES if gate != "granularity" else "?"))
    assert (outcome.grade, outcome.gate) == (None, "granularity")


def test_a_request_at_fault_is_not_repeated_and_a_refused_key_ends_the_run():
    outcome, server, _ = grade(scripted(lambda *_: Reply("too long", status=400)))
    assert (outcome.grade, len(server.requests)) == (None, 1)
    with pytest.raises(ResourceError, match="JUDGE_API_KEY"):
        grade(scripted(lambda *_: Reply("who are you", status=401)))


def test_the_key_is_sent_from_the_environment(monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", "secret\n")
    assert grade(scripted(lambda *_: NO))[1].keys == ["Bearer secret"]


@pytest.mark.parametrize(
    ("judge", "juror", "expected", "calls"),
    [
        (4, 4, 4, 6),  # both agree
        (4, 3, 3, 6),  # demoted at the last gate
        (4, 2, 2, 4),  # demoted at the third
        (2, 4, 2, 3),  # never promoted, and not even asked
        (1, 4, 1, 2),
    ],
)
def test_a_juror_can_demote_and_never_promote(judge, juror, expected, calls):
    def answer(gate, label, body):
        return YES if GATES.index(gate) < (judge if body["model"] == "judge" else juror) else NO

    outcome, server, _ = grade(scripted(answer), juror=True)
    assert outcome.grade == expected
    assert len(server.requests) == calls
    assert {asked(b)[0] for b in server.requests if b["model"] == "juror"} <= {"granularity", "replacement"}


def test_direct_mode_asks_once_for_a_grade():
    outcome, server, _ = grade(scripted(lambda *_: '{"grade": 3}'), mode=DIRECT)
    assert (outcome.grade, len(server.requests)) == (3, 1)
    for nonsense in ('{"grade": 5}', '{"grade": true}', '{"grade": 2.0}', "3"):
        assert grade(scripted(lambda *_, a=nonsense: a), mode=DIRECT)[0].grade is None


def test_answers_are_kept_by_model_prompt_and_what_was_shown(tmp_path):
    cache = tmp_path / "a.sqlite"
    ask = scripted(lambda *_: NO)
    assert len(grade(ask, cache=cache)[1].requests) == 1
    assert len(grade(ask, cache=cache)[1].requests) == 0
    assert len(grade(ask, cache=cache, pair=PAIR._replace(description="Other."))[1].requests) == 1
    assert len(grade(ask, cache=cache, extra={"seed": 1})[1].requests) == 1
    with AnswerCache(cache) as answers:
        assert len(answers) == 3
        assert answers.put("m", "p", "x", 1) == 1
        assert answers.put("m", "p", "x", 0) == 1  # the first answer counts
    (tmp_path / "no.sqlite").write_text("this is no data base, but long enough to be looked at" * 20)
    with pytest.raises(InputError, match="move it away"):
        AnswerCache(tmp_path / "no.sqlite")


def test_prompts_of_ones_own_are_checked_and_an_edit_changes_the_version(tmp_path):
    own = load_questions()
    for name in own:
        (tmp_path / f"{name}.txt").write_text("S\n===\n$text $label $description", encoding="utf-8")
    before = load_questions(str(tmp_path))["domain"].version
    (tmp_path / "domain.txt").write_text("S2\n===\n$text $label $description", encoding="utf-8")
    assert load_questions(str(tmp_path))["domain"].version != before
    (tmp_path / "domain.txt").write_text("S\n===\n$text $label", encoding="utf-8")
    with pytest.raises(InputError, match=r"must show \$description"):
        load_questions(str(tmp_path))
    with pytest.raises(ResourceError, match="versions there are: v1"):
        load_questions("v0")


class Tiny:
    """A stand-in scorer that prefers the later skills."""

    def score(self, queries):
        return np.tile(np.arange(4, dtype=np.float32), (len(queries), 1))


def test_the_prefilter_cuts_and_gold_is_always_in_and_never_judged(tmp_path):
    taxonomy = Taxonomy.from_skills([Skill(f"u{i}", f"skill {i}") for i in range(4)])
    path = tmp_path / "q.jsonl"
    rows = [
        {"_id": "a", "text": "x", "skills": ["u0", "u3", "gone"]},
        {"_id": "b", "text": "y"},
        {"_id": "b", "text": "z"},
        {"_id": "c", "text": " "},
        7,
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\nnot json\n", encoding="utf-8")
    stream = read_stream(path)
    assert [query.id for query in stream.queries] == ["a", "b"]
    assert len(stream.problems) == 4
    pool = candidates(Tiny(), taxonomy, stream.queries, 2)
    assert [rows.tolist() for rows in pool] == [[3, 2, 0], [3, 2]]
    shown = list(pairs(taxonomy, stream.queries, pool))
    assert [(pair.label, pair.gold) for pair in shown] == [
        ("skill 2", "skill 0; skill 3"),
        ("skill 3", ""),
        ("skill 2", ""),
    ]


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path):
    esco = write_esco(tmp_path / "esco")
    system = write_config(tmp_path / "small.yaml", esco)
    texts = ["You will weld steel frames", "Paint the ship hulls", "Sell garden tools and leather shoes"]
    queries = tmp_path / "queries.jsonl"
    rows = [{"_id": f"q{i}", "text": text} for i, text in enumerate(texts)]
    rows[0]["skills"] = [f"{BASE}000", f"{BASE}143"]  # weld steel frames; and one no lane would find
    queries.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    common = ["--queries", str(queries), "--system", str(system), "--lane", "tfidf", "--depth", "40", "--model", "m"]
    return [*common, "--backoff", "0.01", "--retries", "2"]


def by_words(gate, label, body):
    """A judge without a model: how many words of the label stand in the text decides how far a pair gets."""
    text = body["messages"][1]["content"].split("<text>")[1].split("</text>")[0].casefold()
    hits = sum(word in text for word in label.split())
    return YES if GATES.index(gate) < (0, 1, 2, 4)[min(hits, 3)] else NO


def qrels(folder):
    return (folder / "qrels.tsv").read_text(encoding="utf-8")


def test_the_command_writes_a_task_with_zeros_and_a_manifest(world, tmp_path, capsys):
    out = tmp_path / "out"
    with StandIn(scripted(by_words)) as server:
        arguments = [*world, "--url", server.url, "--out", str(out), "--price", "1,2", "--json"]
        assert main(arguments) == 0
        first = json.loads(capsys.readouterr().out)
        asked_first = len(server.requests)
        assert main(arguments) == 0
        second = json.loads(capsys.readouterr().out)
        assert len(server.requests) == asked_first  # the second run costs nothing
    task = load_tasks(out)[0]
    assert not task.problems
    assert len(task.qrels["q0"]) == 41
    assert task.qrels["q0"][f"{BASE}143"] == 4
    assert min(task.qrels["q1"].values()) == 0
    of_q0 = [body for body in server.requests if "You will weld steel frames" in asked(body)[2]]
    assert of_q0
    assert "weld steel frames" not in {asked(body)[1] for body in of_q0}  # gold is not asked about
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["complete"] is True
    assert sum(manifest["pairs"].values()) == 121
    assert first["judges"][0]["cost"] > 0
    assert second["judges"][0]["cost"] == 0
    assert second["answers"] == {"asked": 0, "cached": asked_first}
    assert first["pairs"] == second["pairs"]


def test_another_run_does_not_write_over_the_labels(world, tmp_path):
    out = str(tmp_path / "out")
    with StandIn(scripted(by_words)) as server:
        main([*world, "--url", server.url, "--out", out])
        with pytest.raises(ArgumentError, match="judge: 'm' there, 'other' now"):
            main([*world, "--url", server.url, "--out", out, "--model", "other"])


def test_unjudged_pairs_are_listed_left_out_of_the_qrels_and_tried_again(world, tmp_path, capsys):
    out, broken = tmp_path / "out", True

    def answer(gate, label, body):
        return "?" if broken and label == "paint ship hulls" else by_words(gate, label, body)

    with StandIn(scripted(answer)) as server:
        arguments = [*world, "--url", server.url, "--out", str(out)]
        assert main(arguments) == 7
        lost = (out / "unjudged.tsv").read_text(encoding="utf-8").splitlines()[1:]
        assert lost
        assert all("\tdomain\tmalformed" in line for line in lost)
        assert not any("\t".join(line.split("\t")[:2]) + "\t" in qrels(out) for line in lost)
        assert "tries them again" in capsys.readouterr().out
        broken = False
        assert main(arguments) == 0
    assert all("\t".join(line.split("\t")[:2]) + "\t" in qrels(out) for line in lost)


def test_64_requests_are_in_flight(world, tmp_path):
    async def slow(body):
        await asyncio.sleep(0.3)
        return Reply(NO)

    with StandIn(slow) as server:
        main([*world, "--url", server.url, "--out", str(tmp_path / "out")])
        assert server.peak == 64


def test_a_server_that_is_gone_ends_the_run_and_says_that_answers_are_kept(world, tmp_path):
    with StandIn(scripted(by_words)) as server:
        url = server.url
    with pytest.raises(ResourceError, match="answers so far are kept"):
        main([*world, "--url", url, "--out", str(tmp_path / "out")])


def test_dry_run_asks_nothing_and_writes_nothing(world, tmp_path, capsys):
    with StandIn(scripted(by_words)) as server:
        arguments = [*world, "--url", server.url, "--out", str(tmp_path / "out"), "--price", "1,2", "--json"]
        assert main([*arguments, "--dry-run"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert not server.requests
        assert not (tmp_path / "out").exists()
        assert main(arguments) == 0
        capsys.readouterr()
        assert facts["requests_at_least"] <= len(server.requests) <= facts["requests_at_most"]
        assert main([*arguments, "--dry-run"]) == 0
        assert json.loads(capsys.readouterr().out)["requests_at_most"] == 0


def test_juror_options_are_checked(world, tmp_path):
    common = [*world, "--url", "http://localhost:1/v1", "--out", str(tmp_path / "out")]
    with pytest.raises(ArgumentError, match="needs --juror-model"):
        main([*common, "--juror-price", "1,1"])
    with pytest.raises(ArgumentError, match="must be another model"):
        main([*common, "--juror-model", "m"])
    with pytest.raises(ArgumentError, match="mode direct"):
        main([*common, "--juror-model", "n", "--mode", "direct"])


def test_a_killed_run_goes_on_and_gives_the_same_labels(world, tmp_path):
    holds_from = math.inf  # so many requests are answered; the others wait until the run is killed

    async def script(body):
        while len(server.requests) > holds_from:
            await asyncio.sleep(0.01)
        gate, label, _ = asked(body)
        return Reply(by_words(gate, label, body))

    with StandIn(script) as server:
        main([*world, "--url", server.url, "--out", str(tmp_path / "whole")])
        whole = len(server.requests)
        holds_from = whole + 40
        arguments = [*world, "--url", server.url, "--out", str(tmp_path / "out"), "--concurrency", "4"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "train.judge", *arguments]
        process = subprocess.Popen(command, cwd=Path(__file__).parents[1], env=environment)
        try:
            while len(server.requests) <= holds_from and process.poll() is None:
                time.sleep(0.01)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert len(server.requests) < 2 * whole
        holds_from = math.inf
        assert not (tmp_path / "out" / "qrels.tsv").exists()
        assert main(arguments) == 0
        # What was under way when it was killed is asked again, nothing else.
        assert len(server.requests) <= 2 * whole + 4
    assert qrels(tmp_path / "out") == qrels(tmp_path / "whole")


def test_labels_do_not_depend_on_which_answers_a_stopped_run_had(world, tmp_path):
    """A run may be killed at any point: what it leaves is some of the answers, and perhaps some of the files."""
    out = tmp_path / "out"
    with StandIn(scripted(by_words)) as server:
        arguments = [*world, "--url", server.url, "--out", str(out)]
        main(arguments)
        whole, first = len(server.requests), qrels(out)
        for seed in range(4):
            with sqlite3.connect(out / "answers.sqlite") as answers:
                keys = answers.execute("SELECT model, prompt, pair FROM answers").fetchall()
                lost = random.Random(seed).sample(keys, whole // 2)
                answers.executemany("DELETE FROM answers WHERE model = ? AND prompt = ? AND pair = ?", lost)
            answers.close()
            (out / ("qrels.tsv", "corpus.jsonl")[seed % 2]).unlink()
            server.requests.clear()
            main(arguments)
            assert len(server.requests) == len(lost)
            assert qrels(out) == first


def test_a_server_that_knows_another_form_of_the_schema_is_told_by_extra():
    form = {"type": "json_object", "schema": load_questions()["domain"].schema}

    async def script(body):
        return Reply(NO) if body["response_format"] == form else Reply("unknown type", status=500)

    assert grade(script)[0].grade is None
    assert grade(script, extra={"response_format": form})[0] == Outcome(0, "domain")
