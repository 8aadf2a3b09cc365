"""The sampler: quotas, coverage, determinism, and the published figure on real sentences."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranker.core.cli import run
from ranker.core.errors import ArgumentError
from ranker.core.sentences import read_sentences
from ranker.core.shares import largest_remainder
from train.labels import sampler

DEV = Path(__file__).resolve().parents[2] / "shared/data/sentences/skillskape_dev.jsonl"


def test_largest_remainder_by_hand():
    # 10 seats for 47, 16, 37: whole parts 4, 1, 3; remainders .7, .6, .7: the two left go to the first and the third.
    assert largest_remainder([47, 16, 37], 10) == [5, 1, 4]
    assert largest_remainder([1, 1, 1], 2) == [1, 1, 0]
    assert largest_remainder([0, 0], 0) == [0, 0]
    with pytest.raises(ArgumentError, match="share 3 among groups of 2"):
        largest_remainder([1, 1], 3)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.data())
def test_largest_remainder_stays_within_one_of_the_exact_share(sizes, data):
    seats = data.draw(st.integers(0, sum(sizes)))
    shares = largest_remainder(sizes, seats)
    assert sum(shares) == seats
    assert all(share <= size for share, size in zip(shares, sizes, strict=True))
    assert all(abs(share - size * seats / max(1, sum(sizes))) < 1 for share, size in zip(shares, sizes, strict=True))


def test_the_rarest_label_is_served_first():
    labels = [["common"]] * 9 + [["rare"]]
    for seed in range(5):
        kept = sampler.sample(labels, 2, seed=seed)
        assert {labels[i][0] for i in kept} == {"common", "rare"}


def test_quality_by_hand():
    labels = [["a"], ["a", "b"], [], ["c"], ["a", "b", "c", "d", "e", "f"]]
    found = sampler.quality(labels, [0, 1])
    # Before: a 3/10, b 2/10, c 2/10, d e f 1/10 each. Kept: a 2/3, b 1/3.
    assert found.l1_distance == pytest.approx((2 / 3 - 0.3) + (1 / 3 - 0.2) + 0.2 + 0.3)
    assert (found.sentences, found.sentences_before) == (2, 4)
    assert found.coverage == pytest.approx(2 / 6)
    assert (found.labels_per_sentence, found.labels_per_sentence_before) == (1.5, 2.5)
    assert found.buckets_before == {"1": 2, "2": 1, "3": 0, "4": 0, "5+": 1}
    assert sampler.quality(labels, [0, 1, 3, 4]).l1_distance == 0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=7, unique=True), max_size=40), st.data())
def test_any_sample_has_its_size_and_the_buckets_their_quotas(labels, data):
    used = [row for row in labels if row]
    if not used:
        with pytest.raises(ArgumentError, match="cannot keep"):
            sampler.sample(labels, 1)
        return
    size = data.draw(st.integers(1, len(used)))
    kept = sampler.sample(labels, size)
    assert len(set(kept)) == size
    assert kept == sorted(kept)
    assert all(labels[i] for i in kept)
    sizes = Counter(min(len(row), 5) for row in used)
    quotas = largest_remainder([sizes[i] for i in range(1, 6)], size)
    assert list(sampler.quality(labels, kept).buckets.values()) == quotas


def test_the_seed_alone_decides_and_a_whole_sample_is_everything():
    draw = random.Random(1)
    labels = [draw.sample("abcdefghij", draw.randint(1, 6)) for _ in range(60)]
    assert sampler.sample(labels, 20, seed=3) == sampler.sample(labels, 20, seed=3)
    alike = [["a"]] * 30  # nothing but the lot can tell these apart
    assert len({tuple(sampler.sample(alike, 3, seed=seed)) for seed in range(5)}) > 1
    assert sampler.sample(labels, 60) == list(range(60))


@pytest.mark.skipif(not DEV.exists(), reason="the SkillSkape sentences are not here")
def test_100_real_sentences_keep_the_published_share_of_the_label_space():
    labels = [list(dict.fromkeys(row["skills"])) for row in read_sentences(DEV)]
    found = sampler.quality(labels, sampler.sample(labels, 100))
    assert found.coverage >= 0.77
    assert found.labels_per_sentence == pytest.approx(found.labels_per_sentence_before, abs=0.1)
    at_random = [sampler.quality(labels, random.Random(seed).sample(range(len(labels)), 100)) for seed in range(5)]
    assert found.l1_distance < min(one.l1_distance for one in at_random)


def test_command_writes_the_rows_it_keeps_and_names_a_bad_line(tmp_path, capsys):
    rows = [{"_id": f"s{i}", "text": f"é {i}", "skills": [f"k{i % 4}"]} for i in range(12)]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = tmp_path / "out.jsonl"
    assert run(sampler.main, [str(path), "--size", "4", "--out", str(out), "--json"]) == 0
    kept = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(kept) == 4
    assert all(row in rows for row in kept)
    assert json.loads(capsys.readouterr().out)["coverage"] == 1.0

    path.write_text('{"skills": []}\n{"skills": "k"}\n', encoding="utf-8")
    assert run(sampler.main, [str(path)]) == 5
    assert "line 2: no list of labels" in capsys.readouterr().err
    assert run(sampler.main, [str(tmp_path / "nothing")]) == 4
