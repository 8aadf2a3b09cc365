"""A small part of a set of labelled sentences that keeps its labels: `python -m train.labels.sampler`.

Sentences are grouped into buckets by how many labels they have (1, 2, 3, 4, 5 and more). Each bucket gets its share of
the sample by largest remainder. Within these quotas the sample is filled label by label, the rarest first, after
Sechidis, Tsoumakas and Vlahavas, "On the stratification of multi-label data" (ECML PKDD 2011).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ranker.core.artifacts import atomic_path
from ranker.core.cli import emit, parser, positive, run, say
from ranker.core.errors import ArgumentError
from ranker.core.sentences import read_sentences
from ranker.core.shares import largest_remainder

BUCKETS = ("1", "2", "3", "4", "5+")


def bucket(labels: Sequence[str]) -> int:
    """Return the position in `BUCKETS` of a sentence with these labels (at least one)."""
    return min(len(labels), len(BUCKETS)) - 1


class _Draw:
    """The state of one draw: what is still there to be taken, and what is still wanted.

    Label quotas are kept in units of 1 / number of sentences, as whole numbers, so that no rounding decides a tie.
    """

    def __init__(self, labels: Sequence[Sequence[str]], size: int, seed: int) -> None:
        self.labels = labels
        self.n = len(labels)
        self.quota = largest_remainder([sum(bucket(row) == b for row in labels) for b in range(len(BUCKETS))], size)
        self.available = {i for i, row in enumerate(labels) if self.quota[bucket(row)]}
        self.holders: dict[str, list[int]] = {}
        for i, row in enumerate(labels):
            for label in row:
                self.holders.setdefault(label, []).append(i)
        self.need = {label: len(held) * size for label, held in self.holders.items()}
        self.left = {label: sum(i in self.available for i in held) for label, held in self.holders.items()}
        rng = random.Random(seed)
        names = sorted(self.holders)
        self.label_lot = dict(zip(names, rng.sample(range(len(names)), len(names)), strict=True))
        self.lot = rng.sample(range(self.n), self.n)

    def rarest(self) -> str | None:
        """Return the label to serve next: still needed, fewest sentences left, greatest residual quota, then by lot."""
        wanted = [label for label, left in self.left.items() if left and self.need[label] > 0]
        return min(wanted, key=lambda x: (self.left[x], -self.need[x], self.label_lot[x]), default=None)

    def sentence(self, candidates: Sequence[int]) -> int:
        """Return the sentence to take: that of the greatest residual quotas, bucket's and labels', then by lot."""

        def key(i: int) -> tuple[int, int, int]:
            row = self.labels[i]
            # What a label is short of counts for it, what it has too much of against it.
            shortage = sum(self.need[label] for label in row) // len(row)
            return (-shortage, -self.quota[bucket(row)], self.lot[i])

        return min(candidates, key=key)

    def take(self, i: int) -> None:
        """Take a sentence, and close its bucket where that is full."""
        at = bucket(self.labels[i])
        self.quota[at] -= 1
        gone = {i} if self.quota[at] else {j for j in self.available if bucket(self.labels[j]) == at}
        self.available -= gone
        for j in gone:
            for label in self.labels[j]:
                self.left[label] -= 1
        for label in self.labels[i]:
            self.need[label] -= self.n


def sample(labels: Sequence[Sequence[str]], size: int, *, seed: int = 0) -> list[int]:
    """Return which sentences to keep.

    Parameters
    ----------
    labels : sequence of sequence of str
        The distinct labels of each sentence; one without labels is never kept.
    size : int
        How many to keep; at most the sentences that have labels.
    seed : int
        Decides ties only; the same seed gives the same sample.

    Returns
    -------
    list of int
        Positions, ascending.

    Raises
    ------
    ArgumentError
        If there are fewer sentences with labels than wanted.
    """
    used = [i for i, row in enumerate(labels) if row]
    if not 0 < size <= len(used):
        raise ArgumentError(f"cannot keep {size} sentences of {len(used)} that have labels")
    draw = _Draw([labels[i] for i in used], size, seed)
    chosen: list[int] = []
    while len(chosen) < size:
        label = draw.rarest()
        # Where no label is wanted any more, the quotas of the buckets are still to be filled.
        pool = draw.available if label is None else draw.available.intersection(draw.holders[label])
        chosen.append(draw.sentence(sorted(pool)))
        draw.take(chosen[-1])
    return sorted(used[i] for i in chosen)


@dataclass(frozen=True)
class Quality:
    """How well a sample stands for the whole.

    Attributes
    ----------
    sentences, sentences_before : int
        Kept, and before.
    labels, labels_before : int
        Distinct labels kept, and before.
    coverage : float
        Share of the label space that is kept.
    l1_distance : float
        Sum over labels of |share among the kept labels - share before|: 0 for equal marginals, 2 for none in common.
    labels_per_sentence, labels_per_sentence_before : float
        Means.
    buckets, buckets_before : dict of str to int
        Sentences by number of labels.
    """

    sentences: int
    sentences_before: int
    labels: int
    labels_before: int
    coverage: float
    l1_distance: float
    labels_per_sentence: float
    labels_per_sentence_before: float
    buckets: dict[str, int]
    buckets_before: dict[str, int]


def _by_bucket(labels: Sequence[Sequence[str]]) -> dict[str, int]:
    counts = Counter(bucket(row) for row in labels if row)
    return {name: counts[i] for i, name in enumerate(BUCKETS)}


def quality(labels: Sequence[Sequence[str]], kept: Sequence[int]) -> Quality:
    """Compare the sentences at positions `kept` with all that have labels."""
    before = [row for row in labels if row]
    after = [labels[i] for i in kept]
    count_before, count_after = (Counter(label for row in rows for label in row) for rows in (before, after))
    n_before, n_after = count_before.total(), count_after.total()
    return Quality(
        sentences=len(after),
        sentences_before=len(before),
        labels=len(count_after),
        labels_before=len(count_before),
        coverage=len(count_after) / len(count_before),
        l1_distance=sum(abs(count_after[label] / n_after - n / n_before) for label, n in count_before.items()),
        labels_per_sentence=n_after / len(after),
        labels_per_sentence_before=n_before / len(before),
        buckets=_by_bucket(after),
        buckets_before=_by_bucket(before),
    )


def write_sentences(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON, a line each."""
    with atomic_path(path) as temporary:
        temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser(
        "train.labels.sampler",
        "Keep a few labelled sentences that stand for all: as many labels each, and as much of the label space.",
        "python -m train.labels.sampler sentences.jsonl --size 100 --out build/sample.jsonl",
    )
    add = arguments.add_argument
    add("file", type=Path, help="JSON lines with a list of labels under 'skills'")
    add("--size", type=positive, default=100, help="sentences to keep (default: 100)")
    add("--seed", type=int, default=0, help="decides ties (default: 0)")
    add("--out", type=Path, help="write the sentences that are kept, unchanged and in the file's order")
    add("--json", action="store_true", help="print one JSON object instead of text")
    given = arguments.parse_args(argv)
    rows = read_sentences(given.file)
    labels = [list(dict.fromkeys(row["skills"])) for row in rows]
    kept = sample(labels, given.size, seed=given.seed)
    found = quality(labels, kept)
    if given.out:
        write_sentences(given.out, [rows[i] for i in kept])
    if given.json:
        emit({**asdict(found), "seed": given.seed, "out": str(given.out) if given.out else None})
        return 0
    say(f"kept {found.sentences} of {found.sentences_before} sentences")
    say(f"label coverage: {found.coverage:.1%} ({found.labels} of {found.labels_before})")
    say(f"L1 distance of label marginals: {found.l1_distance:.3f} (0 equal, 2 nothing in common)")
    say(f"labels per sentence: {found.labels_per_sentence:.2f}, before {found.labels_per_sentence_before:.2f}")
    say("labels: " + ", ".join(f"{name}: {n} of {found.buckets_before[name]}" for name, n in found.buckets.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
