"""Whether a text asks for any skill: a logistic model of how high the lanes stand, and of where the text points.

A dense lane's scores are the products of the text's embedding with those of the skills, so a direction of the embedding
is a weighted sum of the scores. The gate therefore needs no model, and nothing but the arrays that there are.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion.features import PoolInputs
from ranker.core.artifacts import atomic_path
from ranker.core.errors import InputError, ResourceError
from ranker.core.types import Float32

LEVELS = 3


def levels(inputs: PoolInputs, lane: str) -> Float32:
    """Return float32[n_queries, LEVELS]: the highest score of a lane over all skills, their mean, their deviation."""
    return np.concatenate([inputs.lanes[lane].max(axis=1, keepdims=True), *inputs.moments[lane]], axis=1)


@dataclass(frozen=True)
class Gate:
    """A trained gate.

    Attributes
    ----------
    lanes : tuple of str
        Whose levels it reads.
    weights : float64[n_lanes, LEVELS]
        Of the levels.
    offset : float
        Log odds where all else is zero.
    dense : str
        The lane whose scores say where a text points; "" for none.
    direction : float32[n_skills]
        Weight of each of its scores; empty for none.
    """

    lanes: tuple[str, ...]
    weights: NDArray[np.float64]
    offset: float
    dense: str
    direction: Float32

    def __call__(self, inputs: PoolInputs) -> Float32:
        """Return the probability that a text asks for a skill.

        Parameters
        ----------
        inputs : PoolInputs
            Scores of every lane; pool and columns are not read.

        Returns
        -------
        float32[n_queries]
            A query's own scores decide, to the bit.
        """
        read = np.stack([levels(inputs, name) for name in self.lanes], axis=1)
        odds = self.offset + (read * self.weights).sum(axis=(1, 2))
        if self.dense:
            odds = odds + (inputs.lanes[self.dense] * self.direction).sum(axis=1)
        probability: Float32 = np.exp(-np.logaddexp(0, -odds)).astype(np.float32)
        return probability

    def save(self, path: Path) -> None:
        """Write the gate as npz; the same gate gives the same bytes."""
        with atomic_path(path) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(
                stream, lanes=np.array(self.lanes), weights=self.weights, offset=np.float64(self.offset),
                dense=np.array(self.dense), direction=self.direction,
            )

    @classmethod
    def load(cls, path: Path, n_skills: int) -> Gate:
        """Read what `save` wrote, for a taxonomy of so many skills.

        Raises
        ------
        ResourceError
            If the file is not there.
        InputError
            If it is damaged or belongs to another number of skills.
        """
        if not path.is_file():
            raise ResourceError(f"no {path.name} in {path.parent}; run python -m train.fusion --out {path.parent}")
        try:
            with np.load(path, allow_pickle=False) as stored:
                held: dict[str, NDArray[Any]] = dict(stored)
            lanes, dense, offset = tuple(held["lanes"].tolist()), str(held["dense"]), float(held["offset"])
            weights, direction = held["weights"], held["direction"]
        except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is damaged ({error}); train it anew") from error
        expected = (len(lanes), LEVELS), (n_skills if dense else 0,)
        if (weights.shape, direction.shape) != expected:
            raise InputError(
                f"{path} holds weights of shape {weights.shape} and {direction.shape}, expected {expected[0]} and "
                f"{expected[1]}; train it anew"
            )
        return cls(lanes, weights, offset, dense, direction)
