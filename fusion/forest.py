"""Boosted trees read from LightGBM's text format, and all rows taken through all trees at once by bits.

Equal to LightGBM's own raw output (the tests compare), at a fraction of the time for a pool, and without importing it:
that costs two seconds of a cold start. The idea is that of QuickScorer (Lucchese et al. 2015): the trees of a forest
ask few distinct questions. Each is asked once for all rows, the answers are kept as one bit per row, and a node's rows
are its parent's rows and the parent's answer: bitwise operations on words of 64 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ranker.core.errors import InputError
from ranker.core.types import Float32

WORD = 64
BLOCK = 1024  # rows taken through the trees at a time: their bits stay in the processor's cache
CATEGORICAL, DEFAULT_LEFT = 1, 2  # bits of decision_type; the next two say what counts as missing
MISSING_ZERO, MISSING_NAN = 1, 2

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Ranker:
    """One boosted ranker as LightGBM writes it, its trees one after the other.

    Attributes
    ----------
    leaves : int64[n_trees]
        Leaves of each tree; it has one node less.
    feature, decision : int64[n_nodes]
        Column that is read, and decision type.
    left, right : int64[n_nodes]
        Children: from 0 on, nodes of the same tree; below 0, leaves of it, ~child.
    threshold, gain : float64[n_nodes]
        A value goes left where it is at most the threshold; what the split gained in training.
    value : float64[n_leaves]
        Output.
    n_features : int
        How many it was trained on.
    objective : str
        What it learned.
    """

    leaves: Ints
    feature: Ints
    decision: Ints
    left: Ints
    right: Ints
    threshold: Reals
    gain: Reals
    value: Reals
    n_features: int
    objective: str

    @classmethod
    def parse(cls, text: str) -> Ranker:
        """Read LightGBM's text format (version 4).

        Raises
        ------
        InputError
            If the text is damaged, or a tree holds what this project does not train: categories, linear leaves, zeros
            as missing values, several classes.
        """
        try:
            return _checked(cls._parse(text))
        except (InputError, KeyError, ValueError, IndexError) as error:
            what = str(error) if isinstance(error, InputError) else repr(error)
            raise InputError(f"damaged LightGBM model, or one of another kind ({what}); train it anew") from error

    @classmethod
    def _parse(cls, text: str) -> Ranker:
        trees, end, _ = text.partition("\nend of trees")
        head, *blocks = trees.split("\nTree=")
        if not head.startswith("tree\n") or not end:
            raise InputError("the text is cut off")
        given, parts = _fields(head), [_fields(block) for block in blocks]
        if int(given["num_tree_per_iteration"]) != 1 or "\naverage_output" in head:
            raise InputError("several classes, or a random forest")
        announced = len(given["tree_sizes"].split())
        if not parts or len(parts) != announced:
            raise InputError(f"{len(parts)} trees, {announced} announced")
        if any(part["num_cat"] != "0" or part.get("is_linear", "0") != "0" for part in parts):
            raise InputError("trees with categories or linear leaves")

        def ints(name: str) -> Ints:
            return np.array(" ".join(part.get(name, "") for part in parts).split(), dtype=np.int64)

        def reals(name: str) -> Reals:
            return np.array(" ".join(part.get(name, "") for part in parts).split(), dtype=np.float64)

        return cls(
            leaves=ints("num_leaves"), feature=ints("split_feature"), decision=ints("decision_type"),
            left=ints("left_child"), right=ints("right_child"), threshold=reals("threshold"), gain=reals("split_gain"),
            value=reals("leaf_value"), n_features=int(given["max_feature_idx"]) + 1,
            objective=given["objective"].split()[0],
        )  # fmt: skip

    def gains(self) -> Reals:
        """Return float64[n_features]: what the splits on each feature gained in training."""
        return np.bincount(self.feature, self.gain, self.n_features).astype(np.float64)


def _fields(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.split("\n") if "=" in line)


def _checked(ranker: Ranker) -> Ranker:
    """Return the ranker, or raise where following its trees would go astray."""
    nodes = ranker.leaves - 1
    per_node = (ranker.feature, ranker.decision, ranker.left, ranker.right, ranker.threshold, ranker.gain)
    if {len(part) for part in per_node} != {int(nodes.sum())} or len(ranker.value) != ranker.leaves.sum():
        raise InputError("parts of different lengths")
    child = np.concatenate([ranker.left, ranker.right])
    owner = np.tile(np.repeat(np.arange(len(nodes)), nodes), 2)
    ends = child < 0
    # Every leaf, and every node but the root, is the child of one node of its own tree.
    for number, of, count, once in (
        (~child[ends], owner[ends], ranker.leaves, np.repeat(ranker.leaves > 1, ranker.leaves)),
        (child[~ends], owner[~ends], nodes, _count_up(nodes) > 0),
    ):
        if (number >= count[of]).any():
            raise InputError("nodes that do not hang together")
        if not np.array_equal(np.bincount((np.cumsum(count) - count)[of] + number, minlength=len(once)), once):
            raise InputError("nodes that do not hang together")
    inside = (ranker.feature >= 0) & (ranker.feature < ranker.n_features)
    if not (inside.all() and np.isfinite(ranker.value).all()):
        raise InputError("a feature or a value that cannot be")
    if ((ranker.decision & CATEGORICAL) | ((ranker.decision >> 2) == MISSING_ZERO)).any():
        raise InputError("trees with categories, or with zeros as missing values")
    return ranker


@dataclass(frozen=True)
class _Level:
    """Nodes at one depth over all trees; their left children, then their right ones, become rows `first` and on."""

    node: Ints  # rows of the nodes themselves
    test: Ints  # questions they ask
    first: int


class Forest:
    """Several rankers over the same features, made ready for scoring."""

    def __init__(self, rankers: Sequence[Ranker]) -> None:
        self.n_features = rankers[0].n_features
        planes = max(int(max(ranker.leaves.max() for ranker in rankers) - 1).bit_length(), 1)  # bits of a leaf's number
        # A byte names the leaves of as many trees as it has room for, and one look-up adds their values up.
        self._per_byte = max(8 // planes, 1)
        sizes = [-(-len(ranker.leaves) // self._per_byte) for ranker in rankers]
        ends = np.cumsum(sizes).tolist()
        self._members = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._bytes = ends[-1]
        # Tree t of a ranker goes to place (t // size) of byte (t % size); places that stay free add nothing.
        place = np.concatenate(
            [
                np.arange(len(ranker.leaves)) // size * self._bytes + np.arange(len(ranker.leaves)) % size + end - size
                for ranker, size, end in zip(rankers, sizes, ends, strict=True)
            ]
        )
        leaves = np.concatenate([ranker.leaves for ranker in rankers])
        values = np.zeros((self._per_byte * self._bytes, 1 << planes))
        values[np.repeat(place, leaves), _count_up(leaves)] = np.concatenate([ranker.value for ranker in rankers])
        table = values[: self._bytes]
        for member in range(1, self._per_byte):  # each next tree has the next higher bits
            part = values[member * self._bytes : (member + 1) * self._bytes]
            table = (part[:, :, None] + table[:, None, :]).reshape(self._bytes, -1)
        self._table = np.ascontiguousarray(table)
        self._offset = np.arange(0, self._table.size, self._table.shape[1], dtype=np.int32)[:, None]
        number = self._ask(rankers)
        self._lay_out(rankers, leaves, place, number, values.shape)

    def _ask(self, rankers: Sequence[Ranker]) -> Ints:
        """Number the distinct questions, feature by feature, and return that of every node.

        Thresholds are rounded down to float32, where the rows live: a value is above one where it is above the other.
        """
        feature = np.concatenate([ranker.feature for ranker in rankers])
        exact = np.concatenate([ranker.threshold for ranker in rankers])
        decision = np.concatenate([ranker.decision for ranker in rankers])
        low = exact.astype(np.float32)
        low = np.where(low > exact, np.nextafter(low, np.float32(-np.inf)), low)
        # A missing value counts as 0 where training met none, and else goes the default way.
        right = np.where((decision >> 2) == MISSING_NAN, (decision & DEFAULT_LEFT) == 0, exact < 0)
        order = np.lexsort((right, low, feature))
        listed = np.stack([feature[order], low[order], right[order]]).astype(np.float64)
        new = np.r_[True, (np.diff(listed, axis=1) != 0).any(axis=0)][: len(order)]
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.cumsum(new) - 1
        first = order[new]
        self._threshold, self._nan_right = low[first, None], right[first]
        bounds = np.searchsorted(feature[first], np.arange(self.n_features + 1)).tolist()
        self._spans = [(f, a, b) for f, (a, b) in enumerate(pairwise(bounds)) if b > a]
        return number

    def _lay_out(
        self, rankers: Sequence[Ranker], leaves: Ints, place: Ints, number: Ints, shape: tuple[int, ...]
    ) -> None:
        """Lay nodes and leaves out level by level."""
        left, right = (np.concatenate([getattr(r, side) for r in rankers]) for side in ("left", "right"))
        start = np.cumsum(leaves - 1) - (leaves - 1)
        # Row 0 holds no rows and stands for leaves that are not there; row 1 holds all of them, the roots.
        self._leaf = np.zeros(shape[::-1], dtype=np.int64)
        self._leaf[0, place[leaves == 1]] = 1
        self._levels: list[_Level] = []
        self._rows = 2
        tree = np.flatnonzero(leaves > 1)
        node, row = start[tree], np.ones(len(tree), dtype=np.int64)
        while len(node):
            self._levels.append(_Level(row, number[node], self._rows))
            child, owner = np.concatenate([left[node], right[node]]), np.concatenate([tree, tree])
            rows = self._rows + np.arange(len(child))
            ends = child < 0
            self._leaf[~child[ends], place[owner[ends]]] = rows[ends]
            tree, row = owner[~ends], rows[~ends]
            node = start[tree] + child[~ends]
            self._rows += len(child)

    def raw(self, rows: Float32) -> Reals:
        """Return float64[n_rankers, n_rows], each ranker's raw output for float32[n_rows, n_features].

        A row's output depends on that row alone.
        """
        made = np.empty((len(self._members), len(rows)))
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            codes = self._codes(self._reached(self._answers(part)))
            values = np.take(self._table, codes + self._offset)
            for i, member in enumerate(self._members):
                made[i, start : start + BLOCK] = values[member].sum(axis=0)[: len(part)]
        return made

    def _answers(self, rows: Float32) -> Words:
        """Ask every question of every row: bits[n_questions, n_words], 1 where the row goes right."""
        width = -(-len(rows) // WORD) * WORD  # at least two columns: NumPy sums a single one in another order
        values = np.zeros((self.n_features, width), np.float32)
        values[:, : len(rows)] = rows.T
        holes = set(np.flatnonzero(np.isnan(values).any(axis=1)).tolist())
        answers = np.empty((len(self._threshold), width), dtype=bool)
        for feature, first, stop in self._spans:
            answer = answers[first:stop]
            np.greater(values[feature], self._threshold[first:stop], out=answer)
            if feature in holes:
                answer[np.ix_(self._nan_right[first:stop], np.isnan(values[feature]))] = True
        return np.packbits(answers.ravel(), bitorder="little").view(np.uint64).reshape(-1, width // WORD)

    def _reached(self, answers: Words) -> Words:
        """Follow the answers from the roots: bits[n_codes, n_trees, n_words], 1 where the row ends in that leaf."""
        reached = np.empty((self._rows, answers.shape[1]), np.uint64)
        reached[0], reached[1] = 0, ~np.uint64(0)
        for level in self._levels:
            middle = level.first + len(level.node)
            left, right = reached[level.first : middle], reached[middle : middle + len(level.node)]
            here = reached.take(level.node, axis=0)
            np.bitwise_and(here, answers.take(level.test, axis=0), out=right)
            np.bitwise_xor(here, right, out=left)
        return reached.take(self._leaf, axis=0)

    def _codes(self, leaves: Words) -> NDArray[np.uint8]:
        """Return the leaves' numbers, several trees to a byte: uint8[n_bytes, n_rows]."""
        planes = []
        while len(leaves) > 1:  # highest bit of the number first
            half = len(leaves) // 2
            planes.append(np.bitwise_or.reduce(leaves[half:], axis=0))
            leaves = leaves[:half] | leaves[half:]
        bits = [np.unpackbits(plane.view(np.uint8), axis=1, bitorder="little") for plane in planes]
        code = np.zeros((self._bytes, bits[0].shape[1]), np.uint8)
        for member in reversed(range(self._per_byte)):
            for plane in bits:
                code += code
                code |= plane[member * self._bytes : (member + 1) * self._bytes]
        return code


def _count_up(sizes: Ints) -> Ints:
    """Return 0, 1, ..., size - 1 for every size, one after the other."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
