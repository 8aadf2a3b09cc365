"""How far two people or judges agree on grades, and which of two judges is nearer: `python -m ranker.agreement`.

A judge is checked in three steps. `A --make-manifest pairs.csv` draws pairs, the same number of each grade; people
grade them blind; `pairs.csv A` reads them back and compares. With `--reference`, A and B are two judges, compared by
how well each agrees with the reference on the same pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ranker.core.artifacts import atomic_path
from ranker.core.cli import emit, parser, positive, run, say, table
from ranker.core.config import TaxonomyConfig
from ranker.core.errors import EXIT_OK, ArgumentError, missing_extra
from ranker.core.kappa import Int64, collapse, confusion, kappa, resampled
from ranker.core.metrics import GRADES, Float64
from ranker.core.sources import load_taxonomy
from ranker.core.tasks import SPLITS, load_tasks
from ranker.labels import Aligned, align, draw_items, read_labels, write_manifest

RESAMPLES = 10_000
UNITS = ("pair", "query")


@dataclass(frozen=True)
class Agreement:
    """How far B agrees with A, on n pairs of query and skill.

    Attributes
    ----------
    pairs : int
        n.
    weighted_kappa, low, high : float
        Quadratic-weighted kappa and its 95 % bootstrap interval.
    kappa : float
        Plain kappa.
    spearman : float
        Rank correlation, ties averaged.
    exact, within_one : float
        Shares of pairs with equal grades, and with grades at most one apart.
    generous, strict : float
        Shares of pairs that B grades higher than A, and lower.
    confusion : list of list of int
        Pairs by A's grade (row) and B's grade (column).
    calibration : list of float
        Mean of A's grades by B's grade; NaN where B never gave it. A calibrated judge's grade is what A gives.
    """

    pairs: int
    weighted_kappa: float
    low: float
    high: float
    kappa: float
    spearman: float
    exact: float
    within_one: float
    generous: float
    strict: float
    confusion: list[list[int]]
    calibration: list[float]


@dataclass(frozen=True)
class JudgeComparison:
    """Two judges against one reference, on the same pairs.

    Attributes
    ----------
    difference, low, high, p_value : float
        Weighted kappa of A with the reference minus that of B; 95 % paired bootstrap interval and two-sided p.
    signed_rank, signed_rank_p : float
        Wilcoxon's statistic and p of |A - reference| against |B - reference|, per unit; units without a difference are
        left out. NaN and 1 where no unit differs.
    units : int
        How many pairs or queries were resampled.
    """

    difference: float
    low: float
    high: float
    p_value: float
    signed_rank: float
    signed_rank_p: float
    units: int


# --- statistics ------------------------------------------------------------------------------------------------------


def _strata(pairs: Aligned, first: Int64, unit: str) -> tuple[Int64, Int64 | None]:
    """Return strata and units of a bootstrap: by task, and where single pairs are drawn by the first's grade too."""
    if unit == "query":
        return pairs.task, pairs.query
    return pairs.task * len(GRADES) + first, None


def _interval(values: Float64) -> tuple[float, float]:
    """Return the 95 % percentile interval of resampled values, without those that are undefined."""
    kept = values[~np.isnan(values)]
    if not kept.size:
        return math.nan, math.nan
    low, high = np.quantile(kept, [0.025, 0.975])
    return float(low), float(high)


def agreement(
    pairs: Aligned,
    a: int = 0,
    b: int = 1,
    *,
    k: int = len(GRADES),
    unit: str = "pair",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Agreement:
    """Compare two sources.

    Parameters
    ----------
    pairs : Aligned
        Grades of at least two sources, below k.
    a, b : int
        Which sources; A is the one that strata and calibration go by.
    k : int
        Number of grades: 5, or 4 after `collapse`.
    unit : str
        "pair" resamples pairs within task and A's grade; "query" whole queries within tasks, which allows for what the
        pairs of one query have in common.
    resamples, seed : int
        Of the bootstrap.

    Returns
    -------
    Agreement
    """
    first, second = pairs.grades[a], pairs.grades[b]
    counts = confusion(first, second, k)
    apart = second - first
    strata, units = _strata(pairs, first, unit)
    draws = resampled(pairs.grades[[a, b]], strata, units, k, resamples=resamples, seed=seed)
    low, high = _interval(kappa(draws, quadratic=True))
    varied = np.ptp(first) > 0 and np.ptp(second) > 0
    given = counts.sum(axis=0)
    sums = (counts * np.arange(k)[:, None]).sum(axis=0)
    return Agreement(
        pairs=len(first),
        weighted_kappa=float(kappa(counts, quadratic=True)),
        low=low,
        high=high,
        kappa=float(kappa(counts, quadratic=False)),
        spearman=float(stats.spearmanr(first, second).statistic) if varied else math.nan,
        exact=float((apart == 0).mean()),
        within_one=float((abs(apart) <= 1).mean()),
        generous=float((apart > 0).mean()),
        strict=float((apart < 0).mean()),
        confusion=counts.tolist(),
        calibration=[float(total / n) if n else math.nan for total, n in zip(sums, given, strict=True)],
    )


def compare_judges(
    pairs: Aligned, *, k: int = len(GRADES), unit: str = "pair", resamples: int = RESAMPLES, seed: int = 0
) -> JudgeComparison:
    """Compare two judges, sources 1 and 2, by their weighted kappa with the reference, source 0.

    Parameters
    ----------
    pairs : Aligned
        Grades of three sources.
    k, unit, resamples, seed
        As for `agreement`; the strata go by the reference's grade. Both judges are read off the same resamples.

    Returns
    -------
    JudgeComparison
    """
    reference, one, two = pairs.grades
    strata, units = _strata(pairs, reference, unit)
    draws = resampled(pairs.grades, strata, units, k, resamples=resamples, seed=seed)
    differences = kappa(draws.sum(axis=3), quadratic=True) - kappa(draws.sum(axis=2), quadratic=True)
    low, high = _interval(differences)
    kept = differences[~np.isnan(differences)]
    # One is added to both counts: the sample at hand belongs to its own resamples, so p is never 0.
    tail = min((kept <= 0).sum(), (kept >= 0).sum())
    whole = kappa(confusion(reference, one, k), quadratic=True) - kappa(confusion(reference, two, k), quadratic=True)
    farther = (abs(one - reference) - abs(two - reference)).astype(np.float64)
    if units is not None:
        farther = np.bincount(units, weights=farther) / np.bincount(units)
    test = stats.wilcoxon(farther) if farther.any() else None
    return JudgeComparison(
        difference=float(whole),
        low=low,
        high=high,
        p_value=float(min(1.0, 2 * (tail + 1) / (len(kept) + 1))),
        signed_rank=math.nan if test is None else float(test.statistic),
        signed_rank_p=1.0 if test is None else float(test.pvalue),
        units=len(farther),
    )


# --- what is shown ---------------------------------------------------------------------------------------------------


def plot(path: Path, found: dict[str, Agreement]) -> None:
    """Draw, for each comparison, the confusion matrix and the calibration curve.

    Raises
    ------
    PrerequisiteError
        If matplotlib is not installed.
    ArgumentError
        If the file's ending is no format that matplotlib writes.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", "train") from error
    figure = Figure(figsize=(9, 4 * len(found)), layout="constrained")
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise ArgumentError(f"--plot {path}: unknown format {path.suffix!r}; allowed: {', '.join(sorted(formats))}")
    panels = figure.subplots(len(found), 2, squeeze=False)
    for (name, one), (left, right) in zip(found.items(), panels, strict=True):
        counts = np.array(one.confusion)
        k = len(counts)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        left.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for row in range(k):
            for column in range(k):
                dark = shares[row, column] > 0.5
                left.text(
                    column, row, f"{counts[row, column]:,}", ha="center", va="center", color="w" if dark else "k"
                )
        a, b = name.split(" / ")
        left.set(xlabel=f"grade by {b}", ylabel=f"grade by {a}", title=f"pairs ({one.pairs:,}); shade: share of row")
        left.set(xticks=range(k), yticks=range(k))
        right.plot([0, k - 1], [0, k - 1], color="grey", linestyle=":", linewidth=1)
        right.plot(range(k), one.calibration, marker="o")
        right.set(xlabel=f"grade by {b}", ylabel=f"mean grade by {a}", title=f"weighted kappa {one.weighted_kappa:.3f}")
        right.set(xticks=range(k), yticks=range(k))
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)


def _show(found: dict[str, Agreement], judges: JudgeComparison | None, unit: str) -> None:
    rows = [
        (
            *(name, one.pairs, one.weighted_kappa, f"{one.low:.3f}-{one.high:.3f}", one.kappa, one.spearman),
            *(one.exact, one.within_one, one.generous, one.strict),
        )
        for name, one in found.items()
    ]
    header = ["A / B", "pairs", "w. kappa", "95 %", "kappa", "Spearman", "exact", "within 1", "generous", "strict"]
    say(table(rows, header))
    for name, one in found.items():
        say(f"\n{name}: rows are grades by the first, columns by the second; last row: mean grade by the first")
        cells = [list(map(str, (grade, *row))) for grade, row in enumerate(one.confusion)]
        means = ["-" if math.isnan(mean) else f"{mean:.2f}" for mean in one.calibration]
        say(table([*cells, ["mean", *means]], ["", *map(str, range(len(means)))]))
    if judges is not None:
        say(
            f"\nA minus B, weighted kappa with the reference: {judges.difference:+.4f}, 95 % interval "
            f"{judges.low:+.4f} to {judges.high:+.4f}, p = {judges.p_value:.4f} (paired bootstrap over "
            f"{judges.units} units: {unit}); signed-rank test of the errors: p = {judges.signed_rank_p:.2g}"
        )


def _plain(value: Any) -> Any:
    """Return the value without NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _manifest(given: Any) -> int:
    if not given.a.is_dir():
        raise ArgumentError(f"--make-manifest draws from a folder in BEIR layout; {given.a} is none")
    path = given.taxonomy
    taxonomy = load_taxonomy(None if path is None else TaxonomyConfig(path=path))
    tasks = load_tasks(given.a, given.split, taxonomy=taxonomy)
    items, drawn = draw_items(tasks, taxonomy, per_grade=given.per_grade, seed=given.seed)
    write_manifest(given.make_manifest, items)
    if given.json:
        emit({"file": str(given.make_manifest), "pairs": len(items), "by_grade": drawn, "seed": given.seed})
    else:
        counts = ", ".join(f"grade {grade}: {n}" for grade, n in drawn.items())
        say(f"wrote {given.make_manifest}: {len(items)} pairs; {counts}")
    return EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser(
        "ranker.agreement",
        "Compare the grades of two people or judges; or draw pairs for people to grade blind.",
        "python -m ranker.agreement judged --make-manifest pairs.html --per-grade 40\n"
        "  python -m ranker.agreement grades.csv judged --plot build/agreement.png\n"
        "  python -m ranker.agreement judge_a judge_b --reference grades.csv",
    )
    add = arguments.add_argument
    add("a", type=Path, metavar="A", help="grades: a folder in BEIR layout, or a manifest that was filled in")
    add("b", type=Path, metavar="B", nargs="?", help="grades to compare with A's")
    add("--reference", type=Path, metavar="R", help="grades that A and B are both compared with")
    add("--collapse", action="store_true", help="read grades 3 and 4 as one")
    add("--unit", choices=UNITS, default="pair", help="what the bootstrap draws (default: pair)")
    add("--resamples", type=positive, default=RESAMPLES, help=f"of the bootstrap (default: {RESAMPLES})")
    add("--plot", type=Path, metavar="F.png", help="draw confusion matrix and calibration curve")
    add("--make-manifest", type=Path, metavar="OUT", help="draw pairs of A for people to grade: .csv or .html")
    add("--per-grade", type=positive, default=40, help="pairs of each grade in a manifest (default: 40)")
    add("--taxonomy", metavar="PATH", help="where a manifest's labels come from (default: ESCO as it is cached)")
    add("--split", default="validation", choices=SPLITS)
    add("--seed", type=int, default=0)
    add("--json", action="store_true", help="print one JSON object instead of tables")
    given = arguments.parse_args(argv)
    if given.make_manifest:
        if given.b or given.reference:
            raise ArgumentError("--make-manifest draws from A alone; leave B and --reference out")
        return _manifest(given)
    if given.b is None:
        raise ArgumentError("give two sources of grades, or --make-manifest OUT")
    sources = [given.a, given.b] if given.reference is None else [given.reference, given.a, given.b]
    pairs = align([read_labels(source, given.split) for source in sources])
    k = len(GRADES)
    if given.collapse:
        pairs, k = Aligned(collapse(pairs.grades), pairs.task, pairs.query), k - 1
    settings = {"k": k, "unit": given.unit, "resamples": given.resamples, "seed": given.seed}
    if given.reference is None:
        found, judges = {"A / B": agreement(pairs, **settings)}, None
    else:
        found = {f"reference / {name}": agreement(pairs, 0, at, **settings) for at, name in ((1, "A"), (2, "B"))}
        judges = compare_judges(pairs, **settings)
    if given.plot:
        plot(given.plot, found)
    if given.json:
        value = {"agreement": {name: asdict(one) for name, one in found.items()}, "unit": given.unit}
        emit(_plain({**value, "judges": None if judges is None else asdict(judges)}))
    else:
        _show(found, judges, given.unit)
    return EXIT_OK


if __name__ == "__main__":
    raise SystemExit(run(main))
