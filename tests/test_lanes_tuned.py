"""The tuned lane: training on a tiny encoder, and serving what was trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_lanes_contract import toy
from tiny_bert import write_tiny_bert

from lanes.encoder import EncoderPool
from lanes.registry import build_lanes
from lanes.tuned import VIEWS, Tower, group_codes, view_vectors
from ranker.core.config import LaneConfig
from ranker.core.errors import InputError, RankerError, ResourceError
from train.lanes import Graded, Recipe, Trainer, binary, cross_fit, figures

RECIPE = Recipe(first_layer=1, epochs=12, batch=4, negatives=8, head_rate=0.02, layer_rate=1e-3)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    model = str(write_tiny_bert(folder / "model"))
    taxonomy = toy()
    texts = [label.replace("steel", "the steel") for label in taxonomy.label[:24]]
    grades = np.full((24, len(taxonomy)), -1, dtype=np.int8)
    for row in range(24):
        grades[row, :30] = 0
        grades[row, row // 6 * 6 : row // 6 * 6 + 6] = 1
        grades[row, row] = 4
    folds = np.arange(24) % 3
    graded = Graded(tuple(map(str, range(24))), tuple(texts), ("t",) * 24, grades, folds)
    groups = group_codes(taxonomy)
    views = view_vectors(model, EncoderPool(), taxonomy, groups)
    return folder, model, taxonomy, graded, views, groups


def test_training_helps_and_the_lane_serves_what_was_trained(world):
    folder, model, taxonomy, graded, views, groups = world
    trainer = Trainer(graded, views, model, RECIPE, groups)
    rows = np.arange(24)
    untrained = Trainer(graded, views, model, replace(RECIPE, epochs=0), groups).train(rows)
    before = figures(graded, trainer.scores(untrained, rows), rows)
    trained = trainer.train(rows)
    expected = trainer.scores(trained, rows)
    assert figures(graded, expected, rows)["macro"] > before["macro"] + 0.02

    trainer.tower(trained).save(folder / "tower")
    lane = build_lanes([LaneConfig("tuned", "tuned", {"checkpoint": str(folder / "tower")})])["tuned"]
    lane.fit(taxonomy)
    served = lane.score(graded.texts)
    assert np.abs(served - expected).max() < 0.02 * np.ptp(expected)  # float16 on disk
    assert (served == np.concatenate([lane.score([text]) for text in graded.texts])).all()
    encoder, tower = lane.backbones().values()
    assert len(groups) > 1
    assert tower == (16 + 1) * (len(VIEWS) * 16 + len(groups)) + sum(t.size for t in lane.tower.layers.values())
    assert encoder > tower


def test_training_is_deterministic_per_seed(world):
    _, model, _, graded, views, groups = world
    few = replace(RECIPE, epochs=2)
    rows = np.arange(24)

    def scores(seed: int) -> np.ndarray:
        trainer = Trainer(graded, views, model, replace(few, seed=seed), groups)
        return trainer.scores(trainer.train(rows), rows)

    assert (scores(0) == scores(0)).all()
    assert (scores(0) != scores(1)).any()


def test_a_held_out_querys_grades_cannot_change_its_own_scores(world, tmp_path):
    _, model, _, graded, views, groups = world
    few = replace(RECIPE, epochs=2)
    turned = graded.grades.copy()
    turned[graded.folds == 1] = np.where(turned[graded.folds == 1] == 4, 0, 4)
    other = replace(graded, grades=turned)
    results = []
    for i, data in enumerate((graded, other)):
        folder = tmp_path / str(i)
        folder.mkdir()
        results.append(cross_fit(data, Trainer(data, views, model, few, groups), folder))
    same = (results[0] == results[1]).all(axis=1)
    assert same[graded.folds == 1].all()
    assert not same[graded.folds != 1].any()


def test_finished_folds_are_not_trained_again(world, tmp_path, monkeypatch):
    _, model, _, graded, views, groups = world
    trainer = Trainer(graded, views, model, replace(RECIPE, epochs=1), groups)
    first = cross_fit(graded, trainer, tmp_path)
    monkeypatch.setattr(trainer, "train", lambda *_: pytest.fail("trained again"))
    assert (cross_fit(graded, trainer, tmp_path) == first).all()


def test_a_loss_that_is_not_finite_stops_with_advice(world):
    _, model, _, graded, views, groups = world
    broken = [view * np.float32(np.nan) for view in views]
    with pytest.raises(RankerError, match="not finite in epoch 1; lower --layer-rate"):
        Trainer(graded, broken, model, RECIPE, groups).train(np.arange(24))


def test_a_damaged_or_missing_tower_is_named(world, tmp_path):
    _, model, _, graded, views, groups = world
    with pytest.raises(ResourceError, match=r"no tower\.json"):
        Tower.load(tmp_path)
    trainer = Trainer(graded, views, model, replace(RECIPE, epochs=1), groups)
    trainer.tower(trainer.train(np.arange(24))).save(tmp_path / "tower")
    data = bytearray((tmp_path / "tower" / "tower.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "tower" / "tower.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=r"is not the file that tower\.json describes"):
        Tower.load(tmp_path / "tower")


def test_the_binary_control_keeps_gold_and_nothing_else(world):
    *_, graded, _, _ = world
    made = binary(graded).grades
    assert made.dtype == np.int8
    assert ((made == 4) == (graded.grades == 4)).all()
    assert ((made == -1) == (graded.grades == -1)).all()
    assert set(np.unique(made)) == {-1, 0, 4}
