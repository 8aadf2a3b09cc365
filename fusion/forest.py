"""Boosted trees read from LightGBM's text format, and all rows taken through all trees at once by bits.

Equal to LightGBM's own raw output (the tests compare), at a fraction of the time for a pool, and without importing it:
that costs two seconds of a cold start. The idea is that of QuickScorer (Lucchese et al. 2015): the trees of a forest
ask few distinct questions. Each is asked once for all rows, the answers are kept as one bit per row, and a node's rows
are its parent's rows and the parent's answer: bitwise operations on words of 64 rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Tree:
    """One tree as LightGBM writes it: children >= 0 are nodes, others are leaves, ~child.

    Attributes
    ----------
    feature, left, right, decision : int64[n_nodes]
        Column that is read, children, and decision type.
    threshold, gain : float64[n_nodes]
        A value goes left where it is at most the threshold; what the split gained in training.
    value : float64[n_leaves]
        Output.
    """

    feature: Ints
    left: Ints
    right: Ints
    decision: Ints
    threshold: NDArray[np.float64]
    gain: NDArray[np.float64]
    value: NDArray[np.float64]


@dataclass(frozen=True)
class Ranker:
    """One boosted ranker: its trees, how many features it was trained on, its objective."""

    trees: tuple[Tree, ...]
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
            return cls._parse(text)
        except (InputError, KeyError, ValueError, IndexError) as error:
            what = str(error) if isinstance(error, InputError) else repr(error)
            raise InputError(f"damaged LightGBM model, or one of another kind ({what}); train it anew") from error

    @classmethod
    def _parse(cls, text: str) -> Ranker:
        trees, end, _ = text.partition("\nend of trees")
        head, *blocks = trees.split("\nTree=")
        if not head.startswith("tree\n") or not end:
            raise InputError("the text is cut off")
        given = _fields(head)
        if int(given["num_tree_per_iteration"]) != 1 or "\naverage_output" in head:
            raise InputError("several classes, or a random forest")
        announced = len(given["tree_sizes"].split())
        if not blocks or len(blocks) != announced:
            raise InputError(f"{len(blocks)} trees, {announced} announced")
        width = int(given["max_feature_idx"]) + 1
        return cls(tuple(_tree(_fields(block), width) for block in blocks), width, given["objective"].split()[0])

    def gains(self) -> NDArray[np.float64]:
        """Return float64[n_features]: what the splits on each feature gained in training."""
        feature = np.concatenate([tree.feature for tree in self.trees])
        gain = np.concatenate([tree.gain for tree in self.trees])
        return np.bincount(feature, gain, self.n_features).astype(np.float64)


def _fields(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.split("\n") if "=" in line)


def _tree(given: Mapping[str, str], width: int) -> Tree:
    def ints(name: str) -> Ints:
        return np.array(given[name].split(), dtype=np.int64)

    def reals(name: str) -> NDArray[np.float64]:
        return np.array(given[name].split(), dtype=np.float64)

    if int(given["num_cat"]) or given.get("is_linear", "0") != "0":
        raise InputError("a tree with categories or linear leaves")
    leaves = int(given["num_leaves"])
    if leaves == 1:
        return _leaf(reals("leaf_value"))
    tree = Tree(
        ints("split_feature"), ints("left_child"), ints("right_child"), ints("decision_type"), reals("threshold"),
        reals("split_gain"), reals("leaf_value"),
    )  # fmt: skip
    nodes = leaves - 1
    if {len(part) for part in vars(tree).values()} != {nodes, leaves} or len(tree.value) != leaves:
        raise InputError("a tree whose parts have different lengths")
    children = np.concatenate([tree.left, tree.right])
    if sorted(children.tolist()) != [*range(-leaves, 0), *range(1, nodes)]:
        raise InputError("a tree whose nodes do not hang together")
    if tree.feature.min() < 0 or tree.feature.max() >= width or not np.isfinite(tree.value).all():
        raise InputError("a tree with a feature or a value that cannot be")
    if ((tree.decision & CATEGORICAL) | ((tree.decision >> 2) == MISSING_ZERO)).any():
        raise InputError("a tree with categories, or with zeros as missing values")
    return tree


def _leaf(value: NDArray[np.float64]) -> Tree:
    """Return a tree without a question."""
    none = np.zeros(0, np.int64)
    return Tree(none, none, none, none, np.zeros(0), np.zeros(0), value)


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
        leaves = max(len(tree.value) for ranker in rankers for tree in ranker.trees)
        self._planes = max((leaves - 1).bit_length(), 1)  # bits that number a leaf
        # A byte names the leaves of as many trees as it has room for, and one look-up adds their values up.
        self._per_byte = max(8 // self._planes, 1)
        padding = [_leaf(np.zeros(1))]
        grouped = [
            [*ranker.trees, *padding * (-len(ranker.trees) % self._per_byte)][member :: self._per_byte]
            for member in range(self._per_byte)
            for ranker in rankers
        ]
        sizes = [len(part) for part in grouped[: len(rankers)]]
        ends = np.cumsum(sizes).tolist()
        self._members = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._bytes = ends[-1]
        trees = [tree for part in grouped for tree in part]  # of one byte: those at a distance of `_bytes`
        values = np.zeros((len(trees), 1 << self._planes))
        for i, tree in enumerate(trees):
            values[i, : len(tree.value)] = tree.value
        table = values[: self._bytes]
        for member in range(1, self._per_byte):  # each next tree has the next higher bits
            part = values[member * self._bytes : (member + 1) * self._bytes]
            table = (part[:, :, None] + table[:, None, :]).reshape(self._bytes, -1)
        self._table = np.ascontiguousarray(table)
        self._offset = np.arange(0, self._table.size, self._table.shape[1])[:, None]
        self._index(trees)

    def _index(self, trees: Sequence[Tree]) -> None:
        """Number the distinct questions, feature by feature, and lay nodes and leaves out level by level."""
        asked = [list(_questions(tree)) for tree in trees]
        listed = sorted({question for tree in asked for question in tree})
        number = {question: i for i, question in enumerate(listed)}
        self._threshold = np.array([threshold for _, threshold, _ in listed], np.float32)[:, None]
        self._nan_right = np.array([right for _, _, right in listed], dtype=bool)
        bounds = np.searchsorted([feature for feature, _, _ in listed], np.arange(self.n_features + 1)).tolist()
        self._spans = [(f, a, b) for f, (a, b) in enumerate(pairwise(bounds)) if b > a]
        # Row 0 holds no rows and stands for leaves that are not there; row 1 holds all of them, the roots.
        self._leaf = np.zeros((1 << self._planes, len(trees)), dtype=np.int64)
        self._leaf[0, [not len(tree.feature) for tree in trees]] = 1
        self._levels: list[_Level] = []
        front = [(i, 0, 1) for i, tree in enumerate(trees) if len(tree.feature)]
        self._rows = 2
        while front:
            tests = [number[asked[i][node]] for i, node, _ in front]
            self._levels.append(_Level(np.array([row for *_, row in front]), np.array(tests), self._rows))
            children = [(i, int(trees[i].left[node])) for i, node, _ in front]
            children += [(i, int(trees[i].right[node])) for i, node, _ in front]
            for row, (i, child) in enumerate(children, start=self._rows):
                if child < 0:
                    self._leaf[~child, i] = row
            front = [(i, child, row) for row, (i, child) in enumerate(children, start=self._rows) if child >= 0]
            self._rows += len(children)

    def raw(self, rows: Float32) -> NDArray[np.float64]:
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
        holes = np.isnan(values).any(axis=1).tolist()
        answers = np.empty((max((b - a for _, a, b in self._spans), default=0), width), dtype=bool)
        packed = np.empty((len(self._threshold), width // 8), np.uint8)
        for feature, first, stop in self._spans:
            answer = answers[: stop - first]
            np.greater(values[feature], self._threshold[first:stop], out=answer)
            if holes[feature]:
                answer[np.ix_(self._nan_right[first:stop], np.isnan(values[feature]))] = True
            packed[first:stop] = np.packbits(answer, axis=1, bitorder="little")
        return packed.view(np.uint64)

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


def _questions(tree: Tree) -> Iterator[tuple[int, float, bool]]:
    """Yield (feature, threshold, does a missing value go right) of every node.

    Thresholds are rounded down to float32, where the rows live: a value is above one where it is above the other.
    """
    low = tree.threshold.astype(np.float32)
    low = np.where(low > tree.threshold, np.nextafter(low, np.float32(-np.inf)), low)
    nan_is_zero = (tree.decision >> 2) != MISSING_NAN
    nan_right = np.where(nan_is_zero, tree.threshold < 0, (tree.decision & DEFAULT_LEFT) == 0)
    for feature, threshold, right in zip(tree.feature, low, nan_right, strict=True):
        yield int(feature), float(threshold), bool(right)
