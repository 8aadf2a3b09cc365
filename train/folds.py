"""Folds grouped by query: near-duplicate queries stay together, tasks are spread evenly, a seed fixes the rest."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.types import Float32

DUPLICATE_COSINE = 0.95


def canonical(text: str) -> str:
    """Return the text in lower case with nothing but letters, digits and single spaces; equal ones are duplicates."""
    return " ".join(re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).lower()))


def duplicate_clusters(
    texts: Sequence[str], embeddings: Float32 | None = None, *, cosine: float = DUPLICATE_COSINE
) -> NDArray[np.intp]:
    """Return a cluster number per text; texts that are equal or nearly so share it.

    Parameters
    ----------
    texts : sequence of str
        The queries.
    embeddings : float32[n_texts, d], optional
        Sentence embeddings, any length; without them only equal canonical texts are joined.
    cosine : float
        Two texts at this cosine or above are joined, and so is what is joined to either.

    Returns
    -------
    numpy.ndarray
        intp[n_texts]: the smallest row of each text's cluster.
    """
    same = np.equal.outer(*[np.array([canonical(text) for text in texts], dtype=object)] * 2)
    if embeddings is not None:
        if len(embeddings) != len(texts):
            raise ArgumentError(f"{len(embeddings)} embeddings for {len(texts)} texts; give one per text")
        unit = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
        same |= unit @ unit.T >= cosine
    cluster = np.arange(len(texts))
    for row in range(len(texts)):
        joined = np.unique(cluster[np.flatnonzero(same[row, : row + 1])])
        if len(joined) > 1:
            cluster[np.isin(cluster, joined)] = joined[0]
    return cluster


def make_folds(
    clusters: NDArray[np.intp], tasks: Sequence[str], *, n_folds: int = 5, seed: int = 0
) -> NDArray[np.intp]:
    """Deal whole clusters to folds so that every fold holds its share of every task.

    Parameters
    ----------
    clusters : intp[n_queries]
        From `duplicate_clusters`; a cluster counts for the task of its first query.
    tasks : sequence of str
        The task of each query; used for balance only.
    n_folds, seed : int
        Number of folds, and what shuffles them.

    Returns
    -------
    numpy.ndarray
        intp[n_queries], the fold of each query.

    Raises
    ------
    ArgumentError
        If there are fewer clusters than folds.
    """
    members: dict[int, list[int]] = {}
    for row, cluster in enumerate(clusters.tolist()):
        members.setdefault(cluster, []).append(row)
    if n_folds < 2 or len(members) < n_folds:
        raise ArgumentError(f"{len(members)} distinct queries cannot make {n_folds} folds; use 2 to {len(members)}")
    generator = np.random.default_rng(seed)
    kinds = sorted(set(tasks))
    count = np.zeros((len(kinds), n_folds), dtype=int)
    folds = np.zeros(len(tasks), dtype=np.intp)
    for kind, name in enumerate(kinds):
        groups = [rows for rows in members.values() if tasks[rows[0]] == name]
        shuffled = [groups[i] for i in generator.permutation(len(groups))]
        for rows in sorted(shuffled, key=len, reverse=True):
            total = count.sum(axis=0)
            fold = min(range(n_folds), key=lambda f: (count[kind, f], total[f], f))
            folds[rows] = fold
            count[kind, fold] += len(rows)
    return folds


def task_folds(tasks: Sequence[str]) -> NDArray[np.intp]:
    """Return folds that each hold one whole task, in the order of their names: leave-one-task-out."""
    return np.unique(np.asarray(tasks), return_inverse=True)[1].astype(np.intp)


def read_folds(path: Path, query_ids: Sequence[str], tasks: Sequence[str]) -> NDArray[np.intp]:
    """Read {query id: fold} from JSON; where two tasks share an id, "task/query id" names one of them.

    Parameters
    ----------
    path : Path
        The file.
    query_ids, tasks : sequence of str
        The queries, and the task of each.

    Returns
    -------
    numpy.ndarray
        intp[n_queries].

    Raises
    ------
    ResourceError
        If the file is not there.
    InputError
        If it is not such a mapping or lacks a query, which is named.
    """
    if not path.is_file():
        raise ResourceError(f"no folds at {path}; leave --folds out to make them")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: expected an object of query id -> fold")
    found = [value.get(f"{task}/{query}", value.get(query)) for task, query in zip(tasks, query_ids, strict=True)]
    missing = [query for query, fold in zip(query_ids, found, strict=True) if not isinstance(fold, int) or fold < 0]
    if missing:
        raise InputError(f"{path}: no fold for {len(missing)} queries, the first is {missing[0]!r}")
    return np.array(found, dtype=np.intp)
