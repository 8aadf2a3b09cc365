"""A ranker without models that behaves as the real one, and a service around it, for tests of the service."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from starlette.testclient import TestClient

from ranker.core.taxonomy import Skill, Taxonomy
from ranker.core.types import RankedSkill, Ranking, Span, TaggedSkill, Tagging
from ranker.service.app import create_app
from ranker.service.settings import Settings

BASE = "http://data.europa.eu/esco/skill/"
WORDS = ("weld metal", "paint walls", "repair engines", "plan projects", "teach music", "drive lorries")
TAXONOMY = Taxonomy.from_skills(
    [Skill(BASE + str(row), word, (f"{word} well",), f"To {word}.", ("S1",)) for row, word in enumerate(WORDS)],
    version="1.1.0",
)


class StubRanker:
    """Gives each skill a probability by the share of its words that the text holds.

    `gate` holds every call back until it is set; a text with "boom" in it raises.
    """

    def __init__(self) -> None:
        self.taxonomy = TAXONOMY
        self.config = SimpleNamespace(name="stub", digest="0123", top_k=6, pool=SimpleNamespace(size=6))
        self.pipeline = SimpleNamespace(
            lanes={"bm25": object()}, columns={}, fusion=object(), seconds={"lanes": 0.0, "fusion": 0.0}
        )
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[list[str]] = []
        self.entered = threading.Semaphore(0)

    def backbones(self) -> dict[str, int]:
        return {"none": 0}

    def prepare(self, texts):
        return list(texts), ["" if text.strip() else "the text is empty" for text in texts]

    def _skills(self, text, least):
        words = text.casefold().split()
        for row, label in enumerate(WORDS):
            share = sum(word in words for word in label.split()) / 2
            probability = 0.1 + 0.85 * share
            if probability >= (least or 0):
                evidence = {"lanes": {"bm25": round(3 * share, 2)}, **({"matched": label} if share == 1 else {})}
                yield RankedSkill(BASE + str(row), label, 5 * share - row / 100, probability, evidence)

    def rank(self, texts, *, top_k=None, min_probability=None):
        self.calls.append(list(texts))
        self.entered.release()
        assert self.gate.wait(20)
        self.pipeline.seconds["lanes"] += 0.001
        if any("boom" in text for text in texts):
            raise RuntimeError(f"cannot rank {texts}")
        rankings = []
        for text in texts:
            skills = sorted(self._skills(text, min_probability), key=lambda s: (-s.score, s.uri))[: top_k or 6]
            reason = "" if text.strip() else "the text is empty"
            rankings.append(Ranking(text, () if reason else tuple(skills), reason))
        return rankings

    def tag(self, documents, *, top_k=None, min_probability=None):
        taggings = []
        for document in documents:
            found: dict[str, TaggedSkill] = {}
            dropped, start = [], 0
            for line in document.split("\n"):
                span = Span(start, start + len(line))
                start += len(line) + 1
                skills = [s for s in self.rank([line])[0].skills if s.probability >= max(min_probability or 0, 0.3)]
                if not skills and line:
                    dropped.append(span)
                for s in skills:
                    before = found[s.uri].spans if s.uri in found else ()
                    found[s.uri] = TaggedSkill(s.uri, s.label, s.score, s.probability, s.evidence, (*before, span))
            ordered = sorted(found.values(), key=lambda s: (-s.score, s.uri))[: top_k or 6]
            taggings.append(Tagging(document, tuple(ordered), tuple(dropped), "" if ordered else "no sentence speaks"))
        return taggings


@contextmanager
def service(ranker: StubRanker | None = None, **settings) -> Iterator[TestClient]:
    """Run the app until the block ends, ready at its start."""
    stub = StubRanker() if ranker is None else ranker
    app = create_app(Settings(**settings).check(), lambda: stub)
    with TestClient(app, raise_server_exceptions=False) as client:
        until(lambda: client.get("/health/ready").status_code == 200)
        client.ranker = stub
        yield client


def until(true, seconds: float = 60.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.005)
