"""A bag of boosted rankers: several seeds, each standardised within a query, then averaged.

LightGBM trains the members and explains them; scoring them goes through `fusion.forest` and does not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fusion.features import FeatureTable
from fusion.forest import Forest, Ranker
from ranker.core.artifacts import atomic_path, digest
from ranker.core.errors import InputError, ResourceError
from ranker.core.types import Float32

if TYPE_CHECKING:
    import lightgbm

# LightGBM's threads and torch's spin against each other in one process: 100 trees took 0.5 s on one thread and up to
# 97 s on two. Training and prediction are held to one thread each.
THREADS = 1

MEMBER, JUDGE = "member-{:02d}.txt", "judge-{:02d}.txt"
TAUGHT = ("taught.z", "taught.log_rank")

LABEL_GAIN = (0, 1, 3, 7, 15)
LISTWISE = ("lambdarank", "rank_xendcg")
GAIN = "cross_entropy"
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
    "max_bin": 63,
}


# The order by expected gain maximises expected DCG, so a model of the gain (as a share of the greatest) ranks.
EXPECTED_GAIN: Mapping[str, Any] = {
    **{key: value for key, value in LAMBDARANK.items() if key not in {"label_gain", "lambdarank_truncation_level"}},
    "objective": GAIN,
}


# Or one model per grade of the chance that a skill reaches it; the expected gain is the sum of the chances, each times
# the gain it adds (McRank: Li, Burges and Wu, NIPS 2007). A tail of ones and zeros is then not drowned by rare fours.
ORDINAL: tuple[Mapping[str, Any], ...] = tuple({**EXPECTED_GAIN, "least": grade} for grade in (1, 2, 3, 4))


def labels(grades: NDArray[np.int8], objective: str, least: int = 0) -> NDArray[np.float32]:
    """Return what a member learns; unjudged counts as 0.

    Whether the grade reaches `least`, where that is above 0. Else by the objective: the grade itself, or its gain as a
    share of grade 4's.
    """
    known = np.maximum(grades, 0)
    if least:
        return (known >= least).astype(np.float32)
    if objective in LISTWISE:
        return known.astype(np.float32)
    return np.asarray(np.array(LABEL_GAIN, np.float32)[known] / np.float32(LABEL_GAIN[-1]), dtype=np.float32)


class Learner(Protocol):
    """What trains one member: LightGBM's `train`, or a stand-in for it in a test."""

    def __call__(self, params: dict[str, Any], data: Any, rounds: int) -> lightgbm.Booster:
        """Return a trained booster."""


def _train(params: dict[str, Any], data: Any, rounds: int) -> lightgbm.Booster:
    import lightgbm

    return lightgbm.train(params, data, num_boost_round=rounds)


def feature_hash(names: Sequence[str]) -> str:
    """Return a short hash of feature names and their order."""
    return digest(list(names))[:16]


class BagScores(NamedTuple):
    """What a bag says of every pool position.

    Attributes
    ----------
    order : float32[n_queries, k]
        Mean over members of the member's z-score within the query: what a query's skills are ordered by.
    level : float32[n_queries, k]
        The order, with the mean and the deviation that the judges' expected gain has over the query's pool: what
        probabilities are read from. Within a query it never rises where the order falls; between queries it says
        which asks for more. The order itself, where there is no judge.
    """

    order: Float32
    level: Float32


@dataclass(frozen=True)
class Bag:
    """Trained rankers over one list of features.

    Attributes
    ----------
    names : tuple of str
        The features, in the order of the columns.
    members : tuple of str
        Each member as LightGBM's text format.
    judges : tuple of str
        Members that have no say in the order, only in the level: how much the query asks for at all.
    least : tuple of int
        Of each member that orders, the grade whose chance it learned; 0, or nothing at all, for those that learned the
        gain or the order. Members of grades speak with one voice, each other member with its own.
    """

    names: tuple[str, ...]
    members: tuple[str, ...]
    judges: tuple[str, ...] = ()
    least: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.members:
            raise InputError("a bag needs at least one member")
        if self.least and (
            len(self.least) != len(self.members)
            or not {*self.least} <= {0, 1, 2, 3, 4}
            or len({self.least.count(grade) for grade in (1, 2, 3, 4)}) > 1
        ):
            raise InputError(
                f"{len(self.members)} members learned the chances of grades {list(self.least)}; each grade from 1 to 4 "
                "needs as many as the others (--members 4, 8, ...)"
            )
        for number, ranker in enumerate(self._rankers):
            known = {GAIN, *LISTWISE} if number < len(self.members) else {GAIN}
            if ranker.n_features != len(self.names):
                raise InputError(
                    f"member {number} of the bag was trained on {ranker.n_features} features, the manifest names "
                    f"{len(self.names)}; train it anew"
                )
            if ranker.objective not in known:
                raise InputError(
                    f"member {number} of the bag has the objective {ranker.objective}; known: "
                    f"{', '.join(sorted(known))}; train it anew"
                )

    @cached_property
    def _rankers(self) -> tuple[Ranker, ...]:
        return tuple(map(Ranker.parse, (*self.members, *self.judges)))

    @cached_property
    def _forest(self) -> Forest:
        return Forest(self._rankers)

    @cached_property
    def _boosters(self) -> list[lightgbm.Booster]:
        import lightgbm

        return [lightgbm.Booster(model_str=text) for text in self.members]

    def score(self, values: Float32) -> BagScores:
        """Return the bag's scores at every pool position.

        Parameters
        ----------
        values : float32[n_queries, k, n_features]
            Features in the order of `names`.

        Returns
        -------
        BagScores
            Two float32[n_queries, k].
        """
        n, k, width = values.shape
        if width != len(self.names):
            raise InputError(f"{width} features given, the bag was trained on {len(self.names)}")
        if n == 0 or k == 0:
            return BagScores(*np.zeros((2, n, k), np.float32))
        outputs = self._forest.raw(values.reshape(n * k, width)).reshape(-1, n, k)
        members, judges = outputs[: len(self.members)], outputs[len(self.members) :]
        voices, expected = [], np.zeros((n, k))
        for ranker, raw, grade in zip(self._rankers, members, self.least or (0,) * len(members), strict=False):
            if grade:
                expected += (LABEL_GAIN[grade] - LABEL_GAIN[grade - 1]) * _sigmoid(raw)
            else:
                voices.append(standard_rows(_sigmoid(raw) if ranker.objective == GAIN else raw))
        if any(self.least):
            voices.append(standard_rows(expected))
        scores = np.mean(voices, axis=0).astype(np.float32)
        if not len(judges):
            return BagScores(scores, scores)
        gain = _sigmoid(judges).mean(axis=0)
        level = gain.mean(axis=1, keepdims=True) + scores * gain.std(axis=1, keepdims=True)
        return BagScores(scores, level.astype(np.float32))

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
            odds where members learn the expected gain, or of the chances of grades, each of which counts alike here and
            not by its gain) less what the members expect before they see a feature.
        """
        parts = [booster.predict(row[None], pred_contrib=True, num_threads=THREADS) for booster in self._boosters]
        return np.asarray(np.mean(np.concatenate(parts)[:, :-1], axis=0))

    def importance(self) -> dict[str, float]:
        """Return each feature's share of the total gain over the members that order, greatest first."""
        gain = np.sum([ranker.gains() for ranker in self._rankers[: len(self.members)]], axis=0)
        share = gain / max(float(gain.sum()), 1e-12)
        return {self.names[i]: float(share[i]) for i in np.argsort(-share, kind="stable")}

    def save(self, folder: Path) -> None:
        """Write one LightGBM text file per member and judge; files of a larger bag that stood there go."""
        for kind, texts in ((MEMBER, self.members), (JUDGE, self.judges)):
            for number, text in enumerate(texts):
                with atomic_path(folder / kind.format(number)) as path:
                    path.write_text(text, encoding="utf-8")
            for stale in folder.glob(kind.replace("{:02d}", "*")):
                if int(stale.stem.split("-")[1]) >= len(texts):
                    stale.unlink()

    @classmethod
    def load(
        cls, folder: Path, names: Sequence[str], count: int, judges: int = 0, least: Sequence[int] = ()
    ) -> Bag:
        """Read the `count` members and the judges that `save` wrote; `least` as in the bag.

        Raises
        ------
        ResourceError
            If one is not there.
        InputError
            If one is damaged, or no LightGBM model over these features.
        """
        files = [MEMBER.format(i) for i in range(count)] + [JUDGE.format(i) for i in range(judges)]
        for name in files:
            if not (folder / name).is_file():
                raise ResourceError(
                    f"{folder} lacks {name}; its manifest names {count} members and {judges} judges: train it anew"
                )
        texts = tuple((folder / name).read_text(encoding="utf-8") for name in files)
        try:
            return cls(tuple(names), texts[:count], texts[count:], tuple(least))
        except InputError as error:
            raise InputError(f"{folder}: {error}") from error


def with_taught(table: FeatureTable, taught: Bag | None) -> FeatureTable:
    """Return a table and, behind its features, the order that another bag gives the same pool: z-score and log rank.

    Parameters
    ----------
    table : FeatureTable
        Holds the features of the other bag, by their names.
    taught : Bag or None
        None leaves the table as it is.
    """
    if taught is None or not table.values.size:
        return table
    z = taught.score(table.select(taught.names)).order
    rank = np.argsort(np.argsort(-z, axis=1, kind="stable"), axis=1)
    made = np.stack([z, np.log1p(rank.astype(np.float32))], axis=2)
    return FeatureTable((*table.names, *TAUGHT), np.concatenate([table.values, made], axis=2))


def _sigmoid(raw: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-raw)))


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
        LightGBM parameters, dealt to the members in turn; seed and threads are set here. `least` is ours: the grade
        whose chance the member learns.
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
    import lightgbm

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
    members, least = [], []
    for done, seed in enumerate(seeds, start=1):
        chosen = dict(params[(done - 1) % len(params)])
        least.append(chosen.pop("least", 0))
        data.set_label(labels(grades, chosen["objective"], least[-1])[kept])
        members.append(learner({**chosen, **fixed, "seed": int(seed)}, data, rounds).model_to_string())
        if progress is not None:
            progress(done)
    return Bag(tuple(names), tuple(members), least=tuple(least) if any(least) else ())
