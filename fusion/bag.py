"""A bag of boosted rankers: several seeds, each standardised within a query, then averaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import lightgbm
import numpy as np
from numpy.typing import NDArray

from ranker.core.artifacts import atomic_path, digest
from ranker.core.errors import InputError, ResourceError
from ranker.core.types import Float32

# LightGBM's threads and torch's spin against each other in one process: 100 trees took 0.5 s on one thread and up to
# 97 s on two. Training and prediction are held to one thread each.
THREADS = 1

LABEL_GAIN = (0, 1, 3, 7, 15)
LISTWISE = ("lambdarank", "rank_xendcg")
LAMBDARANK: Mapping[str, Any] = {
    "objective": "lambdarank",
    "label_gain": list(LABEL_GAIN),
    "lambdarank_truncation_level": 100,
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 50,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "feature_fraction": 0.8,
    "lambda_l1": 1.0,
    "lambda_l2": 5.0,
}


# The order by expected gain maximises expected DCG, so a model of the gain (as a share of the greatest) ranks.
EXPECTED_GAIN: Mapping[str, Any] = {
    **{key: value for key, value in LAMBDARANK.items() if key not in {"label_gain", "lambdarank_truncation_level"}},
    "objective": "cross_entropy",
}


def labels(grades: NDArray[np.int8], objective: str) -> NDArray[np.float32]:
    """Return what an objective learns: the grade itself, or its gain as a share of grade 4's; unjudged counts as 0."""
    known = np.maximum(grades, 0)
    if objective in LISTWISE:
        return known.astype(np.float32)
    return np.asarray(np.array(LABEL_GAIN, np.float32)[known] / np.float32(LABEL_GAIN[-1]), dtype=np.float32)


class Learner(Protocol):
    """What trains one member: LightGBM's `train`, or a stand-in for it in a test."""

    def __call__(self, params: dict[str, Any], data: Any, rounds: int) -> lightgbm.Booster:
        """Return a trained booster."""


def _train(params: dict[str, Any], data: Any, rounds: int) -> lightgbm.Booster:
    return lightgbm.train(params, data, num_boost_round=rounds)


def feature_hash(names: Sequence[str]) -> str:
    """Return a short hash of feature names and their order."""
    return digest(list(names))[:16]


@dataclass(frozen=True)
class Bag:
    """Trained rankers over one list of features.

    Attributes
    ----------
    names : tuple of str
        The features, in the order of the columns.
    members : tuple of str
        Each member as LightGBM's text format.
    """

    names: tuple[str, ...]
    members: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise InputError("a bag needs at least one member")
        boosters = tuple(lightgbm.Booster(model_str=text) for text in self.members)
        for number, booster in enumerate(boosters):
            if booster.num_feature() != len(self.names):
                raise InputError(
                    f"member {number} of the bag was trained on {booster.num_feature()} features, the manifest names "
                    f"{len(self.names)}; train it anew"
                )
        object.__setattr__(self, "_boosters", boosters)

    def score(self, values: Float32) -> Float32:
        """Return the bag's score at every pool position.

        Parameters
        ----------
        values : float32[n_queries, k, n_features]
            Features in the order of `names`.

        Returns
        -------
        float32[n_queries, k]
            Mean over members of the member's z-score within the query.
        """
        n, k, width = values.shape
        if width != len(self.names):
            raise InputError(f"{width} features given, the bag was trained on {len(self.names)}")
        total = np.zeros((n, k))
        if n == 0 or k == 0:
            return total.astype(np.float32)
        flat = np.ascontiguousarray(values.reshape(n * k, width))
        boosters: tuple[lightgbm.Booster, ...] = self._boosters  # type: ignore[attr-defined]

        def predict(rows: Float32) -> list[NDArray[np.float64]]:
            return [np.asarray(booster.predict(rows, num_threads=THREADS)) for booster in boosters]

        # A row's prediction depends on that row alone, so halves on two Python threads give the same numbers.
        with ThreadPoolExecutor(2) as executor:
            halves = list(executor.map(predict, np.array_split(flat, 2)))
        for parts in zip(*halves, strict=True):
            total += standard_rows(np.concatenate(parts).reshape(n, k))
        return (total / len(boosters)).astype(np.float32)

    def contributions(self, row: Float32) -> NDArray[np.float64]:
        """Return what each feature adds to the bag's raw output for one skill, against the average training row.

        Parameters
        ----------
        row : float32[n_features]
            Features in the order of `names`.

        Returns
        -------
        float64[n_features]
            Mean over members of the Shapley values (LightGBM's pred_contrib; Lundberg et al. 2020, "From local
            explanations to global understanding with explainable AI for trees"). They sum to the mean raw output (log
            odds where members learn the expected gain) less what the members expect before they see a feature.
        """
        boosters: tuple[lightgbm.Booster, ...] = self._boosters  # type: ignore[attr-defined]
        parts = [booster.predict(row[None], pred_contrib=True, num_threads=THREADS) for booster in boosters]
        return np.asarray(np.mean(np.concatenate(parts)[:, :-1], axis=0))

    def importance(self) -> dict[str, float]:
        """Return each feature's share of the total gain over all members, greatest first."""
        boosters: tuple[lightgbm.Booster, ...] = self._boosters  # type: ignore[attr-defined]
        gain = np.sum([booster.feature_importance("gain") for booster in boosters], axis=0)
        share = gain / max(float(gain.sum()), 1e-12)
        return {self.names[i]: float(share[i]) for i in np.argsort(-share, kind="stable")}

    def save(self, folder: Path) -> None:
        """Write one LightGBM text file per member; files of a larger bag that stood there go."""
        for number, text in enumerate(self.members):
            with atomic_path(folder / f"member-{number:02d}.txt") as path:
                path.write_text(text, encoding="utf-8")
        for stale in folder.glob("member-*.txt"):
            if int(stale.stem.split("-")[1]) >= len(self.members):
                stale.unlink()

    @classmethod
    def load(cls, folder: Path, names: Sequence[str], count: int) -> Bag:
        """Read the members that `save` wrote.

        Raises
        ------
        ResourceError
            If one is not there.
        InputError
            If one is not a LightGBM model over these features.
        """
        members = []
        for number in range(count):
            path = folder / f"member-{number:02d}.txt"
            if not path.is_file():
                raise ResourceError(f"{folder} lacks {path.name}; its manifest names {count} members: train it anew")
            members.append(path.read_text(encoding="utf-8"))
        try:
            return cls(tuple(names), tuple(members))
        except lightgbm.basic.LightGBMError as error:
            raise InputError(f"{folder} holds a damaged LightGBM model ({error}); train it anew") from error


def standard_rows(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row less its mean, over its standard deviation; a constant row becomes zeros."""
    centred = scores - scores.mean(axis=1, keepdims=True)
    deviation = centred.std(axis=1, keepdims=True)
    return np.asarray(centred / np.where(deviation < 1e-12, np.inf, deviation))


def train_bag(
    values: Float32,
    grades: NDArray[np.int8],
    names: Sequence[str],
    *,
    params: Sequence[Mapping[str, Any]] = (LAMBDARANK,),
    rounds: int = 300,
    seeds: Sequence[int] = tuple(range(10)),
    weights: Float32 | None = None,
    learner: Learner = _train,
    progress: Callable[[int], None] | None = None,
) -> Bag:
    """Train one ranker per seed.

    Parameters
    ----------
    values : float32[n_queries, k, n_features]
        Features, NaN where a column has none.
    grades : int8[n_queries, k]
        0 to 4; -1 (unjudged) is learned as 0.
    names : sequence of str
        One name per feature.
    params : sequence of mapping
        LightGBM parameters, dealt to the members in turn; seed and threads are set here.
    rounds : int
        Trees per member.
    seeds : sequence of int
        One member each.
    weights : float32[n_queries, k], optional
        Weight of each row; rows of weight 0 are left out.
    learner : callable
        Trains a member.
    progress : callable, optional
        Called with the number of members done.

    Returns
    -------
    Bag
        The trained members.
    """
    n, k, width = values.shape
    if grades.shape != (n, k) or width != len(names):
        raise InputError(f"features {values.shape}, grades {grades.shape} and {len(names)} names do not fit together")
    fixed = {"num_threads": THREADS, "verbosity": -1, "deterministic": True, "force_row_wise": True}
    kept = np.ones((n, k), dtype=bool) if weights is None else weights > 0
    data = lightgbm.Dataset(
        values[kept],
        label=labels(grades, "lambdarank")[kept],
        group=[size for size in kept.sum(axis=1).tolist() if size],
        weight=None if weights is None else weights[kept],
        feature_name=[f"f{i}" for i in range(width)],  # the names are the manifest's: LightGBM's allow no signs
        free_raw_data=False,
        params={**fixed, **{key: value for key, value in params[0].items() if key == "max_bin"}},
    ).construct()
    members = []
    for done, seed in enumerate(seeds, start=1):
        chosen = params[(done - 1) % len(params)]
        data.set_label(labels(grades, chosen["objective"])[kept])
        members.append(learner({**chosen, **fixed, "seed": int(seed)}, data, rounds).model_to_string())
        if progress is not None:
            progress(done)
    return Bag(tuple(names), tuple(members))
