"""From a bag's level to probabilities of a grade: isotonic steps or Platt's sigmoid, whichever is better calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, minimize

from ranker.core.errors import InputError
from ranker.core.types import Float32

THRESHOLDS = (2, 3)
"""Grades for which P(grade >= threshold) is given."""

Reals = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Calibration:
    """A monotone map from score to probability.

    Attributes
    ----------
    kind : str
        "isotonic" or "platt".
    scores, probabilities : tuple of float
        Isotonic: the knots, joined by straight lines and flat beyond the ends.
    slope, offset : float
        Platt: 1 / (1 + exp(-(slope * score + offset))).
    """

    kind: str
    scores: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()
    slope: float = 0.0
    offset: float = 0.0

    def __call__(self, scores: Reals) -> Float32:
        """Return the probability of each score, float32 in [0, 1], never falling as the score rises."""
        if self.kind == "platt":
            return _sigmoid(self.slope * np.asarray(scores, np.float64) + self.offset).astype(np.float32)
        return np.interp(scores, self.scores, self.probabilities).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads; plain JSON."""
        if self.kind == "platt":
            return {"kind": self.kind, "slope": self.slope, "offset": self.offset}
        return {"kind": self.kind, "scores": list(self.scores), "probabilities": list(self.probabilities)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Calibration:
        """Read a calibration back.

        Raises
        ------
        InputError
            If it is of no known kind, or not monotone.
        """
        try:
            if value["kind"] == "platt":
                made = cls("platt", slope=float(value["slope"]), offset=float(value["offset"]))
                monotone = made.slope >= 0
            elif value["kind"] == "isotonic":
                made = cls("isotonic", tuple(map(float, value["scores"])), tuple(map(float, value["probabilities"])))
                monotone = (
                    0 < len(made.scores) == len(made.probabilities)
                    and bool(np.all(np.diff(made.scores) > 0))
                    and bool(np.all(np.diff(made.probabilities) >= 0))
                )
            else:
                raise InputError(f"unknown calibration {value['kind']!r}; known: isotonic, platt")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"calibration cannot be read: {error!r}") from error
        if not monotone:
            raise InputError(f"calibration of kind {made.kind} is not monotone; train it anew")
        return made


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def fit_platt(scores: Reals, relevant: NDArray[np.bool_]) -> Calibration:
    """Fit Platt's sigmoid by maximum likelihood, targets smoothed as in Platt (1999), section 2.2."""
    x = np.asarray(scores, np.float64)
    scale = float(x.std()) or 1.0
    x = x / scale
    positive = int(relevant.sum())
    high, low = (positive + 1) / (positive + 2), 1 / (len(x) - positive + 2)
    target = np.where(relevant, high, low)

    def loss(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        slope = np.exp(theta[0])  # a positive slope keeps the map monotone
        z = slope * x + theta[1]
        wrong = _sigmoid(z) - target
        value = np.mean(np.logaddexp(0, z) - target * z)
        return float(value), np.array([np.mean(wrong * x) * slope, np.mean(wrong)])

    best = minimize(loss, np.array([0.0, -2.0]), jac=True, method="L-BFGS-B",
                    bounds=[(-10, 10), (None, None)])  # where one score parts the grades, the slope would grow forever
    return Calibration("platt", slope=float(np.exp(best.x[0])) / scale, offset=float(best.x[1]))


def fit_isotonic(scores: Reals, relevant: NDArray[np.bool_], *, knots: int = 200) -> Calibration:
    """Fit a non-decreasing map by pool-adjacent-violators (Barlow et al. 1972), thinned to at most `knots` knots."""
    x = np.asarray(scores, np.float64)
    value, inverse, weight = np.unique(x, return_inverse=True, return_counts=True)
    mean = np.bincount(inverse, weights=relevant.astype(np.float64)) / weight
    fitted = np.asarray(isotonic_regression(mean, weights=weight.astype(np.float64)).x)
    edge = np.flatnonzero(np.r_[True, np.diff(fitted) > 1e-12])
    stop = np.r_[edge[1:], len(fitted)]
    centre = np.array([np.average(value[a:b], weights=weight[a:b]) for a, b in zip(edge, stop, strict=True)])
    level = fitted[edge]
    if len(centre) > knots:
        keep = np.unique(np.linspace(0, len(centre) - 1, knots).round().astype(int))
        centre, level = centre[keep], level[keep]
    return Calibration("isotonic", tuple(centre.tolist()), tuple(np.clip(level, 0, 1).tolist()))


def reliability(probability: Reals, relevant: NDArray[np.bool_], *, bins: int = 15) -> NDArray[np.float64]:
    """Return float64[bins, 3] over bins of equal width: pairs, sum of their probabilities, how many are relevant."""
    place = np.minimum((np.asarray(probability) * bins).astype(int), bins - 1)
    weights = (None, probability, relevant.astype(np.float64))
    return np.stack([np.bincount(place, weight, bins) for weight in weights], axis=1).astype(np.float64)


def calibration_error(probability: Reals, relevant: NDArray[np.bool_], *, bins: int = 15) -> float:
    """Return the expected calibration error over bins of equal width (Guo et al. 2017, equation 3)."""
    count, said, true = reliability(probability, relevant, bins=bins).T
    return float(np.abs(said - true).sum() / max(int(count.sum()), 1))


class Choice(NamedTuple):
    """The better calibration.

    Attributes
    ----------
    curve : Calibration
        Fitted to everything.
    error : dict of str to float
        Each kind's expected calibration error across folds.
    across_folds : float32[n]
        The better kind's probabilities, each row's from a map that did not see its fold.
    """

    curve: Calibration
    error: dict[str, float]
    across_folds: Float32


def choose_calibration(
    scores: Reals, relevant: NDArray[np.bool_], folds: NDArray[np.integer[Any]]
) -> Choice:
    """Fit both kinds, choose by the calibration error across folds, refit the better one on everything.

    Parameters
    ----------
    scores : float[n]
        Out-of-fold levels.
    relevant : bool[n]
        Whether the grade reaches the threshold.
    folds : int[n]
        The fold of each row's query; a fold's error comes from a map fitted without it.

    Returns
    -------
    Choice
    """
    error: dict[str, float] = {}
    across: dict[str, Float32] = {}
    fitters = {"isotonic": fit_isotonic, "platt": fit_platt}
    for kind, fit in fitters.items():
        across[kind] = np.zeros(len(scores), np.float32)
        for fold in np.unique(folds):
            out = folds == fold
            across[kind][out] = fit(scores[~out], relevant[~out])(scores[out])
        error[kind] = calibration_error(across[kind], relevant)
    best = min(error, key=lambda kind: error[kind])
    return Choice(fitters[best](scores, relevant), error, across[best])


def threshold_table(
    probability: Reals,
    relevant: NDArray[np.bool_],
    n_queries: int,
    *,
    at: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9),
) -> list[dict[str, float]]:
    """Return precision, recall and skills per query where only skills of at least some probability are kept."""
    rows = []
    for least in at:
        kept = np.asarray(probability) >= least
        hits = float((kept & relevant).sum())
        rows.append(
            {
                "min_probability": least,
                "precision": hits / max(float(kept.sum()), 1.0),
                "recall": hits / max(float(relevant.sum()), 1.0),
                "skills_per_query": float(kept.sum()) / max(n_queries, 1),
            }
        )
    return rows
