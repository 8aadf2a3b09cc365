"""The training loop: deterministic, resumable at any point, halving its batch where memory runs out.

Nothing is random but through generators that are seeded by (seed, stage, step): the order of the texts, the lists drawn
of them, and the dropout. So a checkpoint is weights, optimiser and step, and when it is written changes no result.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranker.core.artifacts import atomic_path, write_json
from ranker.core.cli import note
from ranker.core.errors import RankerError
from train.rerank.lists import Lists
from train.rerank.losses import LOSSES
from train.rerank.scorer import Scorer

SAVE_SECONDS = 120.0
LOG_LINES = 100
EVALUATIONS = 4


@dataclass(frozen=True)
class Stage:
    """Data and hyper-parameters of one stage.

    Attributes
    ----------
    lists : Lists
    number : int
        1 or 2; part of every seed.
    size : int
        Candidates of a list.
    batch : int
        Lists per step.
    passes : int
        How often every text is met, where no budget shortens it.
    rate : float
        Highest learning rate.
    loss : str
        A key of `LOSSES`.
    seed : int
    """

    lists: Lists
    number: int
    size: int
    batch: int
    passes: int
    rate: float
    loss: str
    seed: int

    def steps(self, rows: NDArray[np.intp]) -> int:
        """Return the steps that all passes over some texts take."""
        return math.ceil(self.passes * len(rows) / self.batch)

    def texts(self, rows: NDArray[np.intp], step: int) -> Iterator[tuple[int, int]]:
        """Yield (pass, text) of one step; every pass has its own order."""
        for place in range(step * self.batch, (step + 1) * self.batch):
            number = place // len(rows)
            order = np.random.default_rng([self.seed, self.number, number]).permutation(rows)
            yield number, int(order[place % len(rows)])


def is_memory_error(error: BaseException) -> bool:
    """Say whether an error means that memory ran out, on whatever device."""
    import torch

    texts = ("out of memory", "can't allocate memory", "not enough memory")
    told = isinstance(error, RuntimeError) and any(text in str(error).lower() for text in texts)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or told


class Stepper:
    """Takes optimiser steps of one stage; knows how many lists fit into memory at once."""

    def __init__(self, scorer: Scorer, stage: Stage, rows: NDArray[np.intp], steps: int) -> None:
        import torch

        self.scorer, self.stage, self.rows, self.steps = scorer, stage, rows, steps
        self.micro = stage.batch
        named = scorer.trainable()
        self.parameters = list(named.values())
        kinds = [[p for p in self.parameters if (p.ndim > 1) is matrix] for matrix in (True, False)]
        self.optimiser = torch.optim.AdamW(
            [{"params": part, "weight_decay": decay} for part, decay in zip(kinds, (0.01, 0.0), strict=True) if part],
            lr=stage.rate,
        )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: up over the first tenth, then down to nothing."""
        return self.stage.rate * min(1.0, (step + 1) / max(1, self.steps // 10)) * (1 - step / self.steps)

    def step(self, step: int) -> float:
        """Take one step and return its loss.

        Raises
        ------
        RankerError
            If loss or gradient is not finite, or one single list does not fit into memory.
        """
        import torch

        stage = self.stage
        drawn = [
            (text, *stage.lists.draw(text, stage.size, [stage.seed, stage.number, number]))
            for number, text in stage.texts(self.rows, step)
        ]
        while True:
            try:
                loss = self._accumulate(drawn, step)
                break
            except (RuntimeError, MemoryError) as error:
                if not is_memory_error(error):
                    raise
                if self.micro == 1:
                    raise RankerError(
                        f"one list of {stage.size} pairs does not fit into memory; use shorter lists or a lower "
                        "--max-length"
                    ) from error
            self.micro = (self.micro + 1) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            note(f"memory ran out: {self.micro} lists at once from step {step + 1} on, gradients accumulated")
        size = float(torch.nn.utils.clip_grad_norm_(self.parameters, 1.0))
        if not (math.isfinite(loss) and math.isfinite(size)):
            raise RankerError(
                f"stage {stage.number}: the {'gradient' if math.isfinite(loss) else 'loss'} is not finite at step "
                f"{step + 1} of {self.steps}; lower --rate (now {stage.rate:g})"
            )
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate(step)
        self.optimiser.step()
        return loss

    def _accumulate(self, drawn: list[Any], step: int) -> float:
        """Leave the gradient of the mean loss of some lists, `micro` lists at a time."""
        import torch

        stage = self.stage
        self.optimiser.zero_grad(set_to_none=True)
        torch.manual_seed(int(np.random.SeedSequence([stage.seed, stage.number, step]).generate_state(1)[0]))
        total = 0.0
        for start in range(0, len(drawn), self.micro):
            part = drawn[start : start + self.micro]
            pairs = [(stage.lists.texts[text], int(skill)) for text, skills, _ in part for skill in skills]
            scores = self.scorer.forward(pairs).split([len(skills) for _, skills, _ in part])
            losses = [
                LOSSES[stage.loss](made, torch.from_numpy(gains).to(made.device))
                for made, (_, _, gains) in zip(scores, part, strict=True)
            ]
            loss = torch.stack(losses).sum() / len(drawn)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total


def fit(
    scorer: Scorer, stage: Stage, rows: NDArray[np.intp], *, name: str, steps: int, folder: Path,
    evaluate: Callable[[], float] | None = None,
) -> None:
    """Train the scorer on some texts, from its present weights or from where an earlier run was stopped.

    Parameters
    ----------
    scorer : Scorer
        Changed in place.
    stage : Stage
    rows : intp[n]
        Usable texts of `stage.lists`.
    name : str
        Of this training: `folder` gets NAME.log.json, and NAME.pt until the caller calls `finish`.
    steps : int
    folder : Path
    evaluate : callable, optional
        Held-out nDCG of the scorer; asked `EVALUATIONS` times, for the log alone.
    """
    import torch

    stepper = Stepper(scorer, stage, rows, steps)
    path = folder / f"{name}.pt"
    log: list[dict[str, float]] = []
    first = 0
    if path.is_file():
        state = torch.load(path, weights_only=True, map_location="cpu")
        scorer.load(state["weights"])
        stepper.optimiser.load_state_dict(state["optimiser"])
        first, stepper.micro, log = state["step"], state["micro"], json.loads(state["log"])
        note(f"{name}: goes on at step {first + 1} of {steps}")
    marks = {math.ceil(steps * part / EVALUATIONS) for part in range(1, EVALUATIONS + 1)}
    every = max(1, steps // LOG_LINES)
    losses: list[float] = []
    saved = time.monotonic()

    def save(step: int) -> None:
        weights = {key: value.detach().cpu() for key, value in scorer.trainable().items()}
        state = {"weights": weights, "optimiser": stepper.optimiser.state_dict(), "step": step, "micro": stepper.micro}
        with atomic_path(path) as temporary:
            torch.save({**state, "log": json.dumps(log)}, temporary)

    for step in range(first, steps):
        losses.append(stepper.step(step))
        done = step + 1
        if done % every == 0 or done in marks:
            log.append({"step": done, "loss": float(np.mean(losses)), "rate": stepper.rate(step)})
            losses.clear()
            if evaluate is not None and done in marks:
                log[-1]["ndcg"] = evaluate()
            heard = f", held-out nDCG {log[-1]['ndcg']:.4f}" if "ndcg" in log[-1] else ""
            note(f"{name}: step {done} of {steps}, loss {log[-1]['loss']:.4f}{heard}")
            if done == steps or time.monotonic() - saved >= SAVE_SECONDS:
                save(done)
                saved = time.monotonic()
    write_json(folder / f"{name}.log.json", log)


def finish(name: str, folder: Path) -> None:
    """Remove the checkpoint of a training whose result is stored."""
    (folder / f"{name}.pt").unlink(missing_ok=True)
