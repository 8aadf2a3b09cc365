"""The bag and the model around it: order of features and groups, refusals, byte-stable files, torch in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import lightgbm
import numpy as np
import pytest

from fusion.bag import (
    EXPECTED_GAIN,
    LAMBDARANK,
    ORDINAL,
    Bag,
    feature_hash,
    labels,
    standard_rows,
    train_bag,
    with_taught,
)
from fusion.calibration import Calibration
from fusion.features import PoolInputs, build_features, build_statics
from fusion.model import FusionModel
from fusion.override import apply_override, exact_names
from fusion.prior import SkillPrior
from ranker.core.errors import InputError, RankerError, ResourceError
from ranker.core.taxonomy import Skill, Taxonomy

SMALL = {"min_data_in_leaf": 5, "num_leaves": 4}


def world(n: int = 12, seed: int = 0) -> tuple[Taxonomy, PoolInputs, np.ndarray]:
    taxonomy = Taxonomy.from_skills(
        [Skill(f"u/{i:02d}", f"skill number {i}", (f"alias {i}",), "Text.", (f"S1.{i % 3}.0",)) for i in range(20)]
    )
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=(n, 20))
    lanes = {
        name: (truth + noise * generator.normal(size=truth.shape)).astype(np.float32)
        for name, noise in (("good", 0.3), ("bad", 3))
    }
    pool = np.tile(np.arange(15, dtype=np.int32), (n, 1))
    grades = np.clip(np.digitize(truth[:, :15], [-0.5, 0.5, 1, 1.5]), 0, 4).astype(np.int8)
    return taxonomy, PoolInputs([f"query {i}" for i in range(n)], lanes, lanes["good"] + lanes["bad"], pool), grades


def model(**changes) -> tuple[Taxonomy, PoolInputs, np.ndarray, FusionModel]:
    taxonomy, inputs, grades = world()
    statics = build_statics(taxonomy)
    prior = SkillPrior.fit(inputs.pool, grades, statics.levels)
    table = build_features(inputs, statics, prior, own=grades)
    params = [{**EXPECTED_GAIN, **SMALL}, {**LAMBDARANK, **SMALL}]
    bag = train_bag(table.values, grades, table.names, params=params, rounds=5, seeds=(0, 1))
    judge = train_bag(table.values, grades, table.names, params=params[:1], rounds=5, seeds=(2,))
    bag = Bag(bag.names, bag.members, judge.members)
    curves = {2: Calibration("platt", slope=1.0, offset=-1.0), 3: Calibration("platt", slope=1.0, offset=-2.0)}
    given = {"groups": ("lanes",), "override": False, **changes}
    given["groups"] = tuple(dict.fromkeys(name for name in _groups()))
    return taxonomy, inputs, grades, FusionModel(statics, bag, prior, curves, config_digest="abc", **given)


def _groups() -> tuple[str, ...]:
    from fusion.features import GROUPS

    return GROUPS


class Recorder:
    """A learner that keeps what it is given, then trains one tree."""

    def __init__(self) -> None:
        self.calls: list[dict] = []

    def __call__(self, params, data, rounds):
        self.calls.append(
            {"params": params, "label": data.get_label().copy(), "group": data.get_group().copy(),
             "data": np.asarray(data.get_data()).copy(), "rounds": rounds}
        )
        return lightgbm.train(params, data, num_boost_round=1)


def test_rows_groups_and_labels_reach_the_learner_in_order() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(4, 10, 3)).astype(np.float32)
    grades = generator.integers(-1, 5, size=(4, 10)).astype(np.int8)
    learner = Recorder()
    params = [{**LAMBDARANK, **SMALL}, {**EXPECTED_GAIN, **SMALL}]
    train_bag(values, grades, ["a", "b", "c"], params=params, rounds=7, seeds=(5, 6), learner=learner)
    first, second = learner.calls
    assert first["group"].tolist() == [10] * 4
    np.testing.assert_array_equal(first["data"], values.reshape(40, 3))
    np.testing.assert_array_equal(first["label"], np.maximum(grades, 0).ravel())
    np.testing.assert_allclose(second["label"] * 15, 2.0 ** np.maximum(grades, 0).ravel() - 1, rtol=1e-6)
    assert [call["params"]["seed"] for call in learner.calls] == [5, 6]
    assert {call["params"]["num_threads"] for call in learner.calls} == {1}
    assert first["params"]["label_gain"] == [0, 1, 3, 7, 15]
    assert first["params"]["lambdarank_truncation_level"] == 100
    assert first["rounds"] == 7


def test_labels_of_each_objective() -> None:
    grades = np.array([-1, 0, 1, 2, 3, 4], np.int8)
    assert labels(grades, "lambdarank").tolist() == [0, 0, 1, 2, 3, 4]
    np.testing.assert_allclose(labels(grades, "cross_entropy") * 15, [0, 0, 1, 3, 7, 15], rtol=1e-6)
    assert labels(grades, "cross_entropy", 2).tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("params", [LAMBDARANK, EXPECTED_GAIN])
def test_a_bag_learns_to_rank(params) -> None:
    _, inputs, grades = world(40)
    values = np.stack([inputs.lanes["bad"][:, :15], inputs.lanes["good"][:, :15]], axis=2)
    bag = train_bag(values, grades, ["bad", "good"], params=[{**params, **SMALL}], rounds=30, seeds=(0, 1))
    scores = bag.score(values).order
    assert np.mean([np.corrcoef(s, g)[0, 1] for s, g in zip(scores, grades, strict=True)]) > 0.8
    assert next(iter(bag.importance())) == "good"
    assert sum(bag.importance().values()) == pytest.approx(1)


def test_score_is_the_mean_of_the_members_z_scores() -> None:
    _, inputs, _, made = model()
    table = build_features(inputs, made.statics, made.prior)
    parts = [Bag(made.bag.names, (text,)).score(table.values).order for text in made.bag.members]
    np.testing.assert_allclose(made.bag.score(table.values).order, np.mean(parts, axis=0), atol=1e-6)
    np.testing.assert_allclose(parts[0].mean(axis=1), 0, atol=1e-5)


def test_chances_of_grades_add_up_to_the_expected_gain_and_speak_with_one_voice() -> None:
    _, inputs, grades = world(40)
    values = np.stack([inputs.lanes["bad"][:, :15], inputs.lanes["good"][:, :15]], axis=2)
    small = [{**params, **SMALL} for params in ORDINAL]
    bag = train_bag(values, grades, ["bad", "good"], params=small, rounds=20, seeds=(0, 1, 2, 3))
    assert bag.least == (1, 2, 3, 4)
    chances = np.stack([lightgbm.Booster(model_str=text).predict(values.reshape(-1, 2)) for text in bag.members])
    shares = [float((grades >= grade).mean()) for grade in (1, 2, 3, 4)]
    assert chances.mean(axis=1).tolist() == pytest.approx(shares, abs=0.03)
    gain = (chances * np.array([[1], [2], [4], [8]])).sum(axis=0).reshape(grades.shape)
    np.testing.assert_allclose(bag.score(values).order, standard_rows(gain), atol=1e-5)
    plain = train_bag(values, grades, ["bad", "good"], params=[{**EXPECTED_GAIN, **SMALL}], rounds=20, seeds=(9,))
    both = Bag(bag.names, (*plain.members, *bag.members, *plain.members), least=(0, *bag.least, 0))
    wanted = (2 * plain.score(values).order + standard_rows(gain)) / 3
    np.testing.assert_allclose(both.score(values).order, wanted, atol=1e-5)
    with pytest.raises(InputError, match=r"chances of grades \[1, 2, 3\]; each grade from 1 to 4"):
        Bag(bag.names, bag.members[:3], least=(1, 2, 3))


def test_the_level_is_the_order_on_the_scale_of_the_judges_expected_gain() -> None:
    _, inputs, _, made = model()
    values = build_features(inputs, made.statics, made.prior).values
    judge = made.bag.judges[0]
    gain = lightgbm.Booster(model_str=judge).predict(values.reshape(-1, values.shape[2])).reshape(values.shape[:2])
    scores = made.bag.score(values)
    wanted = gain.mean(axis=1, keepdims=True) + scores.order * gain.std(axis=1, keepdims=True)
    np.testing.assert_allclose(scores.level, wanted, rtol=1e-4, atol=1e-6)
    alone = Bag(made.bag.names, made.bag.members).score(values)
    np.testing.assert_array_equal(alone.order, scores.order)
    np.testing.assert_array_equal(alone.level, alone.order)  # where there is no judge
    with pytest.raises(InputError, match="objective lambdarank; known: cross_entropy"):
        Bag(made.bag.names, made.bag.members, (made.bag.members[1],))


def test_probabilities_never_fall_as_the_level_rises_over_all_queries() -> None:
    _, inputs, _, made = model()
    level = made.bag.score(build_features(inputs, made.statics, made.prior).values).level.ravel()
    for probability in made.score(inputs).probabilities.values():
        assert (np.diff(probability.ravel()[np.argsort(level, kind="stable")]) >= 0).all()
        assert len(np.unique(probability)) > 1


def test_probabilities_never_rise_down_a_ranking() -> None:
    _, inputs, _, made = model()
    fused = made.score(inputs)
    for score, *probabilities in zip(fused.scores, *fused.probabilities.values(), strict=True):
        for probability in probabilities:
            assert (np.diff(probability[np.argsort(-score, kind="stable")]) <= 0).all()


def test_scoring_does_not_import_lightgbm(tmp_path) -> None:
    _, inputs, _, made = model()
    made.bag.save(tmp_path)
    values = build_features(inputs, made.statics, made.prior).values
    np.save(tmp_path / "values.npy", values)
    code = f"""
import sys, numpy as np
from pathlib import Path
import fusion.model
from fusion.bag import Bag
folder = Path({str(tmp_path)!r})
bag = Bag.load(folder, [str(i) for i in range({values.shape[2]})], 2, 1)
np.save(folder / "order.npy", bag.score(np.load(folder / "values.npy")).order)
assert not {{"lightgbm", "sklearn", "pandas"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "order.npy"), made.bag.score(values).order)


def test_a_bag_of_the_first_format_reads_its_probabilities_from_the_order(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    taxonomy, inputs, _, made = model()
    made.save(tmp_path / "m")
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert manifest["format"] == 2
    (tmp_path / "m" / "manifest.json").write_text(json.dumps(manifest | {"format": 1}))
    old = FusionModel.load(tmp_path / "m", taxonomy=taxonomy, config_digest="abc")
    fused = old.score(inputs)
    assert not old.bag.judges
    np.testing.assert_array_equal(fused.probabilities[2], made.calibrations[2](fused.scores))
    old.save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "manifest.json").read_text())["format"] == 1


def test_a_constant_row_becomes_zeros() -> None:
    np.testing.assert_array_equal(standard_rows(np.full((2, 3), 0.7)), np.zeros((2, 3)))


def test_scores_do_not_depend_on_the_batch() -> None:
    _, inputs, _, made = model()
    together = made.score(inputs)
    alone = made.score(inputs.rows(np.array([3])))
    np.testing.assert_array_equal(alone.scores[0], together.scores[3])
    np.testing.assert_array_equal(alone.probabilities[2][0], together.probabilities[2][3])


def test_save_and_load_is_byte_stable(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    taxonomy, inputs, _, made = model()
    made.save(tmp_path / "a")
    back = FusionModel.load(tmp_path / "a", taxonomy=taxonomy, config_digest="abc")
    back.save(tmp_path / "b")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["calibration.json", "judge-00.txt", "manifest.json", "member-00.txt", "member-01.txt", "prior.npz"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    np.testing.assert_array_equal(back.score(inputs).scores, made.score(inputs).scores)
    assert not list(tmp_path.rglob("*.pkl"))


def test_a_taught_bag_is_saved_with_the_model_and_its_order_read_by_the_other(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    taxonomy, inputs, grades, made = model()
    plain = build_features(inputs, made.statics, None, ("lanes",))
    params = [{**EXPECTED_GAIN, **SMALL}]
    taught = train_bag(plain.values, grades, plain.names, params=params, rounds=5, seeds=(7,))
    table = with_taught(build_features(inputs, made.statics, made.prior), taught)
    bag = train_bag(table.values, grades, table.names, params=params, rounds=5, seeds=(0,))
    bag = replace(bag, members=bag.members * 4, least=(1, 2, 3, 4))
    both = replace(made, bag=bag, taught=taught)
    both.save(tmp_path / "m")
    back = FusionModel.load(tmp_path / "m", taxonomy=taxonomy, config_digest="abc")
    assert (back.taught, back.bag) == (taught, bag)
    np.testing.assert_array_equal(back.score(inputs).scores, bag.score(table.values).order)
    np.testing.assert_array_equal(both.score(inputs.rows(np.array([3]))).scores[0], both.score(inputs).scores[3])
    assert both.contributions(inputs, 0)
    with pytest.raises(InputError, match=r"the table lacks \['taught.z', 'taught.log_rank'\]"):
        replace(both, taught=None).score(inputs)
    (tmp_path / "m" / "taught" / "member-00.txt").unlink()
    with pytest.raises(ResourceError, match=r"lacks member-00\.txt"):
        FusionModel.load(tmp_path / "m", taxonomy=taxonomy, config_digest="abc")


def test_a_smaller_bag_leaves_no_old_member_behind(tmp_path) -> None:
    _, _, _, made = model()
    made.bag.save(tmp_path)
    Bag(made.bag.names, made.bag.members[:1]).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["member-00.txt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": "permute"}, "feature hash"),
        ({"taxonomy": "other"}, "trained with taxonomy other, here it is"),
        ({"config_digest": "xyz"}, "trained with config digest xyz, here it is abc"),
        ({"format": 99}, "format 99; known: 1, 2, 3"),
        ({"members": 3}, "lacks member-02"),
        ({"judges": 2}, "lacks judge-01"),
    ],
)
def test_a_bag_of_something_else_is_refused(tmp_path, change: dict, message: str) -> None:
    taxonomy, _, _, made = model()
    made.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    if change.get("features") == "permute":
        change = {"features": manifest["features"][::-1]}
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(RankerError, match=message):
        FusionModel.load(tmp_path, taxonomy=taxonomy, config_digest="abc")


def test_a_permuted_feature_list_is_refused_even_with_its_own_hash(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    taxonomy, inputs, _, made = model()
    made.save(tmp_path / "m")
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    names = manifest["features"][::-1]
    manifest |= {"features": names, "feature_hash": feature_hash(names)}
    (tmp_path / "m" / "manifest.json").write_text(json.dumps(manifest))
    loaded = FusionModel.load(tmp_path / "m", taxonomy=taxonomy, config_digest="abc")
    with pytest.raises(InputError, match="their order differs"):
        loaded.score(inputs)


def test_a_missing_lane_is_named() -> None:
    _, inputs, _, made = model()
    fewer = PoolInputs(inputs.queries, {"good": inputs.lanes["good"]}, inputs.base, inputs.pool)
    with pytest.raises(InputError, match=r"the table lacks \['lane\.bad\.z'"):
        made.score(fewer)


def test_a_folder_that_is_not_there_names_those_beside_it(tmp_path) -> None:
    taxonomy, _, _, made = model()
    for name in ("small", "large"):
        made.save(tmp_path / name)
    with pytest.raises(ResourceError, match=r"no trained bag nope in .*; there are: large, small; or run"):
        FusionModel.load(tmp_path / "nope", taxonomy=taxonomy, config_digest="abc")


def test_damaged_files_are_named(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    taxonomy, _, _, made = model()
    folder = tmp_path / "m"
    with pytest.raises(ResourceError, match=r"no manifest\.json"):
        FusionModel.load(folder, taxonomy=taxonomy, config_digest="abc")
    made.save(folder)
    (folder / "member-01.txt").write_text("tree\nnonsense\n")
    capfd.readouterr()
    with pytest.raises(InputError, match="damaged LightGBM model"):
        FusionModel.load(folder, taxonomy=taxonomy, config_digest="abc")
    assert capfd.readouterr() == ("", "")  # LightGBM itself would print a line of its own
    (folder / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        FusionModel.load(folder, taxonomy=taxonomy, config_digest="abc")


def test_override_lifts_named_skills_and_keeps_the_rest() -> None:
    scores = np.array([[3.0, 2.0, 1.0]], np.float32)
    np.testing.assert_array_equal(np.argsort(-apply_override(scores, np.array([[0, 0, 1]], np.float32))), [[2, 0, 1]])
    np.testing.assert_array_equal(apply_override(scores, np.zeros((1, 3), np.float32)), scores)
    taxonomy, inputs, _ = world()
    named = PoolInputs(["Alias 7", *inputs.queries[1:]], inputs.lanes, inputs.base, inputs.pool)
    exact = exact_names(build_features(named, build_statics(taxonomy), None, ("evidence",)))
    assert np.argwhere(exact).tolist() == [[0, 7]]


def test_no_query_and_no_crash() -> None:
    _, inputs, _, made = model()
    fused = made.score(inputs.rows(np.array([], int)))
    assert fused.scores.shape == (0, 15)
    assert {grade: p.shape for grade, p in fused.probabilities.items()} == {2: (0, 15), 3: (0, 15)}


def test_contributions_sum_to_the_raw_outputs() -> None:
    _, inputs, _, made = model()
    values = build_features(inputs, made.statics, made.prior, made.groups).values[0]
    boosters = [lightgbm.Booster(model_str=text) for text in made.bag.members]
    raw = np.mean([booster.predict(values, raw_score=True) for booster in boosters], axis=0)
    expected = np.mean([booster.predict(values[:1], pred_contrib=True)[0, -1] for booster in boosters])
    for position in (0, 3, 14):
        added = made.bag.contributions(values[position])
        assert added.shape == (len(made.bag.names),)
        assert added.sum() == pytest.approx(raw[position] - expected)
        named = made.contributions(inputs, position)
        assert list(map(abs, named.values())) == sorted(map(abs, named.values()), reverse=True)
        assert named == {name: value for name, value in zip(made.bag.names, added, strict=True) if value}


def test_torch_in_the_same_process() -> None:
    code = """
import torch, numpy as np
from fusion.bag import EXPECTED_GAIN, train_bag
torch.set_num_threads(2)
a = torch.randn(400, 400); (a @ a).sum().item()
x = np.random.default_rng(0).normal(size=(5, 50, 4)).astype(np.float32)
g = np.random.default_rng(1).integers(0, 5, size=(5, 50)).astype(np.int8)
bag = train_bag(x, g, list("abcd"), params=[EXPECTED_GAIN], rounds=20, seeds=(0, 1))
for _ in range(5):
    (a @ a).sum().item(); s = bag.score(x).order
assert np.isfinite(s).all()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
