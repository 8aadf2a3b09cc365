"""The forest gives LightGBM's own raw outputs: every shape of tree and row, missing values, damaged texts."""

from __future__ import annotations

import lightgbm
import numpy as np
import pytest

from fusion.forest import BLOCK, Forest, Ranker
from ranker.core.errors import InputError


def booster(*, leaves: int = 15, rounds: int = 12, missing: bool = False, seed: int = 0, **params) -> lightgbm.Booster:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(600, 6)).astype(np.float32)
    x[:, 5] = generator.integers(0, 4, 600)
    if missing:
        x[generator.random(600) < 0.4, 1] = np.nan
    y = np.clip(x[:, 0] * 0.3 + np.nan_to_num(x[:, 1]) * 0.2 + 0.1 * x[:, 5] + 0.4, 0, 1)
    fixed = {"objective": "cross_entropy", "num_leaves": leaves, "min_data_in_leaf": 2, "verbosity": -1,
             "num_threads": 1, "learning_rate": 0.3, "seed": seed}  # fmt: skip
    return lightgbm.train({**fixed, **params}, lightgbm.Dataset(x, label=y), rounds)


def rows(n: int, seed: int = 1) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)
    made[:, 5] = np.round(made[:, 5])
    return made


def raw(models: list[lightgbm.Booster], values: np.ndarray) -> np.ndarray:
    return np.stack([model.predict(values, raw_score=True, num_threads=1) for model in models])


@pytest.mark.parametrize("leaves", [2, 3, 4, 5, 15, 16, 17, 31, 64, 200])
def test_equals_lightgbm_for_trees_of_every_size(leaves: int) -> None:
    models = [booster(leaves=leaves, rounds=7), booster(leaves=leaves, rounds=4, seed=3)]
    forest = Forest([Ranker.parse(model.model_to_string()) for model in models])
    values = rows(300)
    np.testing.assert_allclose(forest.raw(values), raw(models, values), atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, BLOCK, BLOCK + 1])
def test_a_row_does_not_depend_on_its_neighbours(n: int) -> None:
    forest = Forest([Ranker.parse(booster().model_to_string())])
    values = rows(BLOCK + 1)
    np.testing.assert_array_equal(forest.raw(values[:n]), forest.raw(values)[:, :n])


@pytest.mark.parametrize("trained_on_missing", [False, True])
def test_missing_values_go_where_lightgbm_sends_them(trained_on_missing: bool) -> None:
    model = booster(missing=trained_on_missing, leaves=31, rounds=30)
    values = rows(400)
    values[::3, 1] = np.nan
    values[::5] = np.nan
    values[1::7, 0] = np.inf
    forest = Forest([Ranker.parse(model.model_to_string())])
    np.testing.assert_allclose(forest.raw(values), raw([model], values), atol=1e-12)


def test_values_on_a_threshold_go_left_as_in_lightgbm() -> None:
    model = booster(leaves=31, rounds=30)
    near = np.unique(Ranker.parse(model.model_to_string()).threshold.astype(np.float32))
    near = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
    values = np.repeat(near[:, None], 6, axis=1)
    forest = Forest([Ranker.parse(model.model_to_string())])
    np.testing.assert_allclose(forest.raw(values), raw([model], values), atol=1e-12)


def test_a_tree_without_a_question() -> None:
    model = lightgbm.train(
        {"objective": "cross_entropy", "verbosity": -1, "num_threads": 1},
        lightgbm.Dataset(np.zeros((50, 2), np.float32), label=np.full(50, 0.25)), 3,
    )
    values = np.ones((5, 2), np.float32)
    got = Forest([Ranker.parse(model.model_to_string())]).raw(values)
    np.testing.assert_allclose(got, raw([model], values), atol=1e-12)


def test_gains_and_objective_are_lightgbms() -> None:
    model = booster()
    ranker = Ranker.parse(model.model_to_string())
    np.testing.assert_allclose(ranker.gains(), model.feature_importance("gain"), rtol=1e-5)
    assert (ranker.objective, ranker.n_features) == ("cross_entropy", 6)
    grouped = lightgbm.train(
        {"objective": "lambdarank", "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 2},
        lightgbm.Dataset(rows(60), label=np.arange(60) % 3, group=[20, 20, 20]), 2,
    )
    assert Ranker.parse(grouped.model_to_string()).objective == "lambdarank"


def cut(text: str) -> str:
    return text[: len(text) // 2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "the text is cut off"),
        (lambda text: "tree\nnonsense\n", "the text is cut off"),
        (lambda text: "", "the text is cut off"),
        (lambda text: text.replace("Tree=3\n", "Tre=3\n", 1), "11 trees, 12 announced"),
        (lambda text: text.replace("num_tree_per_iteration=1", "num_tree_per_iteration=3"), "several classes"),
        (lambda text: text.replace("leaf_value=", "leaf_value=0.5 ", 1), "different lengths"),
        (lambda text: text.replace("left_child=1", "left_child=99", 1), "do not hang together"),
        (lambda text: text.replace("threshold=", "threshold=x", 1), "could not convert"),
        (lambda text: text.replace("max_feature_idx=5", "max_feature_idx=0"), "a feature or a value that cannot be"),
        (lambda text: text.replace("decision_type=2", "decision_type=6", 1), "zeros as missing"),
        (lambda text: text.replace("objective=", "was=", 1), "objective"),
    ],
)
def test_a_damaged_text_says_what_is_wrong(damage, message: str) -> None:
    text = booster().model_to_string()
    assert damage(text) != text
    with pytest.raises(InputError, match=f"damaged LightGBM model.*{message}"):
        Ranker.parse(damage(text))
