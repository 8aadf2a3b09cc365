"""An inverted index: a term-by-skill matrix with its vocabulary, cached on disk, multiplied with sparse queries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from ranker.core.artifacts import cached_array
from ranker.core.types import Float32


def count(documents: Iterable[Sequence[str]]) -> tuple[sparse.csr_array, list[str]]:
    """Return float64 term counts [n_documents, n_terms] and the terms, in the order of first sight."""
    vocabulary: dict[str, int] = {}
    data: list[int] = []
    columns: list[int] = []
    ends = [0]
    for document in documents:
        counts = Counter(document)
        columns.extend(vocabulary.setdefault(term, len(vocabulary)) for term in counts)
        data.extend(counts.values())
        ends.append(len(data))
    parts = (np.asarray(data, np.float64), np.asarray(columns, np.int32), np.asarray(ends, np.int32))
    return sparse.csr_array(parts, shape=(len(ends) - 1, len(vocabulary))), list(vocabulary)


@dataclass(frozen=True)
class Index:
    """Weights of terms in skills.

    Attributes
    ----------
    vocabulary : mapping
        Row of each term.
    weights : scipy.sparse.csr_array
        float64[n_terms, n_skills]: a query costs only the skills its terms stand in.
    idf : numpy.ndarray
        float64[n_terms]; what the query's side of the weighting needs.
    """

    vocabulary: Mapping[str, int]
    weights: sparse.csr_array
    idf: np.ndarray

    def scores(self, terms: Mapping[int, float]) -> Float32:
        """Return float32[n_skills]: the sum over the query's terms of query weight times skill weight.

        Sums run in float64, in the order of `terms`, so that a row depends on nothing else.
        """
        rows = np.fromiter(terms, np.intp, len(terms))
        weights = np.fromiter(terms.values(), np.float64, len(terms))
        return np.asarray(self.weights[rows].T @ weights, dtype=np.float32)

    def count(self, terms: Iterable[str]) -> dict[int, float]:
        """Return how often each known term stands in a query, by row, in the order of first sight."""
        counts: dict[int, float] = {}
        for term in terms:
            row = self.vocabulary.get(term)
            if row is not None:
                counts[row] = counts.get(row, 0.0) + 1.0
        return counts


def cached_index(key: dict[str, Any], build: Callable[[], tuple[sparse.csr_array, list[str], np.ndarray]]) -> Index:
    """Return an index from the cache, or build and cache it.

    Parameters
    ----------
    key : dict
        Everything the index depends on.
    build : callable
        Returns float64[n_skills, n_terms], the terms, and their idf.
    """
    built: list[tuple[sparse.csr_array, bytes, np.ndarray]] = []

    def part(name: str) -> np.ndarray:
        def compute() -> np.ndarray:
            if not built:
                matrix, terms, idf = build()
                built.append((matrix.T.tocsr(), json.dumps(terms).encode(), idf))
            matrix, text, idf = built[0]
            values = {"terms": np.frombuffer(text, np.uint8), "idf": idf, "shape": np.asarray(matrix.shape)}
            return values[name] if name in values else getattr(matrix, name)

        return cached_array(f"index-{name}", {**key, "part": name}, compute)

    arrays = [np.asarray(part(name)) for name in ("data", "indices", "indptr", "shape", "terms", "idf")]
    matrix = sparse.csr_array((arrays[0], arrays[1], arrays[2]), shape=tuple(int(n) for n in arrays[3]))
    terms = json.loads(arrays[4].tobytes())
    return Index({term: row for row, term in enumerate(terms)}, matrix, arrays[5])
