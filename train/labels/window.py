"""What the unjudged skills in a ranking's window are: a sample of it, graded blind, beside judged skills as controls.

The sample is shipped: of the first 100 skills of every shared graded query, as the embedded lanes order them with the
tuned lane's out-of-fold scores, up to five that were not judged, three judged 0, three judged 1 and one judged 2 or
more. A language model graded them in random order, from label and start of description, without any known grade.

`python -m train.labels.window --data DIR` compares its grades with the judged ones.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence

from ranker.core.cli import emit, parser, run, say, table
from ranker.core.errors import InputError
from ranker.core.tasks import load_tasks
from train.labels.silver import read_grades

UNJUDGED = -1
GRADES = (0, 1, 2, 3, 4)


def read_sample() -> dict[tuple[str, str], int]:
    """Return the blind grade of every (query id, skill URI) of the sample."""
    return {(query, skill): grade for query, skill, grade in read_grades("window.tsv.gz")}


def compare(sample: Mapping[tuple[str, str], int], qrels: Mapping[str, Mapping[str, int]]) -> Counter[tuple[int, int]]:
    """Count pairs by (known grade, blind grade); the known one is `UNJUDGED` where `qrels` has none.

    Raises
    ------
    InputError
        If a query of the sample is not among the judged ones.
    """
    missing = sorted({query for query, _ in sample} - qrels.keys())
    if missing:
        raise InputError(f"{len(missing)} queries of the sample have no grades here, the first is {missing[0]!r}")
    return Counter((qrels[query].get(skill, UNJUDGED), grade) for (query, skill), grade in sample.items())


def of_the_domain(counts: Mapping[tuple[int, int], int]) -> dict[str, float]:
    """Estimate how many unjudged skills the judge would have given a 1 or more.

    The share that the blind grader gives them is corrected by how often it agrees on the controls (Rogan and Gladen,
    American Journal of Epidemiology 107, 1978). Unjudged skills are compared with judged zeros and ones alone, of which
    the rest of the window consists.

    Returns
    -------
    dict
        "blind": the grader's own share; "ones_confirmed", "zeros_confirmed": its agreement on the controls; "estimate".
    """

    def share(known: int) -> float:
        pairs = {grade: counts.get((known, grade), 0) for grade in GRADES}
        return 1 - pairs[0] / max(1, sum(pairs.values()))

    blind, ones, zeros = share(UNJUDGED), share(1), share(0)
    estimate = min(1.0, max(0.0, (blind - zeros) / (ones - zeros))) if ones > zeros else float("nan")
    return {"blind": blind, "ones_confirmed": ones, "zeros_confirmed": 1 - zeros, "estimate": estimate}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    made = parser(
        "train.labels.window",
        "Compare the blind grades of a sample of the window with the judged ones.",
        "python -m train.labels.window --data graded",
    )
    made.add_argument("--data", required=True, help="the graded tasks: a folder in BEIR layout")
    made.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    return made.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = _parse(argv)
    qrels = {query: dict(task.qrels[query]) for task in load_tasks(arguments.data) for query in task.query_ids}
    counts = compare(read_sample(), qrels)
    result = of_the_domain(counts)
    if arguments.json:
        emit({"pairs": {f"{known}/{grade}": count for (known, grade), count in sorted(counts.items())}, **result})
        return 0
    rows = [["unjudged" if known == UNJUDGED else known, *(counts[known, grade] for grade in GRADES)]
            for known in (UNJUDGED, *GRADES)]
    say(table(rows, ["judged", *(f"blind {grade}" for grade in GRADES)]))
    say(f"unjudged skills of grade 1 or more: {result['blind']:.0%} by the blind grader, {result['estimate']:.0%} "
        f"corrected by its agreement ({result['ones_confirmed']:.0%} of the ones, {result['zeros_confirmed']:.0%} of "
        "the zeros)")
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
