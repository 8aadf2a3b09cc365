"""Train the gate: does a text ask for any skill? Graded texts and helpers against texts that ask for none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from fusion.gate import LEVELS, Gate, levels
from ranker.core.types import Float32
from train.crossval import NEGATIVE_SHARE, NEGATIVE_TASK, GradedPool

PENALTY = 0.1  # of the squared weights, beside the sum of the losses
SPOKEN = 0.5  # probability from which a text, or a skill of it, counts as said


@dataclass(frozen=True)
class Readings:
    """What a gate reads of every text of a pool, and of texts behind those that only ever train it.

    Attributes
    ----------
    lanes : tuple of str
        The lanes that no training saw: out-of-fold scores have the scale of their fold.
    levels : float32[n_queries, n_lanes * LEVELS]
        Their levels.
    dense : str
        The dense lane, "" for none.
    basis : float32[n_skills, width]
        Takes its scores to the text's embedding.
    points : float32[n_queries, width]
        The embeddings.
    """

    lanes: tuple[str, ...]
    levels: Float32
    dense: str
    basis: Float32
    points: Float32

    @classmethod
    def of(cls, pool: GradedPool, dense: str, vectors: Float32) -> Readings:
        """Read a pool.

        Parameters
        ----------
        pool : GradedPool
            The texts, those that ask for no skill among them.
        dense : str
            A lane whose scores are products with `vectors`; "" for none.
        vectors : float32[n_skills, width]
            The lane's embeddings of the skills; width 0 for none.
        """
        scores = {name: lane for name, lane in pool.inputs.lanes.items() if name not in pool.trained}
        wide = vectors.astype(np.float64)
        # The least-squares answer to scores = vectors @ embedding; some encoders leave directions unused.
        basis = (wide @ np.linalg.pinv(wide.T @ wide, rcond=1e-6, hermitian=True)).astype(np.float32)
        points = scores[dense] @ basis if dense else np.zeros((len(pool.tasks), 0), np.float32)
        return cls(tuple(scores), np.concatenate([levels(pool.inputs, name) for name in scores], axis=1), dense, basis,
                   points)

    def rows(self, rows: NDArray[np.intp]) -> Readings:
        """Return some of the texts."""
        return replace(self, levels=self.levels[rows], points=self.points[rows])

    def fit(self, asks: NDArray[np.bool_], rows: NDArray[np.intp]) -> Gate:
        """Train a gate on some texts.

        Parameters
        ----------
        asks : bool[n_pool]
            Whether a text of the pool asks for a skill; those behind it do. Those that do not weigh `NEGATIVE_SHARE` of
            the others together, as for the judge.
        rows : intp[n]
            The training texts of the pool, some of either kind.
        """
        behind = np.arange(len(asks), len(self.levels))
        rows, asks = np.concatenate([rows, behind]), np.concatenate([asks, np.ones(len(behind), bool)])
        mean, deviation = self.levels[rows].mean(axis=0), self.levels[rows].std(axis=0)
        # Levels and embedding have a length of about 1 each, so that one penalty serves both.
        scale = np.float64(self.levels.shape[1]) ** -0.5 / np.where(deviation < 1e-9, np.inf, deviation)
        values = np.concatenate([(self.levels[rows] - mean) * scale, self.points[rows]], axis=1)
        wanted = asks[rows]
        weight = np.where(wanted, 1.0, NEGATIVE_SHARE * wanted.sum() / (~wanted).sum())
        model = LogisticRegression(C=1 / PENALTY, max_iter=10_000).fit(values, wanted, sample_weight=weight)
        split = self.levels.shape[1]
        weights = model.coef_[0, :split] * scale
        direction = self.basis @ model.coef_[0, split:] if self.dense else np.empty(0)
        return Gate(
            lanes=self.lanes,
            weights=weights.reshape(-1, LEVELS),
            offset=float(model.intercept_[0] - weights @ mean),
            dense=self.dense,
            direction=direction.astype(np.float32),
        )


def cross_fit(pool: GradedPool, readings: Readings, folds: NDArray[np.intp]) -> Float32:
    """Return float32[n_queries]: each text's probability by a gate of the other folds; NaN for texts in no fold."""
    asks = ~pool.of_task(NEGATIVE_TASK)
    made = np.full(len(folds), np.nan, np.float32)
    for fold in sorted(set(folds.tolist()) - {-1}):
        held = np.flatnonzero(folds == fold)
        made[held] = readings.fit(asks, np.flatnonzero(folds != fold))(pool.inputs.rows(held))
    return made


def gate_figures(
    asks: NDArray[np.bool_], opened: Float32, best: Float32, gated: Float32
) -> dict[str, Any]:
    """Say what a gate does.

    Parameters
    ----------
    asks : bool[n]
        Whether a text asks for a skill.
    opened : float32[n]
        The gate's probability, out of fold.
    best, gated : float32[n]
        Probability of the text's best skill, without the gate and with it.

    Returns
    -------
    dict
        Area under the ROC curve; of the texts that ask for nothing, the share that the gate lets through and those that
        are given a skill; of the graded queries, the share that it holds back, and those that have a skill.
    """

    def share(what: NDArray[np.bool_], where: NDArray[np.bool_]) -> float:
        return float(what[where].mean())

    return {
        "auc": float(roc_auc_score(asks, opened)),
        "without_a_skill": {
            "let_through": share(opened >= SPOKEN, ~asks),
            "spoken_ungated": share(best >= SPOKEN, ~asks),
            "spoken": share(gated >= SPOKEN, ~asks),
        },
        "graded": {
            "held_back": share(opened < SPOKEN, asks),
            "spoken_ungated": share(best >= SPOKEN, asks),
            "spoken": share(gated >= SPOKEN, asks),
        },
    }
