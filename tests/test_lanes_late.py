"""MaxSim over token vectors, exactly and through an index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_lanes_contract import toy
from tiny_bert import write_tiny_bert

from lanes.encoder import EncoderPool, unit
from lanes.late import LateLane
from lanes.maxsim import TokenIndex


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))


def documents(count: int, width: int = 24, seed: int = 0) -> list[np.ndarray]:
    """Return token vectors of skills that lie around some centres, as skills do."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(40, width))
    lengths = draw.integers(1, 9, size=count)
    return [(centres[draw.integers(40)] + 0.6 * draw.normal(size=(n, width))).astype(np.float32) for n in lengths]


def naive(query: np.ndarray, skills: list[np.ndarray]) -> np.ndarray:
    rounded = [unit(part).astype(np.float16).astype(np.float64) for part in skills]
    return np.array([sum(max(float(a @ b) for b in part) for a in query) for part in rounded])


@pytest.mark.parametrize("count", [1, 7, 4_000])
def test_maxsim_equals_the_naive_one_also_over_several_blocks(count: int) -> None:
    skills = documents(count)
    query = unit(documents(1, seed=5)[0].repeat(3, axis=0))
    index = TokenIndex({"test": count}, lambda: skills)
    assert len(index) == count
    some = range(0, count, max(1, count // 50))
    np.testing.assert_allclose(index.score(query)[list(some)], naive(query, [skills[i] for i in some]), atol=1e-5)
    again = TokenIndex({"test": count}, lambda: pytest.fail("the cache has it"))
    np.testing.assert_array_equal(again.score(query), index.score(query))


def test_candidates_are_exact_and_the_rest_stays_below() -> None:
    skills = documents(2_000)
    query = unit(documents(1, seed=9)[0].repeat(2, axis=0))
    full = TokenIndex({"test": 1}, lambda: skills).score(query)
    index = TokenIndex({"test": 1}, lambda: skills, candidates=100)
    some = index.score(query)
    chosen = np.argsort(-some, kind="stable")[:100]
    np.testing.assert_allclose(some[chosen], full[chosen], atol=1e-5)
    others = np.setdiff1d(np.arange(2_000), chosen)
    assert some[others].max() <= some[chosen].min()
    assert len(set(np.argsort(-full)[:20]) & set(chosen.tolist())) >= 19  # the index is approximate, and good
    everything = TokenIndex({"test": 1}, lambda: skills, candidates=2_000)
    np.testing.assert_array_equal(everything.score(query), full)


def test_any_sentence_encoder_gives_its_token_states(tmp_path: Path) -> None:
    pool = EncoderPool()
    folder = str(write_tiny_bert(tmp_path / "model"))
    lane = LateLane("x", encoders=pool, model=folder, view="label_description")
    lane.fit(toy())
    encoder = pool.get(folder)
    texts = [
        f"{label}. {about}" if about else label for label, about in zip(toy().label, toy().description, strict=True)
    ]
    want = naive(unit(encoder.query_tokens("paint the walls")), [encoder.query_tokens(text) for text in texts])
    np.testing.assert_allclose(lane.score(["paint the walls"])[0], want, atol=1e-4)
    assert lane.backbones() == {encoder.identity: encoder.parameters}
