"""One training as a sequence of fits: stage 1, a fold after the other, the full model; what is done is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranker.core import metrics
from ranker.core.artifacts import atomic_path, write_json
from ranker.core.cli import note
from ranker.core.errors import ArgumentError
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32
from train.crossval import HELPER_TASK
from train.rerank.fit import EVALUATIONS, Stage, Stepper, finish, fit
from train.rerank.scorer import Scorer
from train.rerank.study import Recipe, Study

MEASURED_STEPS = 3
HELD_OUT_LISTS = 32
STAGE_1, FULL = "stage-1", "full"

Rows = NDArray[np.intp]


class Job:
    """Trains the models of a study in a folder, in which a later job of the same study goes on.

    Parameters
    ----------
    study : Study
    recipe : Recipe
    taxonomy : Taxonomy
    folder : Path
        Made where it is missing.
    minutes : float, optional
        Time that all fits and the scoring may take.
    """

    def __init__(
        self, study: Study, recipe: Recipe, taxonomy: Taxonomy, folder: Path, minutes: float | None = None
    ) -> None:
        self.study, self.recipe, self.folder = study, recipe, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.scorer = Scorer(
            recipe.model, taxonomy, view=recipe.view, causal=recipe.causal, lora=recipe.lora,
            max_length=recipe.max_length, seed=recipe.seed,
        )
        self.origin = self._weights()
        self.fits: dict[str, tuple[Stage, Rows]] = {}
        if study.first is not None:
            self.fits[STAGE_1] = (study.first, study.first.lists.usable())
        self.fits |= {f"fold-{fold}": (study.second, rows) for fold, rows in enumerate(study.train)}
        self.fits[FULL] = (study.second, study.second.lists.usable())
        self.steps = self._plan(minutes)

    def _weights(self) -> dict[str, Any]:
        return {name: value.detach().cpu().clone().contiguous() for name, value in self.scorer.trainable().items()}

    def _plan(self, minutes: float | None) -> dict[str, int]:
        """Return the steps of every fit: all passes, or what of them the budget holds.

        What was decided is kept and holds for every later run, so that a resumed run ends as an uninterrupted one.
        """
        path = self.folder / "plan.json"
        if path.is_file():
            kept: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
            note(f"steps as decided by an earlier run: {kept}")
            return kept
        wanted = {name: stage.steps(rows) for name, (stage, rows) in self.fits.items()}
        steps = wanted if minutes is None else self._shorten(wanted, 60 * minutes)
        write_json(path, steps)
        return steps

    def _shorten(self, wanted: Mapping[str, int], budget: float) -> dict[str, int]:
        """Time some steps of each stage and the scoring of a pool, and cut all fits alike to what fits the budget.

        Raises
        ------
        ArgumentError
            If the scoring alone takes longer than the budget of so many seconds.
        """
        per_step = {}
        for number, (stage, rows) in {stage.number: (stage, rows) for stage, rows in self.fits.values()}.items():
            stepper = Stepper(self.scorer, stage, rows, MEASURED_STEPS + 1)
            stepper.step(0)  # warms up
            started = time.monotonic()
            for step in range(1, MEASURED_STEPS + 1):
                stepper.step(step)
            per_step[number] = (time.monotonic() - started) / MEASURED_STEPS
        pool = self.study.pool[0, : self.recipe.depth]
        self.scorer.predict(self.study.graded.texts[0], pool[:2])
        started = time.monotonic()
        self.scorer.predict(self.study.graded.texts[0], pool)
        per_pair = (time.monotonic() - started) / len(pool)
        self.scorer.load(self.origin)
        pairs = len(self.study.graded.texts) * len(pool)
        pairs += len(self.study.train) * EVALUATIONS * HELD_OUT_LISTS * self.recipe.list_size
        scoring = per_pair * pairs
        if scoring >= budget:
            raise ArgumentError(
                f"scoring the pools takes about {scoring / 60:.1f} minutes by itself; give --budget-minutes more than "
                "that, or lower --depth"
            )
        training = sum(per_step[self.fits[name][0].number] * steps for name, steps in wanted.items())
        share = min(1.0, (budget - scoring) / training)
        steps = {name: max(1, int(share * number)) for name, number in wanted.items()}
        timed = ", ".join(f"{1 / value:.2f} steps per second in stage {number}" for number, value in per_step.items())
        note(
            f"budget of {budget / 60:g} minutes: {timed}, {1 / per_pair:.0f} pairs scored per second; after "
            f"{scoring / 60:.1f} minutes of scoring it holds {share:.0%} of all passes, in steps: {steps}"
        )
        return steps

    def _fit(self, name: str, start: Mapping[str, Any], evaluate: Callable[[], float] | None = None) -> None:
        """Leave the scorer trained from some weights."""
        self.scorer.load(start)
        stage, rows = self.fits[name]
        fit(self.scorer, stage, rows, name=name, steps=self.steps[name], folder=self.folder, evaluate=evaluate)

    def start(self) -> dict[str, Any]:
        """Return the weights that stage 2 starts from: those of stage 1, or as the model came."""
        from safetensors.torch import load_file, save_file

        if STAGE_1 not in self.fits:
            return self.origin
        path = self.folder / f"{STAGE_1}.safetensors"
        if not path.is_file():
            self._fit(STAGE_1, self.origin)
            with atomic_path(path) as temporary:
                save_file(self._weights(), temporary)
            finish(STAGE_1, self.folder)
        return load_file(path)

    def held_out(self, rows: Rows) -> float:
        """Return the scorer's mean nDCG over one fixed list of each of some judged queries, for the log."""
        graded, lists, values = self.study.graded, self.study.second.lists, []
        for row in [row for row in rows if graded.tasks[row] != HELPER_TASK][:HELD_OUT_LISTS]:
            skills, _ = lists.draw(row, self.recipe.list_size, [0])
            grades = np.maximum(graded.grades[row, skills], 0)
            order = np.argsort(-self.scorer.predict(graded.texts[row], skills), kind="stable")
            values.append(metrics.ndcg(grades[order][None], np.sort(grades)[::-1][None], k=len(skills))[0])
        return metrics.mean(np.array(values)) if values else float("nan")

    def cross_fit(self) -> Float32:
        """Return float32[n_queries, n_skills]: out-of-fold scores of every pool to its depth, NaN elsewhere."""
        graded, pool = self.study.graded, self.study.pool[:, : self.recipe.depth].astype(np.intp)
        scores = np.full(graded.grades.shape, np.nan, np.float32)
        start = self.start()
        for fold in range(len(self.study.train)):
            name, path = f"fold-{fold}", self.folder / f"fold-{fold}.npy"
            held = np.flatnonzero(graded.folds == fold)
            if not path.is_file():
                started = time.monotonic()
                self._fit(name, start, partial(self.held_out, held))
                made = [self.scorer.predict(graded.texts[row], pool[row]) for row in held]
                with atomic_path(path) as temporary, temporary.open("wb") as stream:
                    np.save(stream, np.stack(made))
                finish(name, self.folder)
                note(f"{name}: trained and scored in {time.monotonic() - started:.0f} s")
            scores[held[:, None], pool[held]] = np.load(path)
        return scores

    def full(self, out: Path) -> None:
        """Train on every usable query and save the model for serving."""
        self._fit(FULL, self.start())
        self.scorer.save(out)

    def logs(self) -> dict[str, list[dict[str, float]]]:
        """Return the log of every finished fit."""
        paths = {name: self.folder / f"{name}.log.json" for name in self.fits}
        return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}
