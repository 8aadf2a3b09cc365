"""The feature table: values by hand on a toy taxonomy, independence of the batch, names and switches."""

from __future__ import annotations

import numpy as np
import pytest

from fusion.features import (
    BUCKETS,
    GROUPS,
    PoolInputs,
    build_features,
    build_statics,
    count_above,
    feedback_groups,
    group_levels,
    load_statics,
    stem,
)
from fusion.padded import Padded
from fusion.prior import SkillPrior
from ranker.core.errors import ArgumentError, InputError
from ranker.core.order import zscore
from ranker.core.taxonomy import Skill, Taxonomy


def toy() -> Taxonomy:
    rows = [
        Skill("u/0", "weld metal", ("metal welding", "MIG welding"), "Join metal.", ("S8.1.0",)),
        Skill("u/1", "welding", (), "Heat.", ("S8.1.0", "K0715")),
        Skill("u/2", "program in C++", ("C++",), "Write code.", ("S5.6.1",)),
        Skill("u/3", "write reports", (), "", ("S1.1.0",)),
        Skill("u/4", "speak in public", ("public speaking",), "Talk.", ()),
    ]
    return Taxonomy.from_skills(rows)


def toy_inputs(queries: list[str], k: int = 4, seed: int = 0) -> PoolInputs:
    generator = np.random.default_rng(seed)
    n = len(queries)
    lanes = {name: generator.normal(size=(n, 5)).astype(np.float32) for name in ("dense", "bm25")}
    base = lanes["dense"] + lanes["bm25"]
    pool = np.argsort(-base, axis=1, kind="stable")[:, :k].astype(np.int32)
    column = np.full((n, k), np.nan, np.float32)
    column[:, :2] = [[0.5, 1.5]]
    return PoolInputs(queries, lanes, base, pool, {"encoder": column})


def graph() -> Padded:
    return Padded(np.array([[1], [0], [3], [2], [0]], np.int32), np.ones((5, 1), np.float32), 5)


def value(table, name: str, query: int = 0) -> np.ndarray:
    return table.select([name])[query, :, 0]


def test_lane_columns_by_hand() -> None:
    lane = np.array([[3.0, 1.0, 2.0, 2.0, 0.0]], np.float32)
    pool = np.array([[0, 2, 3, 1]], np.int32)
    table = build_features(PoolInputs(["x"], {"a": lane}, lane, pool), build_statics(toy()), None, ("lanes",))
    assert table.names == ("lane.a.z", "lane.a.log_rank")
    deviation = np.sqrt(((np.array([3, 1, 2, 2, 0]) - 1.6) ** 2).mean())
    np.testing.assert_allclose(table.values[0, :, 0], (np.array([3, 2, 2, 1]) - 1.6) / deviation, rtol=1e-6)
    # Ranks count what is strictly better: the two 2.0 share rank 1.
    np.testing.assert_allclose(table.values[0, :, 1], np.log1p([0, 1, 1, 3]), rtol=1e-6)


def test_column_features_stay_empty_beyond_the_depth() -> None:
    inputs = toy_inputs(["x"])
    table = build_features(inputs, build_statics(toy()), None, ("columns",))
    assert np.isnan(table.values[0, 2:]).all()
    np.testing.assert_allclose(value(table, "column.encoder.z")[:2], [-1, 1], rtol=1e-6)
    np.testing.assert_allclose(value(table, "column.encoder.log_rank")[:2], np.log1p([1, 0]), rtol=1e-6)


def test_evidence_by_hand() -> None:
    lane = np.zeros((1, 5), np.float32)
    pool = np.arange(5, dtype=np.int32)[None]
    inputs = PoolInputs(["MIG welding and C++"], {"a": lane}, lane, pool)
    table = build_features(inputs, build_statics(toy()), None, ("evidence",))
    np.testing.assert_array_equal(value(table, "hit.longest"), [2, 1, 1, 0, 0])
    np.testing.assert_array_equal(value(table, "hit.count"), [1, 1, 1, 0, 0])
    np.testing.assert_array_equal(value(table, "hit.label"), [0, 1, 0, 0, 0])
    np.testing.assert_allclose(value(table, "hit.share"), [0.5, 0.25, 0.25, 0, 0])
    # "welding" lies inside "mig welding", which another skill owns: it is not a hit of its own.
    np.testing.assert_array_equal(value(table, "hit.maximal"), [1, 0, 1, 0, 0])
    np.testing.assert_array_equal(value(table, "hit.exact"), np.zeros(5))
    # "weld metal" holds "weld" (in the text as welding) and "metal" (not in it).
    assert 0 < value(table, "words.label")[0] < 1
    assert value(table, "words.alias")[0] == pytest.approx(1)
    assert value(table, "words.alias")[3] == 0


def test_a_query_that_is_an_alias_is_exact() -> None:
    lane = np.zeros((1, 5), np.float32)
    inputs = PoolInputs(["Public  speaking."], {"a": lane}, lane, np.arange(5, dtype=np.int32)[None])
    table = build_features(inputs, build_statics(toy()), None, ("evidence",))
    np.testing.assert_array_equal(value(table, "hit.exact"), [0, 0, 0, 0, 1])


def test_group_levels_and_feedback_by_hand() -> None:
    levels = group_levels(toy())
    assert [level.width for level in levels] == [4, 4, 4]
    np.testing.assert_allclose([level.weight.sum() for level in levels], [4, 4, 4])
    statics = build_statics(toy())
    made = dict(feedback_groups(np.array([2.0, 1.0, 0.0], np.float32), np.array([0, 2, 1]), statics, top=2))
    # Top: skill 0 with weight 1 and skill 2 with 1 / log2(3). Skill 1 shares half of itself with skill 0's group.
    second = 1 / np.log2(3)
    np.testing.assert_allclose(made["group.2.share"], [0, 0, 0.5 / (1 + second)], atol=1e-6)


def test_neighbour_score_is_the_base_z_of_the_neighbour() -> None:
    lane = np.array([[5.0, 4.0, 3.0, 2.0, 1.0]], np.float32)
    pool = np.array([[0, 1, 2, 3]], np.int32)
    inputs = PoolInputs(["x"], {"a": lane}, lane, pool)
    table = build_features(inputs, build_statics(toy(), graph()), None, ("neighbours",))
    z = zscore(lane[0])
    np.testing.assert_allclose(value(table, "neighbour.z"), z[[1, 0, 3, 2]], rtol=1e-6)


def test_rows_do_not_depend_on_the_batch() -> None:
    queries = ["MIG welding", "write reports in C++", "", "speak in public " * 40, "焊接 🙂 50lbs"]
    inputs, statics = toy_inputs(queries), build_statics(toy(), graph())
    together = build_features(inputs, statics, None)
    for i in range(len(queries)):
        alone = build_features(inputs.rows(np.array([i])), statics, None)
        np.testing.assert_array_equal(alone.values[0], together.values[i])
    backwards = build_features(inputs.rows(np.arange(len(queries))[::-1]), statics, None)
    np.testing.assert_array_equal(backwards.values[::-1], together.values)


def test_groups_can_be_switched_and_keep_their_order() -> None:
    inputs, statics = toy_inputs(["weld metal"]), build_statics(toy(), graph())
    prior = SkillPrior.fit(inputs.pool, np.zeros(inputs.pool.shape, np.int8), statics.levels, statics.graph)
    full = build_features(inputs, statics, prior)
    parts = [build_features(inputs, statics, prior, (group,)) for group in GROUPS]
    assert full.names == tuple(name for part in parts for name in part.names)
    np.testing.assert_array_equal(full.values, np.concatenate([part.values for part in parts], axis=2))
    assert build_features(inputs, statics, prior, GROUPS[::-1]).names == full.names
    assert len(set(full.names)) == len(full.names)


def test_errors_name_both_sides() -> None:
    inputs, statics = toy_inputs(["x"]), build_statics(toy())
    with pytest.raises(ArgumentError, match="unknown feature group magic"):
        build_features(inputs, statics, None, ("magic",))
    with pytest.raises(ArgumentError, match=r"not in the table: lane\.z"):
        build_features(inputs, statics, None, ("lanes",)).select(["lane.z"])
    with pytest.raises(InputError, match=r"lane a has shape \(1, 4\)"):
        PoolInputs(["x"], {"a": np.zeros((1, 4), np.float32)}, inputs.base, inputs.pool)
    wide = np.zeros((1, 6), np.float32)
    with pytest.raises(InputError, match="over 6 skills"):
        build_features(PoolInputs(["x"], {"a": wide}, wide, inputs.pool), statics, None)


def test_no_query_gives_an_empty_table() -> None:
    assert build_features(toy_inputs(["x"]).rows(np.array([], int)), build_statics(toy()), None).values.shape[0] == 0


def test_a_constant_lane_gives_zeros_and_shared_ranks() -> None:
    flat = np.full(5, 0.1, np.float32)
    np.testing.assert_array_equal(zscore(flat), np.zeros(5))
    np.testing.assert_array_equal(count_above(flat, flat), np.zeros(5))


def test_ranks_by_hand_and_against_a_sort() -> None:
    values = np.array([3, -1, 2.5, 2.5, 0, -7], np.float32)
    np.testing.assert_array_equal(count_above(values, values[[0, 2, 3, 4, 1]]), [0, 1, 1, 3, 4])
    generator = np.random.default_rng(0)
    for scores in (generator.normal(size=9000), generator.exponential(size=9000) ** 3, np.arange(9000.0)):
        lane = scores.astype(np.float32)
        at = np.sort(lane)[::-1][: 500]
        exact = np.array([(lane > value).sum() for value in at])
        made = count_above(lane, at)
        assert (made <= exact).all()  # within a step all share the best place
        width = np.ptp(np.append(lane[lane >= at[-1]], at)) / BUCKETS
        assert all((lane > value + 1.01 * width).sum() <= got for value, got in zip(at, made, strict=True))
        assert (np.diff(made) >= 0).all()


@pytest.mark.parametrize("size", [1e-40, 1e-10, 1e10, 1e30])
def test_ranks_do_not_depend_on_the_scale(size: float) -> None:
    values = (np.arange(6) * size).astype(np.float32)
    np.testing.assert_array_equal(count_above(values, values), [5, 4, 3, 2, 1, 0])


@pytest.mark.parametrize(
    ("token", "wanted"),
    [("welding", "weld"), ("welds", "weld"), ("planning", "plan"), ("c++", "c++"), ("node.js", "node.js"), ("is", "is"),
     ("ing", "ing"), ("studies", "stud"), ("use", "use")],
)
def test_stem(token: str, wanted: str) -> None:
    assert stem(token) == wanted


def test_cached_statics_equal_fresh_ones(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path))
    fresh = build_statics(toy())
    for _ in range(2):
        cached = load_statics(toy())
        assert cached.aliases == fresh.aliases
        assert cached.vocabulary == fresh.vocabulary
        assert (cached.phrases != fresh.phrases).nnz == 0
    (file,) = tmp_path.glob("phrases-*.json")
    file.write_text("[broken", encoding="utf-8")
    assert load_statics(toy()).aliases == fresh.aliases


def test_padded_equals_the_sparse_matrix() -> None:
    from scipy import sparse

    matrix = sparse.random(7, 5, density=0.4, random_state=0, format="csr", dtype=np.float32)
    padded, values = Padded.from_sparse(matrix), np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(padded.dot(values), matrix @ values, rtol=1e-6)
    np.testing.assert_allclose(padded.spread(np.arange(7, dtype=np.float32)), matrix.T @ np.arange(7), rtol=1e-5)
    np.testing.assert_allclose(padded.squares(), matrix.multiply(matrix).sum(axis=1).A1, rtol=1e-5)
    sums = padded.normalised().weight.sum(axis=1)
    np.testing.assert_allclose(sums[np.diff(matrix.indptr) > 0], 1, rtol=1e-5)
