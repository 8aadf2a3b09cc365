"""From texts and a taxonomy to a folder of labels: prepare, plan, label."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ranker.core.answers import AnswerCache
from ranker.core.artifacts import digest
from ranker.core.chat import Endpoint
from ranker.core.cli import note
from ranker.core.config import SystemConfig
from ranker.core.errors import ArgumentError
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Int32
from train.labels.cascade import JUROR_GATES, Judge, decided, grade_all
from train.labels.client import JudgeClient
from train.labels.folder import Labels, claim, write_labels
from train.labels.gates import DIRECT, GATES, VERSION, load_questions
from train.labels.meter import Meter, usage_facts
from train.labels.stream import Query, candidates, pairs, prefilter_lane, read_stream

CACHE = "answers.sqlite"
CONCURRENCY = 64
CHARACTERS_PER_TOKEN = 4  # of English, for a cost before the first request; a run counts what the server states
ANSWER_TOKENS = 8


@dataclass(frozen=True)
class Work:
    """All that is graded: taxonomy, texts, candidates, and what the labels depend on."""

    taxonomy: Taxonomy
    queries: tuple[Query, ...]
    pool: list[Int32]
    identity: dict[str, Any]
    problems: tuple[str, ...] = ()


def prepare(
    system: SystemConfig, taxonomy: Taxonomy, *, queries: Path, gold: Path | None, lane: str | None, depth: int
) -> Work:
    """Read the texts and take the best `depth` skills of each by one lane of a system.

    Raises
    ------
    RankerError
        See `read_stream` and `prefilter_lane`.
    """
    stream = read_stream(queries, gold)
    name, scorer = prefilter_lane(system, taxonomy, lane)
    lost = [
        f"query {query.id!r}: gold {uri} is not in the taxonomy; it can only count as missed"
        for query in stream.queries
        for uri in query.gold
        if uri not in taxonomy.index
    ]
    spec = next(spec for spec in system.lanes if spec.name == name)
    identity = {
        "taxonomy": taxonomy.fingerprint,
        "queries": digest([asdict(query) for query in stream.queries])[:16],
        "prefilter": {"lane": name, "digest": digest(asdict(spec))[:16], "depth": depth},
    }
    pool = candidates(scorer, taxonomy, stream.queries, depth)
    return Work(taxonomy, stream.queries, pool, identity, (*stream.problems, *lost))


async def label(
    work: Work,
    endpoint: Endpoint,
    out: Path,
    *,
    juror: Endpoint | None = None,
    mode: str = "cascade",
    prompts: str = VERSION,
    cache: Path | None = None,
    concurrency: int = CONCURRENCY,
    progress: Callable[[str], None] = note,
) -> dict[str, Any]:
    """Grade and write the labels; a run that was stopped goes on where it was.

    Parameters
    ----------
    endpoint, juror : Endpoint
        The judge, and a second one for the last two gates.
    out : Path
        Folder for the labels, see `write_labels`.
    cache : Path, optional
        File of answers; default `answers.sqlite` in `out`.

    Returns
    -------
    dict
        Counts of pairs by grade, requests, tokens, cost and throughput of this run.

    Raises
    ------
    ArgumentError
        If `out` holds the labels of another run, or the juror cannot be used.
    ResourceError
        If the endpoint cannot be used; the answers so far are kept.
    """
    questions = load_questions(prompts)
    asked = (DIRECT,) if mode == DIRECT else GATES
    identity = {
        **work.identity,
        "mode": mode,
        "judge": endpoint.identity,
        "juror": None if juror is None else juror.identity,
        "prompts": {name: questions[name].version for name in asked},
    }
    check_jury(endpoint, juror, mode)
    claim(out, identity)
    labels = Labels.begin(work.taxonomy, work.queries, work.pool)
    begun = labels.counts()
    with AnswerCache(cache or out / "answers.sqlite") as answers:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(JudgeClient(one))
                for one in (endpoint, juror)
                if one is not None
            ]
            second = clients[1] if juror is not None else None
            judge = Judge(questions, clients[0], answers, second, mode)
            meter = Meter(judge, begun["unjudged"], progress)
            await grade_all(
                judge,
                pairs(work.taxonomy, work.queries, work.pool),
                labels.keep,
                concurrency=concurrency,
                progress=meter,
            )
    seconds = time.monotonic() - meter.start
    facts = {
        "gold": begun["4"],
        "queries": len(work.queries),
        "seconds": round(seconds, 3),
        "answers": {"asked": judge.tally.asked, "cached": judge.tally.cached},
        "answers_per_second": round(judge.tally.asked / max(seconds, 1e-9), 2),
        "pairs_per_second": round(judge.tally.pairs / max(seconds, 1e-9), 2),
        "judges": [usage_facts(one) for one in clients],
        "problems": list(work.problems),
    }
    write_labels(out, labels, work.taxonomy, identity, facts)
    return {"out": str(out), "pairs": labels.counts(), **facts}


def check_jury(endpoint: Endpoint, juror: Endpoint | None, mode: str) -> None:
    """Raise ArgumentError where a juror has nothing to say."""
    if juror is None:
        return
    if mode == DIRECT:
        raise ArgumentError(f"a juror sits at the gates {' and '.join(JUROR_GATES)}; mode direct has none")
    if juror.identity == endpoint.identity:
        raise ArgumentError(f"judge and juror are both {juror.identity!r}; a juror must be another model")


def plan(
    work: Work,
    endpoint: Endpoint,
    *,
    juror: Endpoint | None = None,
    mode: str = "cascade",
    prompts: str = VERSION,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Return what a run would ask, without asking.

    Parameters
    ----------
    cache : Path, optional
        File of answers; it is read where it exists, never made.

    Returns
    -------
    dict
        Pairs, those that the cache decides, and the least and most requests of the others with their tokens and, where
        the endpoints have prices, cost. Tokens are counted as characters over four.
    """
    questions = load_questions(prompts)
    check_jury(endpoint, juror, mode)
    second = None if juror is None else juror.identity
    total = known = length = 0
    first = questions[DIRECT if mode == DIRECT else GATES[0]]
    with AnswerCache(cache if cache is not None and cache.exists() else Path(":memory:")) as answers:
        for pair in pairs(work.taxonomy, work.queries, work.pool):
            total += 1
            if decided(answers, questions, pair, judge=endpoint.identity, juror=second, mode=mode):
                known += 1
            else:
                length += sum(len(message["content"]) for message in first.messages(pair))
    tokens = length // CHARACTERS_PER_TOKEN
    open_pairs, most = total - known, 1 if mode == DIRECT else len(GATES)
    facts: dict[str, Any] = {
        "queries": len(work.queries),
        "pairs": total,
        "decided_by_cache": known,
        "requests_at_least": open_pairs,
        "requests_at_most": open_pairs * (most + (0 if juror is None else len(JUROR_GATES))),
        "prompt_tokens_per_request": round(tokens / max(open_pairs, 1)),
        "problems": list(work.problems),
    }
    if endpoint.price is not None:
        once = (tokens * endpoint.price[0] + open_pairs * ANSWER_TOKENS * endpoint.price[1]) / 1e6
        facts["cost_at_least"] = round(once, 4)
        price = (0.0, 0.0) if juror is None or juror.price is None else juror.price
        again = (tokens * price[0] + open_pairs * ANSWER_TOKENS * price[1]) / 1e6
        facts["cost_at_most"] = round(most * once + len(JUROR_GATES) * again, 4)
    return facts
