"""Lexical lanes: BM25 and TF-IDF as sparse products."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from lanes.sparse import Index, cached_index, count
from lanes.views import TEXT_VIEWS, check, check_number, unfitted, view_identity, view_texts
from ranker.core.errors import ArgumentError
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import tokens
from ranker.core.types import Float32

_SKLEARN_WORD = re.compile(r"(?u)\b\w\w+\b")
_SPACE = re.compile(r"\s\s+")


def _lower_nfkd(text: str) -> str:
    return unicodedata.normalize("NFKD", text).lower()


def char_wb_ngrams(text: str, low: int, high: int) -> list[str]:
    """Return the character n-grams inside the words of a text, each word padded with a space on both sides.

    The same n-grams as scikit-learn's analyzer "char_wb": a padded word no longer than n gives itself, once.

    Parameters
    ----------
    text : str
        Lower-cased by the caller.
    low, high : int
        Shortest and longest n-gram.
    """
    grams: list[str] = []
    for word in text.split():
        padded = f" {word} "
        for n in range(low, high + 1):
            grams.append(padded[:n])
            grams.extend(padded[at : at + n] for at in range(1, len(padded) - n + 1))
            if len(padded) <= n:
                break
    return grams


def char_ngrams(text: str, low: int, high: int) -> list[str]:
    """Return the character n-grams of a text, spaces included: scikit-learn's analyzer "char"."""
    text = _SPACE.sub(" ", text)
    return [text[at : at + n] for n in range(low, min(high, len(text)) + 1) for at in range(len(text) - n + 1)]


# "ranker" is this project's tokeniser; the others repeat those of the benchmark's baselines and exist for those alone.
TOKENIZERS: Mapping[str, Callable[[str], list[str]]] = {
    "ranker": tokens,
    "whitespace": lambda text: _lower_nfkd(text).split(),
    "word2": lambda text: _SKLEARN_WORD.findall(_lower_nfkd(text)),
}


class _LexicalLane(ABC):
    """What BM25 and TF-IDF share: terms of a text, an index in the cache, a score per query."""

    family: ClassVar[str]

    def __init__(self, name: str, view: str, analyse: Callable[[str], list[str]], options: dict[str, Any]) -> None:
        check(view, TEXT_VIEWS, option="view", lane=name)
        self.name = name
        self._view = view
        self._analyse = analyse
        self._options = {"family": self.family, "view": view_identity(view), **options}
        self._index: Index | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Index the taxonomy, from the cache where it is there."""

        def build() -> tuple[sparse.csr_array, list[str], np.ndarray]:
            counts, terms = count(map(self._analyse, view_texts(taxonomy, self._view)))
            weights, idf = self._weigh(counts)
            return weights, terms, idf

        self._index = cached_index({**self._options, "fingerprint": taxonomy.fingerprint}, build)

    def score(self, queries: Sequence[str]) -> Float32:
        """Return float32[n_queries, n_skills]."""
        if self._index is None:
            raise unfitted(self.name)
        result = np.empty((len(queries), self._index.weights.shape[1]), dtype=np.float32)
        for row, query in enumerate(queries):
            result[row] = self._index.scores(self._query_weights(self._index, self._analyse(query)))
        return result

    def backbones(self) -> Mapping[str, int]:
        """Return nothing: no neural model."""
        return {}

    @abstractmethod
    def _weigh(self, counts: sparse.csr_array) -> tuple[sparse.csr_array, np.ndarray]:
        """Return the weight of each term in each skill, and of each term in a query."""

    @abstractmethod
    def _query_weights(self, index: Index, terms: Sequence[str]) -> Mapping[int, float]:
        """Return the weight of a query's terms, by the term's row in the index."""


class BM25Lane(_LexicalLane):
    """BM25 as `rank_bm25.BM25Okapi` computes it (Trotman et al. 2014, the ATIRE variant).

    A term's idf is log((N - df + 0.5) / (df + 0.5)); where that is negative it becomes `epsilon` times the mean idf.
    The whole document side is one matrix; a query is its term counts.

    Parameters
    ----------
    name : str
        Feature prefix.
    view : str
        One of `TEXT_VIEWS`.
    tokenizer : str
        One of `TOKENIZERS`.
    k1, b, epsilon : float
        Saturation, length normalisation, floor of the idf.

    Raises
    ------
    ArgumentError
        For a value that is not allowed.
    """

    family = "bm25"

    def __init__(
        self,
        name: str,
        *,
        view: str = "label",
        tokenizer: str = "ranker",
        k1: float = 1.5,
        b: float = 0.75,
        epsilon: float = 0.25,
    ) -> None:
        check(tokenizer, tuple(TOKENIZERS), option="tokenizer", lane=name)
        check_number(k1, 0, 100, option="k1", lane=name)
        check_number(b, 0, 1, option="b", lane=name)
        check_number(epsilon, 0, 100, option="epsilon", lane=name)
        options = {"tokenizer": tokenizer, "k1": k1, "b": b, "epsilon": epsilon}
        super().__init__(name, view, TOKENIZERS[tokenizer], options)

    def _weigh(self, counts: sparse.csr_array) -> tuple[sparse.csr_array, np.ndarray]:
        k1, b, epsilon = (float(self._options[key]) for key in ("k1", "b", "epsilon"))
        skills = counts.shape[0]
        frequency = np.bincount(counts.indices, minlength=counts.shape[1])
        idf = np.log(skills - frequency + 0.5) - np.log(frequency + 0.5)
        idf = np.where(idf < 0, epsilon * (idf.mean() if len(idf) else 0.0), idf)
        length = np.asarray(counts.sum(axis=1)).ravel()
        rows = np.repeat(np.arange(skills), np.diff(counts.indptr))
        norm = k1 * (1 - b + b * length / max(length.mean(), 1e-12))
        weights = counts.copy()
        weights.data = idf[counts.indices] * counts.data * (k1 + 1) / (counts.data + norm[rows])
        return weights, idf

    def _query_weights(self, index: Index, terms: Sequence[str]) -> Mapping[int, float]:
        return index.count(terms)


class TfidfLane(_LexicalLane):
    """Cosine of smoothed TF-IDF vectors, as scikit-learn's TfidfVectorizer weighs them.

    A term weighs tf * (log((1 + N) / (1 + df)) + 1); vectors have length 1.

    Parameters
    ----------
    name : str
        Feature prefix.
    view : str
        One of `TEXT_VIEWS`.
    analyzer : str
        "word", "char_wb" (n-grams inside words) or "char" (n-grams across them).
    ngrams : sequence of two int
        Shortest and longest n-gram; of words for "word".
    tokenizer : str
        One of `TOKENIZERS`; for words only.

    Raises
    ------
    ArgumentError
        For a value that is not allowed.
    """

    family = "tfidf"

    def __init__(
        self,
        name: str,
        *,
        view: str = "label",
        analyzer: str = "word",
        ngrams: Sequence[int] | None = None,
        tokenizer: str = "ranker",
    ) -> None:
        check(analyzer, ("word", "char_wb", "char"), option="analyzer", lane=name)
        check(tokenizer, tuple(TOKENIZERS), option="tokenizer", lane=name)
        if ngrams is None:
            ngrams = (1, 1) if analyzer == "word" else (3, 5)
        if not isinstance(ngrams, list | tuple) or len(ngrams) != 2:
            raise ArgumentError(f"lane {name}: ngrams: {ngrams!r} is not a list of two whole numbers, such as [3, 5]")
        low, high = ngrams
        check_number(low, 1, high, option="ngrams", lane=name, whole=True)
        check_number(high, low, 20, option="ngrams", lane=name, whole=True)
        words = TOKENIZERS[tokenizer]

        def word_ngrams(text: str) -> list[str]:
            found = words(text)
            return [" ".join(found[at : at + n]) for n in range(low, high + 1) for at in range(len(found) - n + 1)]

        analysers: dict[str, Callable[[str], list[str]]] = {
            "word": word_ngrams,
            "char_wb": lambda text: char_wb_ngrams(_lower_nfkd(text), low, high),
            "char": lambda text: char_ngrams(_lower_nfkd(text), low, high),
        }
        options = {"analyzer": analyzer, "ngrams": [low, high], "tokenizer": tokenizer}
        super().__init__(name, view, analysers[analyzer], options)

    def _weigh(self, counts: sparse.csr_array) -> tuple[sparse.csr_array, np.ndarray]:
        skills, size = counts.shape
        idf = np.log((1 + skills) / (1 + np.bincount(counts.indices, minlength=size))) + 1
        weights = counts.copy()
        weights.data = counts.data * idf[counts.indices]
        rows = np.repeat(np.arange(skills), np.diff(counts.indptr))
        length = np.sqrt(np.bincount(rows, weights.data**2, minlength=skills))
        weights.data /= length[rows]
        return weights, idf

    def _query_weights(self, index: Index, terms: Sequence[str]) -> Mapping[int, float]:
        weights = {row: times * index.idf[row] for row, times in index.count(terms).items()}
        length = float(np.sqrt(sum(w * w for w in weights.values())))
        return {row: weight / length for row, weight in weights.items()}
