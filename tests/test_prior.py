"""The prior: counts by hand, leave-one-out by hand, groups and neighbours, and what it must not know."""

from __future__ import annotations

import numpy as np
import pytest

from fusion.padded import Padded
from fusion.prior import SkillPrior, outcomes
from ranker.core.errors import InputError, ResourceError

POOL = np.array([[0, 1, 2], [0, 2, 3]], np.int32)
GRADES = np.array([[4, 2, 0], [3, -1, 1]], np.int8)
# Skills 0 and 1 share a group, 2 and 4 share one, 3 has none.
LEVELS = (Padded(np.array([[0], [0], [1], [0], [1]], np.int32), np.array([[1], [1], [1], [0], [1]], np.float32), 2),)
GRAPH = Padded(np.array([[1, 2], [0, 2], [0, 1], [2, 0], [2, 3]], np.int32), np.full((5, 2), 0.5, np.float32), 5)


def fitted() -> SkillPrior:
    return SkillPrior.fit(POOL, GRADES, LEVELS, GRAPH)


def column(prior: SkillPrior, name: str, pool: list[int], own: list[int] | None = None) -> np.ndarray:
    given = None if own is None else np.array(own, np.int8)
    return dict(prior.columns(np.array(pool), given))[name]


def test_counts_by_hand() -> None:
    np.testing.assert_allclose(fitted().counts[:, 0], [2, 1, 1, 1, 0])  # the unjudged one does not count
    np.testing.assert_allclose(fitted().counts[:, 1], [2, 1, 0, 0, 0])
    np.testing.assert_allclose(fitted().counts[:, 2], [2, 0, 0, 0, 0])
    np.testing.assert_allclose(fitted().counts[:, 3], [(15 + 7) / 15, 3 / 15, 0, 1 / 15, 0], rtol=1e-6)


def test_outcomes_of_every_grade() -> None:
    made = outcomes(np.array([-1, 0, 1, 2, 3, 4], np.int8))
    np.testing.assert_allclose(made[:, 3] * 15, [0, 0, 1, 3, 7, 15], rtol=1e-6)
    assert made[0].tolist() == [0, 0, 0, 0]


def test_rates_by_hand() -> None:
    np.testing.assert_allclose(column(fitted(), "prior.skill.relevant", [0, 4]), [3 / 6, 1 / 4])
    np.testing.assert_allclose(column(fitted(), "prior.skill.high", [0, 4]), [2.5 / 10, 0.5 / 8])
    np.testing.assert_allclose(column(fitted(), "prior.skill.seen", [0, 4]), np.log1p([2, 0]), rtol=1e-6)


def test_leave_one_out_equals_a_prior_that_never_saw_the_query() -> None:
    with_all, without_first = fitted(), SkillPrior.fit(POOL[1:], GRADES[1:], LEVELS, GRAPH)
    left_out = with_all.columns(POOL[0], GRADES[0])
    never_seen = without_first.columns(POOL[0])
    assert [name for name, _ in left_out] == [name for name, _ in never_seen]
    for (name, given), (_, wanted) in zip(left_out, never_seen, strict=True):
        np.testing.assert_allclose(given, wanted, atol=1e-6, err_msg=name)


def test_the_group_reaches_a_skill_that_no_query_saw() -> None:
    # Skill 1's group holds skill 0 as well (seen twice, relevant twice); its own count is not in the group's.
    np.testing.assert_allclose(column(fitted(), "prior.group0.relevant", [1]), [(2 + 1) / (2 + 4)], rtol=1e-6)
    np.testing.assert_allclose(column(fitted(), "prior.group0.seen", [3, 4]), np.log1p([0, 1]), rtol=1e-6)


def test_neighbours_carry_their_counts() -> None:
    # Skill 3's neighbours are 2 (one judgement, not relevant) and 0 (two, both relevant), half each, times ten.
    wanted = (10 * 1.0 + 1) / (10 * 1.5 + 4)
    assert column(fitted(), "prior.near.relevant", [3])[0] == pytest.approx(wanted, rel=1e-6)


def test_without_a_graph_there_are_no_neighbour_columns() -> None:
    names = [name for name, _ in SkillPrior.fit(POOL, GRADES, LEVELS).columns(POOL[0])]
    assert names
    assert not any("near" in name for name in names)


def test_save_and_load(tmp_path) -> None:
    prior = fitted()
    prior.save(tmp_path / "a.npz")
    prior.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    graph = SkillPrior.read_graph(tmp_path / "a.npz")
    back = SkillPrior.load(tmp_path / "a.npz", LEVELS, graph)
    for (name, given), (_, wanted) in zip(back.columns(POOL[0]), prior.columns(POOL[0]), strict=True):
        np.testing.assert_array_equal(given, wanted, err_msg=name)


def test_loading_says_what_is_wrong(tmp_path) -> None:
    with pytest.raises(ResourceError, match=r"no p\.npz"):
        SkillPrior.load(tmp_path / "p.npz", LEVELS)
    fitted().save(tmp_path / "p.npz")
    short = (Padded(LEVELS[0].index[:4], LEVELS[0].weight[:4], 2),)
    with pytest.raises(InputError, match=r"\(5, 4\), expected \(4, 4\)"):
        SkillPrior.load(tmp_path / "p.npz", short)
    (tmp_path / "p.npz").write_bytes(b"PK nonsense")
    with pytest.raises(InputError, match="damaged"):
        SkillPrior.load(tmp_path / "p.npz", LEVELS)
