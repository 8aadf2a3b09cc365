"""Requests that nobody would write: whatever comes, no answer is a server's error, and each is as documented.

`SERVE_FUZZ` is the number of requests; 400 by default.
"""

from __future__ import annotations

import json
import os
import random

import pytest
from service_world import service
from small_world import write_esco
from tiny_bert import write_tiny_bert

from ranker import SkillRanker

REQUESTS = int(os.environ.get("SERVE_FUZZ", "400"))
PIECES = [
    *("", " ", "\t\n", "weld", "Steel Frames", "C++", ".NET", "Node.js", "50lbs", "IDS/IPS", "R", "e.g. ", "No. 3"),
    *("🚀", "👩\u200d🏭", "\ud83d", "溶接工", "مهندس", "Δ", "ﬁ", "İ", "ß", "\u0000", "\ufeff"),
    *("<script>alert(1)</script>", "'; DROP TABLE", "{{7*7}}", "%s%n", "../../etc/passwd", "=1+1", "NaN", "null", "-0"),
    *("•", "1e999", "- ", "\u2028", "\u202e", "a\u0301" * 50),
    *("x" * 5_000, "a " * 3_000, "." * 2_000, "\n" * 3_000, "(" * 1_000),
    *("http://data.europa.eu/esco/skill/003", "weld ship hulls"),
]  # fmt: skip
ODD = [None, True, 0, -1, 10**400, 1.5, 1e308, "5", [], {}, [[]], [None], {"text": 1}, "\ud800"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("system")
    esco, bert = write_esco(folder / "esco"), write_tiny_bert(folder / "bert")
    (folder / "tiny.yaml").write_text(
        f"name: tiny\ntaxonomy: {{source: official, path: {esco}}}\nlanes:\n  - {{name: bm25, family: bm25}}\n"
        f"  - {{name: dense, family: dense, model: {bert}}}\npool: {{size: 50, weights: {{bm25: 1.0, dense: 0.5}}}}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKER_CACHE", str(folder / "cache"))
        ranker = SkillRanker.load(folder / "tiny.yaml")
    with service(ranker, max_characters=8_000, max_body=60_000) as client:
        yield client


def text(draw: random.Random) -> str:
    return "".join(draw.choice(PIECES) for _ in range(draw.randrange(6)))


def value(draw: random.Random, good):
    return draw.choice(ODD) if draw.random() < 0.03 else good()


def body(draw: random.Random, route: str) -> bytes:
    """Return a body that is right, nearly right, or broken."""
    how_many = draw.choice([0, 1, 1, 1, 2, 2, 3, 3, 4, 70])
    texts = value(draw, lambda: [value(draw, lambda: text(draw)) for _ in range(how_many)])
    options = {
        "top_k": lambda: draw.randrange(1, 1001),
        "min_probability": draw.random,
        "top_n": lambda: draw.randrange(1, 9),
        "return_documents": lambda: draw.random() < 0.5,
        "model": lambda: "m",
        "unknown": lambda: 1,
    }
    request = {{"skills": "texts", "tag": "documents", "rerank": "documents"}[route]: texts}
    if route == "rerank":
        request["query"] = value(draw, lambda: text(draw))
    for name in draw.sample(list(options), draw.choice([0, 0, 0, 1, 2])):
        request[name] = value(draw, options[name])
    raw = json.dumps(draw.choice(ODD) if draw.random() < 0.03 else request, allow_nan=True).encode()
    if draw.random() < 0.05:
        at = draw.randrange(len(raw) + 1)
        raw = raw[:at] + bytes(draw.randrange(256) for _ in range(draw.randrange(4))) + raw[at + draw.randrange(3) :]
    return raw


def test_ugly_requests_get_no_server_error(client):
    draw = random.Random(6)
    seen: dict[int, int] = {}
    for _ in range(REQUESTS):
        route = draw.choice(["skills", "tag", "rerank"])
        raw = body(draw, route)
        kind = draw.choice(["application/json"] * 60 + ["text/plain", "", "application/json; charset=utf-16"])
        response = client.post(f"/v1/{route}", content=raw, headers={"content-type": kind})
        assert response.status_code in {200, 400, 413, 415, 422}, (response.status_code, response.text, raw[:500])
        answer = response.json()
        assert ("results" in answer) == (response.status_code == 200)
        assert response.status_code == 200 or answer["error_type"]
        seen[response.status_code] = seen.get(response.status_code, 0) + 1
    assert seen[200] > REQUESTS / 4
    assert len(seen) >= 3, seen


def test_requests_made_from_the_description_get_what_it_documents(client):
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis (extra dev)")
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    each = max(5, REQUESTS // 40)
    for operation in schema.get_all_operations():
        _check(client, operation.ok(), each)


def _check(client, operation, examples):
    from hypothesis import HealthCheck, Phase, given, settings

    documented = {int(status) for status in operation.definition.raw["responses"]}

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def check(case):
        request = case.as_transport_kwargs()
        content = json.dumps(request["json"]).encode() if "json" in request else None
        headers = {"content-type": "application/json"}
        response = client.request(request["method"], request["url"], content=content, headers=headers)
        assert response.status_code in documented, (case, response.status_code, response.text[:300])

    check()
