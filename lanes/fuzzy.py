"""Fuzzy lane: edit similarity of the query and the labels."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rapidfuzz import fuzz, process

from lanes.views import check, check_number, unfitted
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32

# "casefold" is this project's; the other repeats the benchmark's baseline and exists for that alone.
FOLDS: Mapping[str, Callable[[str], str]] = {
    "casefold": str.casefold,
    "nfkd": lambda text: unicodedata.normalize("NFKD", text).lower(),
}
_SCORERS = {"ratio": fuzz.ratio, "token_set_ratio": fuzz.token_set_ratio}


class FuzzyLane:
    """rapidfuzz similarity in 0..100 between the query and each label, both in lower case.

    Parameters
    ----------
    name : str
        Feature prefix.
    scorer : str
        "ratio" (normalised indel distance) or "token_set_ratio" (the words both have, against the rest).
    fold : str
        How case is folded: one of `FOLDS`.
    max_characters : int
        Longer queries are cut here: the time grows with the length, and no label is nearly that long.
    workers : int
        Threads; -1 for one per core. The scores do not depend on it.

    Raises
    ------
    ArgumentError
        For a value that is not allowed.
    """

    def __init__(
        self,
        name: str,
        *,
        scorer: str = "ratio",
        fold: str = "casefold",
        max_characters: int = 300,
        workers: int = -1,
    ) -> None:
        check(scorer, tuple(_SCORERS), option="scorer", lane=name)
        check(fold, tuple(FOLDS), option="fold", lane=name)
        check_number(max_characters, 1, 10_000, option="max_characters", lane=name, whole=True)
        check_number(workers, -1, 1_024, option="workers", lane=name, whole=True)
        self.name = name
        self._scorer = _SCORERS[scorer]
        self._fold = FOLDS[fold]
        self._max_characters = max_characters
        self._workers = workers
        self._labels: list[str] | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Keep the labels in lower case; there is nothing to cache."""
        self._labels = [self._fold(label) for label in taxonomy.label]

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]."""
        if self._labels is None:
            raise unfitted(self.name)
        if not queries:
            return np.empty((0, len(self._labels)), dtype=np.float32)
        texts = [self._fold(query)[: self._max_characters] for query in queries]
        # Labels as rows: cdist shares out rows among its threads, and one query must be able to use them all.
        scores = process.cdist(self._labels, texts, scorer=self._scorer, workers=self._workers, dtype=np.float32)
        return np.ascontiguousarray(scores.T)

    def backbones(self) -> Mapping[str, int]:
        """Return nothing: no neural model."""
        return {}
