"""Grade texts against a taxonomy with a language model as the judge.

The best skills of a dense lane, and people's marks where there are any, go through four yes-or-no gates; the first no
fixes the grade. See docs/labels.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ranker.core.chat import Endpoint
from ranker.core.cli import emit, note, parser, positive, run, say, seconds, table
from ranker.core.config import TaxonomyConfig, load_config
from ranker.core.errors import EXIT_OK, EXIT_PARTIAL, ArgumentError
from ranker.core.sources import load_taxonomy
from train.labels.cascade import MODES
from train.labels.factory import CACHE, CONCURRENCY, label, plan, prepare
from train.labels.gates import VERSION

DEPTH = 2000
SHOWN_PROBLEMS = 10


def _price(value: str) -> tuple[float, float]:
    """Argparse type: two prices, "0.15,0.60"."""
    try:
        first, second = map(float, value.split(","))
    except ValueError:
        first = second = math.nan
    if not (0 <= first < math.inf and 0 <= second < math.inf):
        raise argparse.ArgumentTypeError(f"{value!r} is not two prices with a comma between, such as 0.15,0.60")
    return first, second


def _fields(value: str) -> dict[str, Any]:
    """Argparse type: a JSON object."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{value!r} is not a JSON object")
    return found


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    made = parser(
        "train.judge",
        "Grade texts against a taxonomy with a language model as the judge: labels in BEIR layout. "
        "A run that was stopped goes on where it was when the same command is given again.",
        "python -m train.judge --queries texts.jsonl --out build/labels \\\n"
        "      --url http://localhost:8000/v1 --model Qwen/Qwen3-32B",
    )
    texts = made.add_argument_group("what is graded")
    texts.add_argument("--queries", type=Path, required=True, help="BEIR folder, .jsonl (_id, text[, skills]) or lines")
    texts.add_argument("--gold", type=Path, help="TSV of query-id, corpus-id[, score]: skills that people marked")
    texts.add_argument("--taxonomy", help="taxonomy file, or folder or zip of ESCO CSVs; default the system's")
    texts.add_argument("--system", default="embedded", help="config that has the prefilter's lane; default embedded")
    texts.add_argument("--lane", help="lane of the prefilter; default the system's first dense lane")
    texts.add_argument("--depth", type=positive, default=DEPTH, help=f"skills per text, plus gold; default {DEPTH}")
    judges = made.add_argument_group("who grades")
    judges.add_argument("--url", required=True, help="base URL of an OpenAI-compatible endpoint, up to /v1")
    judges.add_argument("--model", required=True, help="name the server knows the model by")
    judges.add_argument("--key-env", default="JUDGE_API_KEY", help="variable with the API key; default %(default)s")
    judges.add_argument("--price", type=_price, metavar="IN,OUT", help="price per million tokens, to show the cost")
    judges.add_argument("--extra", type=_fields, default={}, metavar="JSON", help="further fields of each request")
    judges.add_argument("--juror-model", help="second judge of the gates granularity and replacement; can only demote")
    judges.add_argument("--juror-url", help="default --url")
    judges.add_argument("--juror-key-env", help="default --key-env")
    judges.add_argument("--juror-price", type=_price, metavar="IN,OUT", help="as --price")
    judges.add_argument("--juror-extra", type=_fields, default={}, metavar="JSON", help="as --extra")
    how = made.add_argument_group("how")
    how.add_argument("--mode", choices=MODES, default="cascade", help="four gates, or one question; default cascade")
    how.add_argument("--prompts", default=VERSION, help="version of the prompts, or a folder; default %(default)s")
    how.add_argument("--concurrency", type=positive, default=CONCURRENCY, help="requests in flight; default 64")
    how.add_argument("--timeout", type=seconds, default=60.0, help="seconds for one request; default 60")
    how.add_argument("--retries", type=int, choices=range(11), default=4, metavar="N", help="0 to 10; default 4")
    how.add_argument("--backoff", type=seconds, default=0.5, help="seconds before the first retry; default 0.5")
    how.add_argument("--out", type=Path, required=True, help="folder for the labels")
    how.add_argument("--cache", type=Path, help=f"file of answers, may be shared between runs; default OUT/{CACHE}")
    how.add_argument("--dry-run", action="store_true", help="say what would be asked and its cost; ask nothing")
    how.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return made.parse_args(argv)


def _endpoints(options: argparse.Namespace) -> tuple[Endpoint, Endpoint | None]:
    patience = {"timeout": options.timeout, "retries": options.retries, "backoff": options.backoff}
    judge = Endpoint(
        options.url, options.model, options.key_env, extra=options.extra, price=options.price, **patience
    )
    if options.juror_model is None:
        lonely = [name for name in ("url", "key_env", "price", "extra") if getattr(options, f"juror_{name}")]
        if lonely:
            raise ArgumentError(f"--juror-{lonely[0].replace('_', '-')} needs --juror-model")
        return judge, None
    juror = Endpoint(
        options.juror_url or options.url,
        options.juror_model,
        options.juror_key_env or options.key_env,
        extra=options.juror_extra,
        price=options.juror_price,
        **patience,
    )
    return judge, juror


def _report(facts: Mapping[str, Any]) -> str:
    """Return the facts of a run as text."""
    pairs = facts["pairs"]
    lines = [table(list(pairs.items()), ("grade", "pairs")), ""]
    answers = facts["answers"]
    lines.append(
        f"{answers['asked']} answers asked for, {answers['cached']} from the cache, in {facts['seconds']:.1f} s: "
        f"{facts['answers_per_second']:g} answers/s, {facts['pairs_per_second']:g} pairs/s"
    )
    for judge in facts["judges"]:
        cost = "" if judge["cost"] is None else f", cost {judge['cost']:.4f}"
        failed = ", ".join(f"{count} {kind}" for kind, count in judge["failures"].items())
        lines.append(
            f"{judge['model']}: {judge['requests']} requests, {judge['retries']} of them retries"
            f"{f' ({failed})' if failed else ''}, at most {judge['most_in_flight']} in flight, "
            f"{judge['prompt_tokens']} + {judge['completion_tokens']} tokens{cost}"
        )
    lines.append(f"labels in {facts['out']}")
    if pairs["unjudged"]:
        lines.append(f"{pairs['unjudged']} pairs are unjudged (unjudged.tsv); the same command tries them again")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `--help`."""
    options = _parse(argv)
    judge, juror = _endpoints(options)
    system = load_config(options.system)
    taxonomy = load_taxonomy(TaxonomyConfig(path=options.taxonomy) if options.taxonomy else system.taxonomy)
    work = prepare(
        system, taxonomy, queries=options.queries, gold=options.gold, lane=options.lane, depth=options.depth
    )
    for problem in work.problems[:SHOWN_PROBLEMS]:
        note(problem)
    if len(work.problems) > SHOWN_PROBLEMS:
        note(f"... and {len(work.problems) - SHOWN_PROBLEMS} more rows like these")
    if options.dry_run:
        cache = options.cache or options.out / CACHE
        facts = plan(work, judge, juror=juror, mode=options.mode, prompts=options.prompts, cache=cache)
        if options.json:
            emit(facts)
        else:
            say("\n".join(f"{key.replace('_', ' '):<26} {value}" for key, value in facts.items() if key != "problems"))
        return EXIT_OK
    facts = asyncio.run(
        label(
            work,
            judge,
            options.out,
            juror=juror,
            mode=options.mode,
            prompts=options.prompts,
            cache=options.cache,
            concurrency=options.concurrency,
        )
    )
    if options.json:
        emit(facts)
    else:
        say(_report(facts))
    return EXIT_PARTIAL if facts["pairs"]["unjudged"] or work.problems else EXIT_OK


if __name__ == "__main__":
    raise SystemExit(run(main))
