"""What a column is trained on: per text, candidate skills with gains, of which every training step draws a short list.

Stage 1 lists come from sentences whose gold skills are known and nothing else: the negatives are a ladder of ranks of a
cheap lane. Stage 2 lists come from graded queries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranker.core.errors import ResourceError
from ranker.core.sentences import read_sentences
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise
from ranker.core.types import Float32, Int32
from train.crossval import HELPER_TASK
from train.folds import DUPLICATE_COSINE, canonical
from train.lanes import Graded

TARGETS = ("graded", "binary")
GOLD = 4
LADDER = (10, 50, 300, 2000)
"""Ranks that part head, near, mid and deep: most skills of the head that are not gold would be graded 1 or 2."""


@dataclass(frozen=True)
class Lists:
    """Candidates of some texts.

    Attributes
    ----------
    texts : tuple of str
        Normalised.
    skills : tuple of int32[n]
        Taxonomy rows of each text's candidates.
    gains : tuple of float32[n]
        0 to 1.
    strata : tuple of int8[n]
        A drawn list takes from each stratum in turn, the highest first.
    """

    texts: tuple[str, ...]
    skills: tuple[Int32, ...]
    gains: tuple[Float32, ...]
    strata: tuple[NDArray[np.int8], ...]

    def usable(self, rows: NDArray[np.intp] | None = None) -> NDArray[np.intp]:
        """Return the rows, of all or some, whose gains are not all alike: of the others nothing can be learned."""
        asked = range(len(self.texts)) if rows is None else rows
        return np.array([row for row in asked if len(np.unique(self.gains[row])) > 1], dtype=np.intp)

    def draw(self, row: int, size: int, seed: Sequence[int]) -> tuple[Int32, Float32]:
        """Draw a list: one random candidate of every stratum in turn, until there are `size` or none is left.

        Parameters
        ----------
        row : int
            Which text.
        size : int
            Length of the list, where the text has as many candidates.
        seed : sequence of int
            The same seed draws the same list.

        Returns
        -------
        skills : int32[n]
        gains : float32[n]
        """
        generator = np.random.default_rng([*seed, row])
        shuffled = generator.permutation(len(self.skills[row]))
        strata = self.strata[row][shuffled]
        turn = np.empty(len(strata), dtype=np.intp)
        for stratum in np.unique(strata):
            members = np.flatnonzero(strata == stratum)
            turn[members] = np.arange(len(members))
        chosen = shuffled[np.lexsort((-strata, turn))[:size]]
        return self.skills[row][chosen], self.gains[row][chosen]

    @property
    def fingerprint(self) -> str:
        """Hash of everything."""
        made = hashlib.sha256("\n".join(self.texts).encode())
        for arrays in zip(self.skills, self.gains, self.strata, strict=True):
            for array in arrays:
                made.update(array.tobytes())
        return made.hexdigest()[:16]


def graded_lists(graded: Graded, pool: Int32, targets: str) -> Lists:
    """Return the candidates of graded queries: their pool, and what is relevant outside it.

    A skill of the pool without a grade is a 0 for judged queries, as the metric counts it. Helpers were judged less
    deep: what is unjudged of them is in no list.

    Parameters
    ----------
    graded : Graded
    pool : int32[n_queries, depth]
    targets : str
        "graded": (2^grade - 1) / 15; "binary", the control: 1 for grade 4, else 0.
    """
    skills, gains, strata = [], [], []
    for row, grades in enumerate(graded.grades):
        members = pool[row]
        if graded.tasks[row] == HELPER_TASK:
            members = members[grades[members] >= 0]
        candidates = np.union1d(members, np.flatnonzero(grades > 0)).astype(np.int32)
        known = np.maximum(grades[candidates], 0)
        skills.append(candidates)
        strata.append(known.astype(np.int8))
        graded_gain = (np.exp2(known.astype(np.float32)) - 1) / np.float32(2**GOLD - 1)
        gains.append(graded_gain if targets == "graded" else (known == GOLD).astype(np.float32))
    return Lists(graded.texts, tuple(skills), tuple(gains), tuple(strata))


@dataclass(frozen=True)
class Sentences:
    """Sentences with their gold skills.

    Attributes
    ----------
    texts : tuple of str
        Normalised, no two alike.
    gold : tuple of tuple of int
        Taxonomy rows.
    """

    texts: tuple[str, ...]
    gold: tuple[tuple[int, ...], ...]

    def without(self, left_out: NDArray[np.bool_]) -> Sentences:
        """Return those that are not marked."""
        kept = np.flatnonzero(~left_out)
        return Sentences(tuple(self.texts[i] for i in kept), tuple(self.gold[i] for i in kept))


def load_sentences(folder: Path, taxonomy: Taxonomy, *, strip_bullets: bool) -> Sentences:
    """Read every `*.jsonl` of a folder; rows marked `graded`, repeated texts and rows without known gold are left out.

    Raises
    ------
    ResourceError
        If there is no such file.
    InputError
        If a line is not a sentence with skills.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise ResourceError(f"no .jsonl file of sentences in {folder}; leave --sentences out to do without stage 1")
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for row in (row for path in paths for row in read_sentences(path)):
        text = normalise(row.get("text"), strip_bullets=strip_bullets)
        gold = tuple(sorted({taxonomy.index[uri] for uri in row["skills"] if uri in taxonomy.index}))
        if gold and canonical(text) and not row.get("graded"):
            found.setdefault(canonical(text), (text, gold))
    return Sentences(tuple(text for text, _ in found.values()), tuple(gold for _, gold in found.values()))


def sentence_lists(sentences: Sentences, ranking: Int32, head_gain: float) -> Lists:
    """Return the ladder of every sentence: gold, then the lane's near, mid and deep ranks, each a stratum.

    Parameters
    ----------
    sentences : Sentences
    ranking : int32[n_sentences, depth]
        A cheap lane's order, best first.
    head_gain : float
        Gain of the lane's first ranks that are not gold; 0 leaves them out: as zeros they would teach what is false.
    """
    skills, gains, strata = [], [], []
    for gold, order in zip(sentences.gold, ranking, strict=True):
        others = order[~np.isin(order, gold)][: LADDER[-1]]
        rung = -np.searchsorted(LADDER[:-1], np.arange(len(others)), side="right").astype(np.int8)
        others, rung = (others, rung) if head_gain else (others[rung < 0], rung[rung < 0])
        skills.append(np.concatenate([np.array(gold, np.int32), others]))
        strata.append(np.concatenate([np.ones(len(gold), np.int8), rung]))
        head = np.where(rung == 0, np.float32(head_gain), np.float32(0))
        gains.append(np.concatenate([np.ones(len(gold), np.float32), head]))
    return Lists(sentences.texts, tuple(skills), tuple(gains), tuple(strata))


def alike(
    texts: Sequence[str], vectors: Float32, other_texts: Sequence[str], other_vectors: Float32
) -> NDArray[np.bool_]:
    """Return bool[n, n_other]: equal canonical texts, or embeddings (of length 1) at `DUPLICATE_COSINE` or above."""
    names, others = [np.array([canonical(text) for text in part], dtype=object) for part in (texts, other_texts)]
    return np.asarray((names[:, None] == others[None, :]) | (vectors @ other_vectors.T >= DUPLICATE_COSINE))


def training_rows(folds: NDArray[np.intp], same: NDArray[np.bool_], fold: int) -> NDArray[np.intp]:
    """Return the queries that may train the model that scores a fold.

    None of the fold, and none that is a near-duplicate of one of the fold, wherever a file of folds or a chain of
    near-duplicates has put it.
    """
    return np.flatnonzero((folds != fold) & ~same[:, folds == fold].any(axis=1))
