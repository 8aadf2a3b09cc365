"""The feature table: what the learned fusion knows about a skill in the pool of a query, column by named column.

One path builds it for training, evaluation, challenge files and service. Every value of a query's rows is computed from
that query's arrays alone, so neither the batch nor its order can change it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fusion.padded import Padded
from fusion.prior import SkillPrior
from ranker.core.artifacts import cache_dir, write_json
from ranker.core.errors import ArgumentError, InputError
from ranker.core.order import moments, standardise, zscore
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise, tokens
from ranker.core.types import Float32, Int32

GROUPS = ("lanes", "columns", "aggregates", "disagreement", "lengths", "evidence", "groups", "neighbours", "absolute",
          "prior", "taught")
"""The switchable feature groups, in the order of their columns."""

ABSOLUTE = "raw"
"""First part of the names of the features in the group `absolute`."""

LONGEST_ALIAS = 8
COMMON_SHARE = 0.02
AGREEMENT_RANKS = (50, 200)
BUCKETS = 8192
HITS = ("count", "longest", "share", "label", "maximal", "exact")
_SUFFIX = re.compile(r"(?:ies|ing|ed|es|s|e)$")


@dataclass(frozen=True)
class PoolInputs:
    """Everything the fusion may read about some queries.

    Attributes
    ----------
    queries : list of str
        Normalised texts.
    lanes : dict of str to float32[n_queries, n_skills]
        Scores of every lane, in the config's order.
    base : float32[n_queries, n_skills]
        Weighted z-fusion of the lanes: what made the pool.
    pool : int32[n_queries, k]
        Rows of the skills in each query's pool, best first.
    columns : dict of str to float32[n_queries, k]
        Reranker scores at the pool's positions, NaN beyond a column's depth.
    """

    queries: list[str]
    lanes: dict[str, Float32]
    base: Float32
    pool: Int32
    columns: dict[str, Float32] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, k = len(self.queries), self.pool.shape[-1]
        wanted = {"base": (self.base, self.base.shape[-1]), "pool": (self.pool, k)}
        wanted |= {f"lane {name}": (lane, self.base.shape[-1]) for name, lane in self.lanes.items()}
        wanted |= {f"column {name}": (column, k) for name, column in self.columns.items()}
        for name, (array, width) in wanted.items():
            if array.shape != (n, width):
                raise InputError(f"{name} has shape {array.shape}; expected ({n}, {width}) for {n} queries")

    @cached_property
    def moments(self) -> dict[str, tuple[Float32, Float32]]:
        """Mean and deviation of each lane over all skills, float32[n_queries, 1]; several readers share them."""
        return {name: moments(lane) for name, lane in self.lanes.items()}

    def rows(self, rows: NDArray[np.intp]) -> PoolInputs:
        """Return the inputs of some of the queries."""
        return PoolInputs(
            queries=[self.queries[i] for i in rows],
            lanes={name: lane[rows] for name, lane in self.lanes.items()},
            base=self.base[rows],
            pool=self.pool[rows],
            columns={name: column[rows] for name, column in self.columns.items()},
        )


@dataclass(frozen=True)
class FeatureTable:
    """Feature values with their names.

    Attributes
    ----------
    names : tuple of str
        One per column; their order is part of a trained bag.
    values : float32[n_queries, k, n_features]
        NaN where a feature has no value (a column beyond its depth).
    """

    names: tuple[str, ...]
    values: Float32

    def select(self, names: Sequence[str]) -> Float32:
        """Return the values of some columns, in the order given."""
        place = {name: i for i, name in enumerate(self.names)}
        missing = [name for name in names if name not in place]
        if missing:
            raise ArgumentError(f"features not in the table: {', '.join(missing)}; there are: {', '.join(self.names)}")
        return np.ascontiguousarray(self.values[:, :, [place[name] for name in names]])


def stem(token: str) -> str:
    """Return a token without its commonest English endings, so that "weld", "welds" and "welding" meet.

    Tokens with digits or signs ("c++", "node.js") and tokens whose remainder would be shorter than three letters stay.
    """
    if not token.isalpha():
        return token
    short = _SUFFIX.sub("", token)
    if len(short) < 3:
        return token
    return short[:-1] if len(short) > 3 and short[-1] == short[-2] else short


@dataclass(frozen=True)
class Entries:
    """Group membership of all levels as one list, skill by skill.

    Attributes
    ----------
    start : int64[n_skills + 1]
        Where each skill's entries begin.
    group : int64[n_entries]
        Number of the group, over all levels.
    level : int64[n_entries]
        Level of the group.
    share : float64[n_entries]
        Weight of the group among the skill's own at that level.
    width : int
        Number of groups over all levels.
    """

    start: NDArray[np.int64]
    group: NDArray[np.int64]
    level: NDArray[np.int64]
    share: NDArray[np.float64]
    width: int

    @classmethod
    def of(cls, levels: Sequence[Padded]) -> Entries:
        """Lay the levels' memberships out skill by skill."""
        offsets = np.cumsum([0, *(level.width for level in levels)])
        parts = [np.nonzero(level.weight) for level in levels]
        owner = np.concatenate([rows for rows, _ in parts])
        order = np.argsort(owner, kind="stable")
        group = [level.index[part] + start for level, part, start in zip(levels, parts, offsets, strict=False)]
        share = [level.weight[part] for level, part in zip(levels, parts, strict=True)]
        return cls(
            start=np.searchsorted(owner[order], np.arange(len(levels[0]) + 1)),
            group=np.concatenate(group)[order].astype(np.int64),
            level=np.repeat(np.arange(len(levels)), [len(rows) for rows, _ in parts])[order],
            share=np.concatenate(share)[order].astype(np.float64),
            width=int(offsets[-1]),
        )


@dataclass(frozen=True)
class Statics:
    """What the features need of a taxonomy, computed once.

    Attributes
    ----------
    fingerprint : str
        Of the taxonomy.
    aliases : dict of str to tuple of (int, bool)
        Space-joined words of a label or alt label -> (row, is it the preferred label).
    vocabulary : dict of str to int
        Stem -> column of the two sparse matrices; very common stems are left out.
    weight : float32[n_stems]
        Inverse document frequency of each stem over labels and alt labels.
    phrases : csc_matrix[n_phrases, n_stems]
        Which stems a label or alt label holds, each row summing to 1 by weight.
    owner : int64[n_skills + 1]
        Where each skill's phrases begin; the first is its preferred label.
    words : csc_matrix[n_skills, n_stems]
        Which stems any phrase of a skill holds.
    lengths : dict of str to float32[n_skills]
        Words of the label, number of alt labels, words of the description.
    levels : tuple of Padded[n_skills, n_groups]
        Membership in the skill groups, coarse to fine; a row sums to 1, or is empty.
    graph : Padded[n_skills, n_skills] or None
        Row-normalised similarity graph without the diagonal.
    """

    fingerprint: str
    aliases: dict[str, tuple[tuple[int, bool], ...]]
    vocabulary: dict[str, int]
    weight: Float32
    phrases: sparse.csc_matrix
    owner: NDArray[np.int64]
    words: sparse.csc_matrix
    lengths: dict[str, Float32]
    levels: tuple[Padded, ...]
    graph: Padded | None = None

    def __len__(self) -> int:
        return len(self.owner) - 1

    @cached_property
    def groups(self) -> Entries:
        """The levels' memberships as one list."""
        return Entries.of(self.levels)


def group_levels(taxonomy: Taxonomy) -> tuple[Padded, ...]:
    """Return group membership at three levels ("S4", "S4.5", "S4.5.0"; "K06", "K061", "K0613"), rows summing to 1.

    A skill without groups has an empty row.
    """
    levels = []
    for depth in range(3):
        rows, codes = [], []
        above = {code: _ancestor(code, depth) for code in {code for groups in taxonomy.groups for code in groups}}
        for row, groups in enumerate(taxonomy.groups):
            cut = {above[code] for code in groups}
            rows += [row] * len(cut)
            codes += sorted(cut)
        names = {code: i for i, code in enumerate(sorted(set(codes)))}
        matrix = sparse.csr_matrix(
            (np.ones(len(rows), np.float32), (rows, [names[code] for code in codes])),
            shape=(len(taxonomy), max(len(names), 1)),
        )
        levels.append(Padded.from_sparse(matrix).normalised())
    return tuple(levels)


def _ancestor(code: str, depth: int) -> str:
    if "." in code:
        return ".".join(code.split(".")[: depth + 1])
    return code[: 3 + depth] if code.startswith("K") else code


def build_statics(taxonomy: Taxonomy, graph: Padded | None = None) -> Statics:
    """Index labels, alt labels and groups of a taxonomy for the features.

    Parameters
    ----------
    taxonomy : Taxonomy
        The skills; rows as in every lane.
    graph : Padded[n_skills, n_skills], optional
        Row-normalised similarity graph. Without it there are no neighbour features.
    """
    return _assemble(taxonomy, _phrases(taxonomy), graph)


def load_statics(taxonomy: Taxonomy, graph: Padded | None = None) -> Statics:
    """Return `build_statics`, its slow part (splitting some 100,000 names into words) taken from the cache."""
    path = cache_dir() / f"phrases-{taxonomy.fingerprint}.json"
    phrases: list[str] | None = None
    if path.is_file():
        try:
            phrases = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            path.unlink(missing_ok=True)  # a damaged file is made anew
    if not isinstance(phrases, list) or len(phrases) != len(taxonomy) + sum(map(len, taxonomy.alt_labels)):
        phrases = _phrases(taxonomy)
        write_json(path, phrases)
    return _assemble(taxonomy, phrases, graph)


def _phrases(taxonomy: Taxonomy) -> list[str]:
    """Return the words of every label and its alt labels, skill by skill, joined by single spaces."""
    names = zip(taxonomy.label, taxonomy.alt_labels, strict=True)
    return [" ".join(tokens(normalise(name))) for label, others in names for name in (label, *others)]


def _aliases(phrases: list[str], owners: list[int], first: set[int]) -> dict[str, tuple[tuple[int, bool], ...]]:
    """Return the skills of every phrase that is short enough, each with whether it is the preferred label."""
    aliases: dict[str, tuple[tuple[int, bool], ...]] = {}
    for i, (phrase, row) in enumerate(zip(phrases, owners, strict=True)):
        if not phrase or phrase.count(" ") >= LONGEST_ALIAS:
            continue
        known = aliases.get(phrase, ())
        if known and known[-1][0] == row:  # owners ascend, so a skill's own repeat is the last
            aliases[phrase] = (*known[:-1], (row, known[-1][1] or i in first))
        else:
            aliases[phrase] = (*known, (row, i in first))
    return aliases


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `np.unique` of whole numbers, which NumPy 2.3 and later hash first: a second for 300,000 of them."""
    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


def _assemble(taxonomy: Taxonomy, phrases: list[str], graph: Padded | None) -> Statics:
    start = np.cumsum([0, *(1 + len(names) for names in taxonomy.alt_labels)], dtype=np.int64)
    first = set(start.tolist())
    skill_of = np.repeat(np.arange(len(taxonomy)), np.diff(start))
    words_of = " ".join(phrases).split()
    stems = {token: stem(token) for token in dict.fromkeys(words_of)}
    number = {short: i for i, short in enumerate(dict.fromkeys(stems.values()))}
    place = {token: number[short] for token, short in stems.items()}
    flat = [place[token] for token in words_of]
    n, kinds = len(phrases), max(len(number), 1)
    where = np.repeat(np.arange(n), [phrase.count(" ") + 1 if phrase else 0 for phrase in phrases])
    pairs = _distinct(where.astype(np.int64) * kinds + np.array(flat, dtype=np.int64))
    rows, columns = pairs // kinds, pairs % kinds
    count = np.bincount(columns, minlength=kinds)
    common = count > max(COMMON_SHARE * n, 20)
    weight = np.log1p(n / np.maximum(count, 1)).astype(np.float32)
    kept = ~common[columns]
    rows, columns = rows[kept], columns[kept]
    total = np.bincount(rows, weights=weight[columns], minlength=n)
    share = (weight[columns] / total[rows]).astype(np.float32)
    owned = _distinct(skill_of[rows] * kinds + columns)
    words = sparse.csc_matrix(
        (np.ones(len(owned), np.float32), (owned // kinds, owned % kinds)), shape=(len(taxonomy), kinds)
    )
    return Statics(
        fingerprint=taxonomy.fingerprint,
        aliases=_aliases(phrases, skill_of.tolist(), first),
        vocabulary={token: i for token, i in number.items() if not common[i]},
        weight=weight,
        phrases=sparse.csc_matrix((share, (rows, columns)), shape=(n, kinds)),
        owner=start,
        words=words,
        lengths={
            "label_words": np.array([len(label.split()) for label in taxonomy.label], np.float32),
            "alt_labels": np.array([len(names) for names in taxonomy.alt_labels], np.float32),
            "description_words": np.array([len(text.split()) for text in taxonomy.description], np.float32),
        },
        levels=group_levels(taxonomy),
        graph=graph,
    )


@dataclass(frozen=True)
class _Query:
    """One query's slice of the inputs, with what several feature groups share."""

    text: str
    pool: NDArray[np.int64]
    lanes: tuple[str, ...]
    columns: dict[str, Float32]
    score: Float32
    z: Float32
    rank: Float32
    log_rank: Float32
    base: Float32
    base_z: Float32
    statics: Statics


Columns = list[tuple[str, Float32]]


def count_above(values: Float32, at: Float32) -> Float32:
    """Return, for each of `at`, how many of `values` are greater: the rank from 0, ties sharing the best.

    Values are counted in `BUCKETS` equal steps between the lowest of `at` and the highest value: a sort takes five
    times as long; two in the same step are a tie.
    """
    low, high = at.min(), values.max()
    if not low < high:
        return np.zeros(len(at), np.float32)
    above = np.maximum(values, low)
    step, own = (((part - low) / (high - low) * np.float32(BUCKETS)).astype(np.int32) for part in (above, at))
    count = np.bincount(step, minlength=BUCKETS + 1)
    ranks: Float32 = (len(values) - count.cumsum())[own].astype(np.float32)
    return ranks


def build_features(
    inputs: PoolInputs,
    statics: Statics,
    prior: SkillPrior | None,
    groups: Sequence[str] | None = None,
    *,
    own: NDArray[np.int8] | None = None,
) -> FeatureTable:
    """Build the named feature table at the pool's positions.

    Parameters
    ----------
    inputs : PoolInputs
        Lane scores, base score, pool and columns of n queries.
    statics : Statics
        From `build_statics`, of the same taxonomy.
    prior : SkillPrior or None
        Counts over training queries; None leaves the prior's features out.
    groups : sequence of str, optional
        Which of `GROUPS` to build; default all.
    own : int8[n_queries, k], optional
        The grades (-1 unjudged) of these very queries, where the prior has counted them: their part is taken out again
        (leave one out). None for queries the prior has not seen.

    Returns
    -------
    FeatureTable
        float32[n_queries, k, n_features] with names.

    Raises
    ------
    ArgumentError
        A group that does not exist.
    InputError
        Lane scores over another number of skills than the taxonomy has.
    """
    chosen = tuple(GROUPS if groups is None else groups)
    unknown = sorted(set(chosen) - set(GROUPS))
    if unknown:
        raise ArgumentError(f"unknown feature group {', '.join(unknown)}; allowed: {', '.join(GROUPS)}")
    if inputs.base.shape[1] != len(statics):
        raise InputError(f"scores over {inputs.base.shape[1]} skills, features made for {len(statics)}")
    makers = [_MAKERS[group] for group in GROUPS if group in chosen and group in _MAKERS]
    names: tuple[str, ...] = ()
    values: list[Float32] = []
    for i in range(len(inputs.queries)):
        query = _prepare(inputs, i, statics)
        made = [column for maker in makers for column in maker(query)]
        if "prior" in chosen and prior is not None:
            made += prior.columns(query.pool, None if own is None else own[i])
        names = tuple(name for name, _ in made)
        flat = np.concatenate([np.empty(0), *(column for _, column in made)], dtype=np.float32)
        values.append(flat.reshape(len(made), len(query.pool)).T)
    shape = (0, inputs.pool.shape[1], 0)
    return FeatureTable(names, np.stack(values) if values else np.zeros(shape, np.float32))


def _prepare(inputs: PoolInputs, i: int, statics: Statics) -> _Query:
    pool = inputs.pool[i].astype(np.int64)
    lanes = [lane[i] for lane in inputs.lanes.values()]
    base = np.ascontiguousarray(inputs.base[i], dtype=np.float32)
    at = np.stack([lane.take(pool) for lane in lanes]).astype(np.float32, copy=False)
    rank = np.stack([count_above(lane, here) for lane, here in zip(lanes, at, strict=True)])
    mean, deviation = (np.stack([part[i] for part in side]) for side in zip(*inputs.moments.values(), strict=True))
    base_z = zscore(base)
    return _Query(
        text=inputs.queries[i],
        pool=pool,
        lanes=tuple(inputs.lanes),
        columns={name: column[i] for name, column in inputs.columns.items()},
        score=at,
        z=standardise(at, mean, deviation),
        rank=rank,
        log_rank=np.log1p(rank),
        base=base_z,
        base_z=base_z[pool],
        statics=statics,
    )


def _lanes(query: _Query) -> Columns:
    made = []
    for name, z, log_rank in zip(query.lanes, query.z, query.log_rank, strict=True):
        made += [(f"lane.{name}.z", z), (f"lane.{name}.log_rank", log_rank)]
    return made


def _columns(query: _Query) -> Columns:
    made = []
    for name, column in query.columns.items():
        z = np.full(len(column), np.nan, np.float32)
        rank = z.copy()
        there = np.isfinite(column)
        if there.any():
            seen = column[there].astype(np.float32)
            z[there] = zscore(seen)
            rank[there] = np.log1p(count_above(seen, seen))
        made += [(f"column.{name}.raw", column.astype(np.float32)), (f"column.{name}.z", z),
                 (f"column.{name}.log_rank", rank)]
    return made


def _aggregates(query: _Query) -> Columns:
    place = np.log1p(np.arange(len(query.pool), dtype=np.float32))
    agree = [(f"agree.{top}", (query.rank < top).sum(axis=0).astype(np.float32)) for top in AGREEMENT_RANKS]
    return [
        ("base.z", query.base_z),
        ("base.log_rank", place),
        *agree,
        ("z.mean", query.z.mean(axis=0)),
        ("z.deviation", query.z.std(axis=0)),
        ("z.max", query.z.max(axis=0)),
        ("rank.reciprocal", (1 / (60 + query.rank)).sum(axis=0)),
        ("rank.best", query.log_rank.min(axis=0)),
    ]


def _disagreement(query: _Query) -> Columns:
    """How far the lanes' ranks lie apart, and how peaked the query's scores are (a specific query has few near)."""
    log = query.log_rank
    top = query.base_z
    k = len(top)
    constant = {
        "query.top_z": float(top[0]),
        "query.gap_10": float(top[0] - top[min(9, k - 1)]),
        "query.gap_100": float(top[0] - top[min(99, k - 1)]),
        "query.deviation": float(top.std()),
    }
    return [
        ("rank.deviation", log.std(axis=0)),
        ("rank.range", log.max(axis=0) - log.min(axis=0)),
        ("base.below_top", top[0] - top),
        *((name, np.full(k, value, np.float32)) for name, value in constant.items()),
    ]


def _lengths(query: _Query) -> Columns:
    words = len(query.text.split())
    made = [("length.query", np.full(len(query.pool), words, np.float32))]
    return made + [(f"skill.{name}", values[query.pool]) for name, values in query.statics.lengths.items()]


def _evidence(query: _Query) -> Columns:
    """Whole-word hits of labels and alt labels in the text, and how much of either side's words the other holds."""
    statics = query.statics
    text = tokens(query.text)
    n = max(len(text), 1)
    hits: dict[int, list[tuple[int, int, bool]]] = {}
    for start in range(len(text)):
        for end in range(start + 1, min(start + LONGEST_ALIAS, len(text)) + 1):
            for row, preferred in statics.aliases.get(" ".join(text[start:end]), ()):
                hits.setdefault(row, []).append((start, end, preferred))
    hit = np.zeros((len(HITS), len(query.pool)), np.float32)
    covered = np.zeros(len(text), np.int64)
    for spans in hits.values():
        for start, end, _ in spans:
            covered[start:end] = np.maximum(covered[start:end], end - start)
    place = np.full(len(statics), -1)
    place[query.pool] = np.arange(len(query.pool))
    for row, spans in hits.items():
        if place[row] < 0:
            continue
        longest = max(end - start for start, end, _ in spans)
        maximal = any(end - start >= covered[start:end].max() for start, end, _ in spans)
        share = len({i for start, end, _ in spans for i in range(start, end)}) / n
        exact = longest == len(text)
        hit[:, place[row]] = len(spans), longest, share, any(span[2] for span in spans), maximal, exact
    stems = sorted({statics.vocabulary[s] for s in map(stem, text) if s in statics.vocabulary})
    phrase = _gather(statics.phrases, stems, None)
    asked = _gather(statics.words, stems, statics.weight)
    total = max(float(statics.weight[stems].sum()), 1e-9)
    # The names of the pool's skills, one after the other: a maximum over all 100,000 would take milliseconds.
    first, stop = statics.owner[query.pool], statics.owner[query.pool + 1]
    begin = np.cumsum(stop - first) - (stop - first)
    names = np.repeat(first - begin, stop - first) + np.arange(int((stop - first).sum()))
    return [
        *((f"hit.{name}", values) for name, values in zip(HITS, hit, strict=True)),
        ("words.label", phrase[first]),
        ("words.alias", np.maximum.reduceat(phrase[names], begin)),
        ("words.query", asked[query.pool] / np.float32(total)),
    ]


def _gather(matrix: sparse.csc_matrix, columns: Sequence[int], weight: Float32 | None) -> Float32:
    """Return the sum of some columns of a sparse matrix, each times its weight."""
    total = np.zeros(matrix.shape[0], np.float32)
    for column in columns:
        part = slice(matrix.indptr[column], matrix.indptr[column + 1])
        total[matrix.indices[part]] += matrix.data[part] * (1 if weight is None else weight[column])
    return total


def _groups(query: _Query) -> Columns:
    return feedback_groups(query.base_z, query.pool, query.statics)


def feedback_groups(score: Float32, pool: NDArray[np.int64], statics: Statics, *, top: int = 30) -> Columns:
    """Return how much of a ranking's top lies in each skill's groups, itself left out, at every level.

    Parameters
    ----------
    score : float32[k]
        Scores at the pool's positions.
    pool : int64[k]
        Rows of the skills.
    statics : Statics
        For the group membership.
    top : int
        How many of the best make up the picture of the query's domain, weighted by 1 / log2(rank + 1).

    Returns
    -------
    list of (str, float32[k])
        Per level: the weighted share of the top in the skill's groups, and that share over what chance would give.
    """
    order = np.argsort(-score, kind="stable")[:top]
    weight = np.zeros(len(pool))
    weight[order] = 1 / np.log2(np.arange(2, len(order) + 2))
    total = weight.sum()
    entries = statics.groups
    length = entries.start[pool + 1] - entries.start[pool]
    owner = np.repeat(np.arange(len(pool)), length)
    at = np.arange(len(owner)) + np.repeat(entries.start[pool] - np.cumsum(length) + length, length)
    group, share, level = entries.group[at], entries.share[at], entries.level[at]
    # Everything is a sum of entries: into groups of any level, and back into the skills of every level.
    histogram = np.bincount(group, share * weight[owner], entries.width)
    size = np.bincount(group, share, entries.width) + 1
    place = level * len(pool) + owner
    shape = (len(statics.levels), len(pool))
    n = shape[0] * shape[1]
    own = np.bincount(place, share * share, n).reshape(shape)
    near = np.bincount(place, share * histogram[group], n).reshape(shape) - weight * own
    made_share = (near / np.maximum(total - weight, 1e-9)).astype(np.float32)
    chance = np.bincount(place, share * size[group], n).reshape(shape) / len(pool)
    lift = (made_share / np.maximum(chance, 1e-3)).astype(np.float32)
    made: Columns = []
    for number in range(shape[0]):
        made += [(f"group.{number}.share", made_share[number]), (f"group.{number}.lift", lift[number])]
    return made


def _neighbours(query: _Query) -> Columns:
    """Base score of the skill's neighbours in the similarity graph: their mean, and how many stand in the top 100."""
    graph = query.statics.graph
    if graph is None:
        return []
    part = graph.rows(query.pool)
    near = part.dot(query.base)
    in_top = np.zeros(len(query.base), np.float32)
    in_top[query.pool[:100]] = 1
    return [
        ("neighbour.z", near),
        ("neighbour.above", near - query.base_z),
        ("neighbour.top", part.dot(in_top)),
    ]


def _absolute(query: _Query) -> Columns:
    """Return the lanes' scores as they are, which alone tell a text that asks for nothing: its best is poor."""
    return [(f"{ABSOLUTE}.{name}", score) for name, score in zip(query.lanes, query.score, strict=True)]


_MAKERS: Mapping[str, Callable[[_Query], Columns]] = {
    "lanes": _lanes,
    "columns": _columns,
    "aggregates": _aggregates,
    "disagreement": _disagreement,
    "lengths": _lengths,
    "evidence": _evidence,
    "groups": _groups,
    "neighbours": _neighbours,
    "absolute": _absolute,
}
