"""The HTTP service: answers, limits, errors, keys, headers, metrics, logs, readiness and the end."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import numpy as np
import pytest
from fastapi import FastAPI
from service_world import BASE, TAXONOMY, WORDS, StubRanker, service, until
from small_world import write_config, write_esco
from starlette.testclient import TestClient
from tiny_bert import write_tiny_bert

from ranker import SkillRanker, serve
from ranker.core.cli import run
from ranker.core.errors import ArgumentError, ResourceError
from ranker.service import schemas
from ranker.service.app import create_app
from ranker.service.logs import JsonFormatter
from ranker.service.settings import Settings, read_settings

ROOT = Path(__file__).resolve().parents[1]
UGLY = ["", "   ", "50lbs", "IDS/IPS sensors", "🚀", "溶接工", "\x07bell\x00", "NaN", "C++\u2028R", "a" * 20_000]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def client():
    with service() as client:
        yield client


def post(client, path, body, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body)
    return client.post(path, content=content, headers={"content-type": "application/json", **headers})


# --- answers


def test_skills(client):
    texts = ["We weld metal parts", "", "teach music"]
    response = post(client, "/v1/skills", {"texts": texts, "top_k": 2})
    assert response.status_code == 200
    body = response.json()
    expected = StubRanker().rank(texts, top_k=2)
    assert [r["skills"] for r in body["results"]] == [r.to_dict()["skills"] for r in expected]
    assert [r["reason"] for r in body["results"]] == ["", "the text is empty", ""]
    assert body["taxonomy"] == {"version": "1.1.0", "language": "en", "fingerprint": TAXONOMY.fingerprint, "skills": 6}
    assert body["model"] == {"name": "stub", "digest": "0123"}
    schemas.SkillsResponse.model_validate(body)
    assert "query" not in body["results"][0]  # the text does not travel back


def test_min_probability(client):
    body = post(client, "/v1/skills", {"texts": ["weld metal"], "min_probability": 0.5}).json()
    assert [s["label"] for s in body["results"][0]["skills"]] == ["weld metal"]


def test_tag_gives_spans_in_code_points(client):
    document = "🚀 Join us\nYou weld metal\nand paint walls"
    body = post(client, "/v1/tag", {"documents": [document]}).json()
    (result,) = body["results"]
    schemas.TagResponse.model_validate(body)
    quotes = {s["label"]: [document[p["start"] : p["end"]] for p in s["spans"]] for s in result["skills"]}
    assert quotes == {"weld metal": ["You weld metal"], "paint walls": ["and paint walls"]}
    assert [document[p["start"] : p["end"]] for p in result["dropped"]] == ["🚀 Join us"]


def test_ugly_text_is_answered(client):
    body = post(client, "/v1/skills", {"texts": UGLY}).json()
    assert len(body["results"]) == len(UGLY)


def test_half_an_emoji_is_a_question_mark(client):
    response = post(client, "/v1/tag", b'{"documents": ["\\ud83d weld metal"]}')
    assert response.status_code == 200
    assert response.json()["results"][0]["skills"][0]["spans"] == [{"start": 0, "end": 12}]
    assert client.ranker.calls[-1] == ["? weld metal"]


def test_concurrent_requests_get_their_own_answers(client):
    texts = [f"{WORDS[i % 6]} number {i}" for i in range(60)]

    def one(text):
        return post(client, "/v1/skills", {"texts": [text], "top_k": 1}).json()["results"][0]["skills"][0]["label"]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, texts)) == [WORDS[i % 6] for i in range(60)]


def test_taxonomy_by_uri_last_part_encoding_and_label(client):
    card = client.get(f"/v1/taxonomy/{BASE}2").json()
    assert (card["label"], card["alt_labels"], card["groups"]) == ("repair engines", ["repair engines well"], ["S1"])
    schemas.SkillCard.model_validate(card)
    quoted = urllib.parse.quote(BASE + "2", safe="")
    one_slash = BASE.replace("//", "/") + "2"
    for path in (quoted, one_slash, "repair%20engines", "Repair Engines"):
        assert client.get(f"/v1/taxonomy/{path}").json() == card
    assert client.get("/v1/taxonomy/nothing").status_code == 404


# --- rerank


def test_rerank_of_skills_uses_the_ranker(client):
    documents = [BASE + "1", "Weld Metal", {"text": "teach music"}]
    body = post(client, "/v1/rerank", {"query": "you weld metal", "documents": documents, "model": "any"}).json()
    assert body["scored_by"] == "ranker"
    assert [r["index"] for r in body["results"]] == [1, 0, 2]
    assert body["results"][0]["relevance_score"] == pytest.approx(0.95)
    assert "document" not in body["results"][0]
    schemas.RerankResponse.model_validate(body)


def test_rerank_returns_documents_and_the_best(client):
    request = {"query": "teach music", "documents": ["weld metal", "teach music"], "top_n": 1, "return_documents": True}
    body = post(client, "/v1/rerank", request).json()
    assert body["results"] == [
        {"index": 1, "relevance_score": pytest.approx(0.95), "document": {"text": "teach music"}}
    ]


def test_rerank_refuses_what_it_cannot_score(client):
    texts = post(client, "/v1/rerank", {"query": "weld", "documents": ["weld metal", "some text"]})
    assert texts.status_code == 422
    assert "no sentence encoder" in texts.json()["error"]
    empty = post(client, "/v1/rerank", {"query": " ", "documents": ["weld metal"]})
    assert (empty.status_code, empty.json()["error"]) == (422, "query: the text is empty")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A real system: a BM25 lane and a tiny sentence encoder."""
    folder = tmp_path_factory.mktemp("system")
    esco, bert = write_esco(folder / "esco"), write_tiny_bert(folder / "bert")
    (folder / "tiny.yaml").write_text(
        f"name: tiny\ntaxonomy: {{source: official, path: {esco}}}\nlanes:\n  - {{name: bm25, family: bm25}}\n"
        f"  - {{name: dense, family: dense, model: {bert}}}\npool: {{size: 50, weights: {{bm25: 1.0, dense: 0.5}}}}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKER_CACHE", str(folder / "cache"))
        yield SkillRanker.load(folder / "tiny.yaml")


def test_rerank_of_texts_is_the_encoders_cosine(tiny):
    documents = ["paint the wall", "weld a steel frame", "!!", "repair a car"]
    with service(tiny) as client:
        body = post(client, "/v1/rerank", {"query": "weld steel", "documents": documents}).json()
    assert body["scored_by"] == "encoder"
    encoder = tiny.pipeline.lanes["dense"].encoder
    query = encoder.query("weld steel")
    cosines = [float(np.dot(encoder.query(d), query)) if d != "!!" else -1.0 for d in documents]
    found = {r["index"]: r["relevance_score"] for r in body["results"]}
    assert [found[i] for i in range(4)] == pytest.approx(cosines, abs=1e-6)
    assert list(found) == sorted(found, key=lambda i: -found[i])
    assert body["results"][-1]["index"] == 2


def test_rerank_without_calibration_is_the_place_between_the_pools_ends(tiny):
    query = "weld steel frames"
    pool = tiny.rank([query], top_k=50)[0].skills
    outside = next(label for label in tiny.taxonomy.label if label not in {s.label for s in pool})
    documents = [outside, pool[-1].label, pool[10].uri, pool[0].label]
    with service(tiny) as client:
        body = post(client, "/v1/rerank", {"query": query, "documents": documents}).json()
    assert body["scored_by"] == "ranker"
    middle = (pool[10].score - pool[-1].score) / (pool[0].score - pool[-1].score)
    assert [(r["index"], r["relevance_score"]) for r in body["results"]] == [
        (3, 1.0), (2, pytest.approx(middle)), (0, 0.0), (1, 0.0)]  # fmt: skip


def test_a_real_system_answers_as_the_library_does(tiny):
    texts = ["weld steel frames", "paint stone walls", ""]
    with service(tiny) as client:
        response = post(client, "/v1/skills", {"texts": texts, "top_k": 5})
        asked = post(client, "/v1/skills", {"texts": texts, "min_probability": 0.5})
        info = client.get("/info").json()
    for result, ranking in zip(response.json()["results"], tiny.rank(texts, top_k=5), strict=True):
        assert result["skills"] == ranking.to_dict()["skills"]
    assert (asked.status_code, "no calibrated" in asked.json()["error"]) == (422, True)
    assert info["stages"] == ["bm25", "dense"]
    assert list(info["backbones"].values()) == [sum(tiny.backbones().values())]
    timing = response.headers["server-timing"]
    assert re.search(r"queue;dur=[\d.]+, lanes;dur=[\d.]+, columns;dur=[\d.]+, fusion;dur=[\d.]+, rank;dur=", timing)


# --- limits and errors


@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        ({"texts": ["a"] * 65}, 422, "too_many", "the limit is 64"),
        ({"texts": ["a", "b" * 20_001]}, 422, "too_long", "texts[1]: 20001 characters; the limit is 20000"),
        ({"texts": []}, 422, "invalid", "texts: List should have at least 1 item"),
        ({"texts": "weld"}, 422, "invalid", "texts: Input should be a valid list"),
        ({"texts": [1]}, 422, "invalid", "texts.0: Input should be a valid string"),
        ({"texts": ["a"], "top_k": 0}, 422, "invalid", "top_k: Input should be greater"),
        ({"texts": ["a"], "top_k": True}, 422, "invalid", "top_k"),
        ({"texts": ["a"], "min_probability": 1.5}, 422, "invalid", "min_probability"),
        ({"texts": ["a"], "topk": 5}, 422, "invalid", "topk: Extra inputs are not permitted"),
        (b'{"texts": ["a"], "min_probability": NaN}', 422, "invalid", "min_probability"),
        (b'{"texts": ["secret', 400, "not_json", "the body is not JSON, from character"),
        (b"\xff\xfe", 400, "not_json", "not JSON"),
        (b"[" * 100_000, 400, "not_json", ""),
        (b"", 422, "invalid", "body: Field required"),
    ],
)
def test_errors_name_what_is_wrong(client, body, status, kind, says):
    response = post(client, "/v1/skills", body)
    error = response.json()
    assert (response.status_code, error["error_type"]) == (status, kind)
    assert says in error["error"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert "secret" not in response.text
    schemas.ErrorOut.model_validate(error)


def test_a_form_is_told_to_come_as_json(client):
    form = {"content-type": "application/x-www-form-urlencoded"}
    response = client.post("/v1/skills", content=b"texts=weld", headers=form)
    assert (response.status_code, "Content-Type: application/json" in response.json()["error"]) == (415, True)


def test_limits_are_named_for_programs(client):
    error = post(client, "/v1/tag", {"documents": ["a"] * 70}).json()
    assert (error["limit"], error["allowed"], error["found"]) == ("max_texts", 64, 70)
    limits = client.get("/info").json()["limits"]
    assert limits["max_texts"] == 64


def test_a_body_too_large_is_refused_by_its_length_and_while_it_streams():
    with service(max_body=1000) as client:
        whole = post(client, "/v1/skills", {"texts": ["a" * 2000]})
        read = 0

        def stream():
            nonlocal read
            for _ in range(1000):
                read += 100
                yield b"x" * 100

        streamed = client.post("/v1/skills", content=stream())
        assert post(client, "/v1/skills", {"texts": ["weld metal"]}).status_code == 200
    for response in (whole, streamed):
        assert (response.status_code, response.json()["limit"], response.json()["allowed"]) == (413, "max_body", 1000)


@pytest.mark.anyio
async def test_nothing_is_read_beyond_the_limit():
    app = create_app(Settings(max_body=1000), StubRanker)
    read, sent = 0, []

    async def receive():
        nonlocal read
        read += 400
        return {"type": "http.request", "body": b"x" * 400, "more_body": True}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/skills", "headers": [], "query_string": b"", "state": {}}
    await app({**scope, "http_version": "1.1", "scheme": "http", "client": None, "server": None}, receive, send)
    assert sent[0]["status"] == 413
    assert read == 1200


def test_a_full_queue_gives_429_and_then_takes_again():
    ranker = StubRanker()
    with service(ranker, queue=4, max_texts=4) as client, ThreadPoolExecutor(4) as pool:
        ranker.gate.clear()
        waiting = [pool.submit(post, client, "/v1/skills", {"texts": ["weld metal"] * 2}) for _ in range(2)]
        until(lambda: "ranker_queue_texts 4.0" in client.get("/metrics").text)
        refused = post(client, "/v1/skills", {"texts": ["paint walls"]})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert (refused.json()["limit"], refused.json()["allowed"]) == ("queue", 4)
        assert client.get("/health/ready").status_code == 200
        ranker.gate.set()
        assert [w.result(20).status_code for w in waiting] == [200, 200]
        assert post(client, "/v1/skills", {"texts": ["paint walls"]}).status_code == 200


def test_a_late_request_gets_504():
    ranker = StubRanker()
    with service(ranker, deadline=60) as client, ThreadPoolExecutor(2) as pool:
        ranker.gate.clear()
        first = pool.submit(post, client, "/v1/skills", {"texts": ["weld metal"]})
        assert ranker.entered.acquire(timeout=60)
        client.app.state.service.loaded.batcher._deadline = 0.01  # only now: a busy machine may be slow to begin
        late = pool.submit(post, client, "/v1/skills", {"texts": ["paint walls"]})
        until(lambda: "ranker_queue_texts 2.0" in client.get("/metrics").text)
        threading.Event().wait(0.05)
        ranker.gate.set()
        assert first.result(20).status_code == 200
        assert (late.result(20).status_code, late.result(20).json()["error_type"]) == (504, "deadline")


def test_a_failure_inside_is_500_without_the_text(caplog):
    with service() as client, caplog.at_level(logging.INFO, "ranker.service"):
        response = post(client, "/v1/skills", {"texts": ["boom, says Jane Doe"]}, **{"X-Request-Id": "r-1"})
        assert post(client, "/v1/skills", {"texts": ["weld metal"]}).status_code == 200
    assert response.status_code == 500
    assert response.json()["error_type"] == "internal"
    (record,) = [r for r in caplog.records if r.exc_info]
    line = JsonFormatter(texts=False).format(record)
    assert "Jane" not in line + response.text
    value = json.loads(line)
    assert (value["exception"], value["request_id"]) == ("RuntimeError", "r-1")
    assert any("service_world.py" in frame for frame in value["traceback"])
    assert "Jane" in JsonFormatter(texts=True).format(record)


def test_unknown_routes_and_methods(client):
    assert client.get("/nothing").json()["error_type"] == "not_found"
    assert client.get("/v1/skills").json()["error_type"] == "method"
    assert client.get("/assets/..%2fapp.py").status_code == 404
    assert client.request("BREW", "/").status_code == 405


@pytest.mark.anyio
async def test_a_client_that_leaves_is_dropped():
    ranker = StubRanker()
    app = create_app(Settings(), lambda: ranker)
    gone, sent = anyio.Event(), []

    def request():
        messages = [{"type": "http.request", "body": json.dumps({"texts": ["paint walls"]}).encode()}]

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        return receive

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/skills", "query_string": b"", "scheme": "http",
             "http_version": "1.1", "client": None, "server": None,
             "headers": [(b"content-type", b"application/json")]}  # fmt: skip
    state = app.state.service
    with anyio.fail_after(20):
        async with app.router.lifespan_context(app):
            while state.status != "ready":
                await anyio.sleep(0.005)
            ranker.gate.clear()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(app, {**scope, "state": {}}, request(), send)  # its text is in work
                while not ranker.calls:
                    await anyio.sleep(0.005)
                tasks.start_soon(app, {**scope, "state": {}}, request(), send)  # its text waits
                while state.loaded.batcher.waiting < 2:
                    await anyio.sleep(0.005)
                gone.set()
            assert {m["status"] for m in sent if m["type"] == "http.response.start"} == {499}
            ranker.gate.set()
            while state.loaded.batcher.waiting:
                await anyio.sleep(0.005)
    assert ranker.calls == [["paint walls"]]
    assert b"ranker_clients_left_total 2.0" in state.metrics.text()


# --- ids, keys, headers, CORS


def test_request_ids_come_back_if_they_are_plain(client):
    assert client.get("/health/live", headers={"X-Request-Id": "a-1.b"}).headers["x-request-id"] == "a-1.b"
    answers = [client.get("/health/live", headers={"X-Request-Id": bad}) for bad in ("a b", "x" * 200, "")]
    made = {answer.headers["x-request-id"] for answer in answers}
    assert len(made) == 3
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)


def test_keys_open_the_service():
    hashed = "sha256:" + hashlib.sha256(b"second").hexdigest()
    settings = read_settings({"api_keys": f"first, {hashed}"}, {})
    assert "first" not in repr(settings)
    with service(api_keys=settings.api_keys) as client:
        body = {"texts": ["weld metal"]}
        assert post(client, "/v1/skills", body, Authorization="Bearer first").status_code == 200
        assert post(client, "/v1/skills", body, **{"X-API-Key": "second"}).status_code == 200
        for headers in ({}, {"Authorization": "Bearer third"}, {"Authorization": "Basic first"}, {"X-API-Key": ""}):
            refused = post(client, "/v1/skills", body, **headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        for path in ("/info", "/metrics", f"/v1/taxonomy/{BASE}1"):
            assert client.get(path).status_code == 401
        for path in ("/", "/docs", "/openapi.json", "/health/live", "/health/ready"):
            assert client.get(path).status_code == 200


def test_security_headers_everywhere(client):
    for response in (client.get("/"), client.get("/nothing"), client.get("/info"), client.get("/assets/app.js")):
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
    assert client.get("/info").headers["cache-control"] == "no-store"


def test_cors_is_off_unless_set(client):
    headers = {"Origin": "https://hr.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in client.options("/v1/skills", headers=headers).headers
    with service(cors_origins=("https://hr.example",), api_keys=("0" * 64,)) as open_client:
        preflight = open_client.options("/v1/skills", headers=headers)
        assert preflight.headers["access-control-allow-origin"] == "https://hr.example"
        refused = post(open_client, "/v1/skills", {"texts": ["a"]}, Origin="https://hr.example")
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://hr.example")
        other = open_client.options("/v1/skills", headers={**headers, "Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers


# --- the page's files and the documentation


def test_assets_are_cached_by_their_content(client):
    response = client.get("/assets/app.css")
    assert response.headers["content-type"].startswith("text/css")
    again = client.get("/assets/app.css", headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.head("/").status_code == 200


def test_no_page_names_another_place_to_load_from(client):
    for path in ("/", "/docs", "/assets/app.js", "/assets/app.css"):
        text = client.get(path).text
        places = r"""(?:src|href)=["'](https?:[^"']+)|url\(["']?(https?:[^)"']+)|import .*(https?:\S+)"""
        loads = re.findall(places, text)
        assert all(any(found.startswith("https://esco.ec.europa.eu") for found in load) for load in loads), path
    assert "<script" not in client.get("/docs").text


def test_docs_name_every_route_and_body(client):
    description = client.get("/openapi.json").json()
    page = client.get("/docs").text
    assert set(description["paths"]) == {
        "/v1/skills", "/v1/tag", "/v1/rerank", "/v1/taxonomy/{uri}", "/health/live", "/health/ready", "/info",
        "/metrics",
    }  # fmt: skip
    for path in description["paths"]:
        assert path in page
    for name in ("SkillsRequest", "RerankResponse", "ErrorOut"):
        assert f'id="{name}"' in page


def test_examples_of_the_document_work(client):
    document = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    examples = re.findall(r"curl -s http://127\.0\.0\.1:8000(/\S+) [^']*'([^']*)'[^']*'([^']*)'", document)
    assert [path for path, _, _ in examples] == ["/v1/skills", "/v1/rerank"]
    for path, header, body in examples:
        name, value = header.split(": ")
        assert client.post(path, content=body, headers={name: value}).status_code == 200
    shown = json.loads(re.search(r"```json\n(.*?)```", document, re.DOTALL).group(1))
    schemas.SkillsResponse.model_validate(shown)


# --- metrics and logs


def test_metrics_count_by_route_not_by_address():
    with service() as client:
        post(client, "/v1/skills", {"texts": ["weld metal", "teach music"]})
        for number in range(3):
            client.get(f"/nothing/{number}")
            client.get(f"/v1/taxonomy/{number}")
        text = client.get("/metrics").text
    assert 'ranker_requests_total{method="POST",route="/v1/skills",status="200"} 1.0' in text
    assert 'ranker_texts_total{route="/v1/skills"} 2.0' in text
    assert 'ranker_requests_total{method="GET",route="none",status="404"} 3.0' in text
    assert 'ranker_requests_total{method="GET",route="/v1/taxonomy/{uri:path}",status="404"} 3.0' in text
    assert "ranker_batch_texts_sum 2.0" in text
    assert re.search(r'ranker_stage_seconds_total\{stage="lanes"\} 0\.00', text)
    assert "ranker_ready 1.0" in text


@pytest.mark.parametrize("wanted", [False, True])
def test_logs_hold_texts_only_if_asked(caplog, wanted):
    with service(log_texts=wanted) as client, caplog.at_level(logging.INFO, "ranker.service"):
        post(client, "/v1/skills", {"texts": ["weld metal, Jane Doe"]}, **{"X-Request-Id": "r-2"})
        client.get("/v1/taxonomy/Jane%20Doe?name=Jane")
        client.get("/health/live")
    lines = [json.loads(JsonFormatter(texts=wanted).format(record)) for record in caplog.records]
    requests = [line for line in lines if line["message"] == "request"]
    assert [line["route"] for line in requests] == ["/v1/skills", "/v1/taxonomy/{uri:path}"]
    assert [line["status"] for line in requests] == [200, 404]
    assert requests[0]["request_id"] == "r-2"
    assert (requests[0]["texts"], requests[0]["level"]) == (1, "info")
    assert ("Jane" in json.dumps(lines)) == wanted


# --- readiness, failure, the end


def test_not_ready_until_loaded():
    loading, ranker = threading.Event(), StubRanker()

    def load():
        assert loading.wait(20)
        return ranker

    with TestClient(create_app(Settings(), load)) as client:
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "loading"})
        assert client.get("/health/live").status_code == 200
        assert client.get("/").status_code == 200
        refused = post(client, "/v1/skills", {"texts": ["a"]})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        loading.set()
        until(lambda: client.get("/health/ready").status_code == 200)
        client.app.state.service.draining = True
        assert client.get("/health/ready").json() == {"status": "draining"}
        assert post(client, "/v1/skills", {"texts": ["weld metal"]}).status_code == 200


def test_a_failed_start_is_told():
    failures = []

    def load():
        raise ResourceError("no model there")

    with TestClient(create_app(Settings(), load, on_failure=failures.append)) as client:
        until(lambda: failures)
        assert client.get("/health/ready").json() == {"status": "failed"}
    assert str(failures[0]) == "no model there"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_the_command_ends_with_the_reason_where_it_cannot_start(capsys):
    assert run(serve.main, ["--config", "no-such-system", "--port", str(free_port())]) == 4
    assert "no config no-such-system" in capsys.readouterr().err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(serve.main, ["--config", "no-such-system", "--port", str(port)]) == 6
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to end a server with")
def test_the_command_answers_what_it_accepted_before_it_ends(tmp_path):
    config = write_config(tmp_path / "tiny.yaml", write_esco(tmp_path / "esco"))
    port = free_port()
    environment = {**os.environ, "RANKER_CONFIG": str(config), "RANKER_PORT": "1", "RANKER_QUEUE": "1000"}
    environment["RANKER_CACHE"] = str(tmp_path / "cache")
    command = [sys.executable, "-m", "ranker.serve", "--port", str(port), "--drain", "0.3"]
    address = f"http://127.0.0.1:{port}"
    log = tmp_path / "log"

    def ask(path, body=None):
        request = urllib.request.Request(address + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.read()

    def ready():
        try:
            return b"ready" in ask("/health/ready")
        except OSError:
            assert process.poll() is None, log.read_text()
            return False

    with log.open("w") as stream:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stderr=stream)
    try:
        until(ready, 300)
        body = json.dumps({"texts": ["weld steel frames " * 200] * 32}).encode()
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(ask, "/v1/skills", body) for _ in range(4)]
            until(lambda: b'ranker_texts_total{route="/v1/skills"} 128.0' in ask("/metrics"), 120)
            process.send_signal(signal.SIGTERM)
            assert [len(json.loads(a.result(120))["results"]) for a in answers] == [32] * 4
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum(line["message"] == "request" and line.get("route") == "/v1/skills" for line in lines) == 4


# --- settings


def test_flags_win_over_the_environment():
    environment = {"RANKER_PORT": "9000", "RANKER_MAX_TEXTS": "8", "RANKER_LOG_TEXTS": "yes", "RANKER_DEADLINE": "",
                   "RANKER_CORS_ORIGINS": "https://a.example,https://b.example", "RANKER_WINDOW_MS": ".5"}  # fmt: skip
    settings = read_settings({"port": "8001", "host": None}, environment)
    assert (settings.port, settings.max_texts, settings.log_texts, settings.window_ms) == (8001, 8, True, 0.5)
    assert settings.cors_origins == ("https://a.example", "https://b.example")
    assert settings.deadline == Settings().deadline


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RANKER_PORT", "tcp://10.0.0.1:80", "RANKER_PORT: 'tcp://10.0.0.1:80' is no whole number from 0 to 65535"),
        ("RANKER_WINDOW_MS", "9", "is no number from 0 to 5"),
        ("RANKER_LOG_TEXTS", "maybe", "is none of 1, true"),
        ("RANKER_MAX_TEXTS", "300", "max_texts 300 is more than the queue holds"),
        ("RANKER_API_KEYS", "sha256:beef", "RANKER_API_KEYS: holds a sha256: entry that is not 64"),
    ],
)
def test_bad_settings_are_named(name, value, says):
    with pytest.raises(ArgumentError) as error:
        read_settings({}, {name: value})
    assert says in str(error.value)
    assert "beef" not in str(error.value)


def test_every_setting_is_a_flag_and_is_documented(capsys):
    with pytest.raises(SystemExit):
        serve.main(["--help"])
    shown = capsys.readouterr().out
    document = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    for name in Settings.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in shown
        assert f"`RANKER_{name.upper()}`" in document


def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run(serve.main, []) == 3
    assert "-e '.[serve]'" in capsys.readouterr().err


def test_two_apps_share_nothing():
    assert isinstance(create_app(Settings(), StubRanker), FastAPI)
    with service() as first, service() as second:
        post(first, "/v1/skills", {"texts": ["weld metal"]})
        assert "ranker_batch_texts_count 0.0" in second.get("/metrics").text
