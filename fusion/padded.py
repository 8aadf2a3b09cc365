"""Short sparse rows as two dense arrays: for a pool's rows many times faster than a sparse matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ranker.core.types import Float32


@dataclass(frozen=True)
class Padded:
    """A sparse matrix [n, width] whose rows are short.

    Attributes
    ----------
    index : int32[n, longest]
        Columns of each row's entries; 0 where the row is shorter.
    weight : float32[n, longest]
        Their values; 0 where the row is shorter.
    width : int
        Number of columns.
    """

    index: NDArray[np.int32]
    weight: Float32
    width: int

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def from_sparse(cls, matrix: sparse.csr_matrix) -> Padded:
        """Pad the rows of a sparse matrix to the longest."""
        matrix = sparse.csr_matrix(matrix)
        length = np.diff(matrix.indptr)
        there = np.arange(max(int(length.max(initial=0)), 1)) < length[:, None]
        index, weight = np.zeros(there.shape, np.int32), np.zeros(there.shape, np.float32)
        index[there], weight[there] = matrix.indices, matrix.data
        return cls(index, weight, matrix.shape[1])

    def normalised(self) -> Padded:
        """Return the matrix with every row that is not empty summing to 1."""
        total = self.weight.sum(axis=1, keepdims=True)
        return Padded(self.index, (self.weight / np.where(total > 0, total, 1)).astype(np.float32), self.width)

    def rows(self, rows: NDArray[np.integer]) -> Padded:
        """Return some of the rows."""
        return Padded(self.index.take(rows, axis=0), self.weight.take(rows, axis=0), self.width)

    def dot(self, values: Float32) -> Float32:
        """Return matrix @ values, for values float32[width] or float32[width, m]."""
        # One pass over the entries, without the products as an array of their own.
        near = values.take(self.index, axis=0)
        return np.asarray(np.einsum("ij...,ij->i...", near, self.weight), dtype=np.float32)

    def spread(self, values: Float32) -> Float32:
        """Return matrix.T @ values, for values float32[n] or float32[n, m]."""
        flat = self.index.ravel()
        if values.ndim == 1:
            return np.bincount(flat, (self.weight * values[:, None]).ravel(), self.width).astype(np.float32)
        parts = [self.spread(np.ascontiguousarray(values[:, i])) for i in range(values.shape[1])]
        return np.stack(parts, axis=1)

    def squares(self) -> Float32:
        """Return the sum of squares of each row: how much of what a row spreads comes back to it."""
        return np.asarray(np.square(self.weight).sum(axis=1), dtype=np.float32)
