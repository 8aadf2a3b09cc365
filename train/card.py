"""The model card that is written beside a trained bag."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ranker.core.artifacts import atomic_path
from ranker.core.errors import missing_extra


def plot_calibration(calibration: Mapping[str, Any], target: Path) -> None:
    """Draw how often skills of a probability are relevant, from `reliability` of each grade threshold.

    Raises
    ------
    ResourceError
        If matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", "train") from error
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="as it should be")
    for grade, marker, beside in (("2", "o", (4, -9)), ("3", "s", (-20, 6))):
        bins = np.array(calibration[grade]["reliability"])
        count, said, true = bins[bins[:, 0] > 0].T
        axes.plot(said / count, true / count, marker=marker, label=f"grade {grade} or better")
        for x, y, pairs in zip(said / count, true / count, count, strict=True):
            axes.annotate(f"{int(pairs):,}", (x, y), xytext=beside, textcoords="offset points", fontsize=6)
    axes.set(xlabel="probability", ylabel="share of skills that are", xlim=(0, 1), ylim=(0, 1))
    axes.set_title("Pool skills of graded queries, out of fold (pairs at each point)", fontsize=9)
    axes.legend(loc="upper left")
    with atomic_path(target) as path:
        figure.savefig(path, dpi=110, metadata={"Software": None})


def fusion_card(name: str, about: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """Return the card as Markdown: what it is, what it was trained on, its figures, its limits."""
    cv, left_out = report["cv"], report["task_left_out"]
    left = left_out["tasks"]
    tasks = "\n".join(f"| {task} | {value:.4f} | {left[task]:.4f} |" for task, value in cv["tasks"].items())
    calibration = "\n".join(
        f"| {grade} | {entry['kind']} | {entry['expected_calibration_error'][entry['kind']]:.4f} | "
        f"{entry['graded_calibration_error']:.4f} | {entry['whole_calibration_error']:.4f} |"
        for grade, entry in report["calibration"].items()
        if grade != "gate"
    )
    thresholds = "\n".join(
        f"| {row['min_probability']} | {row['precision']:.3f} | {row['recall']:.3f} | {row['skills_per_query']:.1f} |"
        for row in report["calibration"]["2"]["thresholds"]
    )
    nothing = _nothing(report["calibration"]["2"]["without_a_skill"]) + _gate(report["calibration"].get("gate"))
    features = ", ".join(f"{feature} {share:.1%}" for feature, share in list(report["importance"].items())[:10])
    libraries = ", ".join(f"{library} {number}" for library, number in about["libraries"].items())
    return f"""# Fusion of the system `{name}`

A bag of gradient-boosted rankers over the features of `docs/fusion.md`. It orders the pool of a text and gives each
skill the probability of being recommendable (grade 2 and above) and correct (grade 3 and above).

## Use

Ranking ESCO skills for English sentences about work. Not for deciding about people: a missing skill says nothing about
a person, and a probability is an average over texts like those below.

## Training

{about["queries"]} queries and {about["without_a_skill"]} texts that ask for no skill (data fingerprint
`{about["data"]}`), {about["rounds"]} trees per member. It holds trees, counts per skill and a graph of similar skills;
no text of a query, and nothing that ties a count to one.
Made with {libraries}.

## Figures

Macro nDCG@100, folds by query: {cv["macro"]:.4f} ± {cv["deviation"]:.4f} over repetitions.
Each task left out of training as a whole: {left_out["macro"]:.4f}.
Of the 100 slots, {cv["nonsense"]:.1f} hold a skill of another domain or an unjudged one.

| task | cross-validated | task left out |
|---|---|---|
{tasks}

Probabilities (expected calibration error, fitted and read in different folds):

| grade at least | map | error of the map | with the gate, graded queries | and texts without a skill |
|---|---|---|---|---|
{calibration}

{nothing}

![calibration](calibration.png)

Graded queries cut at a probability of grade >= 2 (map and gate of other folds):

| at least | precision | recall | skills per text |
|---|---|---|---|
{thresholds}

Ten strongest features by gain: {features}.

## Limits

The prior counts how often a skill was relevant among the training queries: skills they never met fall back to their
group and neighbours, and a text from a sector they did not touch gains less than these figures say. The task-left-out
column is the one to plan with. Scores compare the skills of one text; probabilities come from a judge and a gate that
are not standardised within a text, and compare texts as well. Grades come from a language model's judgement; skills
without a grade count as grade 0.
"""


def _nothing(seen: Mapping[str, float]) -> str:
    """Say how many texts without a skill would still be given one."""
    if not seen["texts"]:
        return "No text without a skill was among the data: what probability such a text gets was not measured."
    shares = ", ".join(f"{share:.0%} at probability {at.removeprefix('at ')}"
                       for at, share in seen.items() if at != "texts")
    return (f"Of {seen['texts']:.0f} texts that ask for no skill, the share that is still given one "
            f"(bag and map of other folds): {shares}.")


def _gate(seen: Mapping[str, Any] | None) -> str:
    """Say what the gate changes."""
    if seen is None:
        return ""
    nothing, graded = seen["without_a_skill"], seen["graded"]
    return (
        f" Without the gate: {nothing['spoken_ungated']:.0%} at probability 0.5. Of the graded queries, "
        f"{graded['spoken']:.1%} have a skill at 0.5, without the gate {graded['spoken_ungated']:.1%}. The gate by "
        f"itself (of other folds): area under the ROC curve {seen['auc']:.3f}; below 0.5 for "
        f"{1 - nothing['let_through']:.0%} of the texts without a skill and for {graded['held_back']:.1%} of the "
        "graded queries."
    )
