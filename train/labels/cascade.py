"""From answers to a grade: four gates in order, or one question; from many pairs to labels, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from ranker.core.answers import AnswerCache
from ranker.core.errors import RankerError
from train.labels.client import JudgeClient
from train.labels.gates import DIRECT, GATES, Pair, Question

JUROR_GATES = ("granularity", "replacement")
MODES = ("cascade", "direct")


One = TypeVar("One")


def jury(gate: str, judge: One, juror: One | None) -> tuple[One, ...]:
    """Return who is asked at a gate, in order."""
    return (judge,) if juror is None or gate not in JUROR_GATES else (judge, juror)


class Outcome(NamedTuple):
    """What became of a pair.

    Attributes
    ----------
    grade : int or None
        0 to 4; None where it is unjudged.
    gate : str
        The question that decided it, or that got no answer.
    reason : str
        Why it is unjudged, "" where it is not.
    """

    grade: int | None
    gate: str
    reason: str = ""


@dataclass
class Tally:
    """How far a run is.

    Attributes
    ----------
    pairs : int
        Pairs that are done.
    asked, cached : int
        Answers from an endpoint, and from the cache.
    unjudged : int
        Pairs without a grade.
    """

    pairs: int = 0
    asked: int = 0
    cached: int = 0
    unjudged: int = 0


@dataclass
class Judge:
    """Grades pairs, through the cache.

    Attributes
    ----------
    questions : mapping of str to Question
        From `gates.load_questions`.
    client : JudgeClient
        The judge.
    cache : AnswerCache
        Asked first; gets every answer.
    juror : JudgeClient, optional
        A second judge of the gates granularity and replacement. It is asked only where the first said yes, and both
        must agree: it can demote, never promote.
    mode : str
        "cascade", or "direct" for one question that gives the grade.
    """

    questions: Mapping[str, Question]
    client: JudgeClient
    cache: AnswerCache
    juror: JudgeClient | None = None
    mode: str = "cascade"
    tally: Tally = field(default_factory=Tally)

    async def grade(self, pair: Pair) -> Outcome:
        """Return the grade of a pair: the number of gates passed in a row.

        A question that gets no answer leaves the pair unjudged, whatever came before: its grade is not known.
        """
        if self.mode == DIRECT:
            answer, reason = await self._answer(self.client, self.questions[DIRECT], pair)
            return Outcome(answer, DIRECT, reason)
        for grade, gate in enumerate(GATES):
            for client in jury(gate, self.client, self.juror):
                answer, reason = await self._answer(client, self.questions[gate], pair)
                if answer is None:
                    return Outcome(None, gate, reason)
                if not answer:
                    return Outcome(grade, gate)
        return Outcome(len(GATES), GATES[-1])

    async def _answer(self, client: JudgeClient, question: Question, pair: Pair) -> tuple[int | None, str]:
        """Return an answer from the cache or the endpoint, or None and why there is none."""
        key = (client.endpoint.identity, question.version, question.pair_key(pair))
        known = self.cache.get(*key)
        if known is not None:
            self.tally.cached += 1
            return int(known), ""
        got = await client.ask(question, pair)
        if got.value is None:
            return None, got.reason
        self.tally.asked += 1
        return int(self.cache.put(*key, got.value, (got.prompt_tokens, got.completion_tokens))), ""


def decided(
    cache: AnswerCache, questions: Mapping[str, Question], pair: Pair, *, judge: str, juror: str | None, mode: str
) -> bool:
    """Tell whether the answers of a judge and a juror, by identity, that are in the cache decide a pair."""
    for name in (DIRECT,) if mode == DIRECT else GATES:
        for identity in jury(name, judge, juror):
            answer = cache.get(identity, questions[name].version, questions[name].pair_key(pair))
            if answer is None:
                return False
            if mode != DIRECT and not answer:
                return True
    return True


async def grade_all(
    judge: Judge,
    pairs: Iterable[Pair],
    keep: Callable[[Pair, Outcome], None],
    *,
    concurrency: int = 64,
    progress: Callable[[], None] | None = None,
) -> None:
    """Grade pairs, many at a time.

    Parameters
    ----------
    pairs : iterable of Pair
        Taken as needed, in order; a generator is never held in memory.
    keep : callable
        Told each pair and what became of it, in the order in which they end.
    concurrency : int
        Pairs under way at once; as each has one request at a time, also the requests in flight.
    progress : callable, optional
        Called after each pair.

    Raises
    ------
    RankerError
        Whatever makes it pointless to go on; the answers so far are in the cache.
    """
    source = iter(pairs)

    async def work() -> None:
        for pair in source:  # shared: each worker takes the next pair that nobody has
            outcome = await judge.grade(pair)
            judge.tally.pairs += 1
            judge.tally.unjudged += outcome.grade is None
            keep(pair, outcome)
            if progress is not None:
                progress()
            await asyncio.sleep(0)  # a run of cached pairs must not keep the others from their replies

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except ExceptionGroup as errors:
        ours, others = errors.split(RankerError)
        if ours is None or others is not None:
            raise
        first: BaseException = ours
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None
