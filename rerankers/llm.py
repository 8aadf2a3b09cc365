"""Hosted language models as rerankers, over any OpenAI-compatible endpoint: one list, or one pair, per request.

Every answer is kept in SQLite under model and prompt, so a run that stops loses nothing and the same run again costs
nothing. An answer that cannot be read leaves its candidates where they were; an endpoint that is gone, refuses the
request or has used up its cost stops the run with what to do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from ranker.core.answers import AnswerCache
from ranker.core.artifacts import cache_dir, digest
from ranker.core.chat import ChatClient, Endpoint
from ranker.core.errors import ArgumentError, InputError, RankerError, ResourceError
from ranker.core.metrics import GRADES
from ranker.core.options import number, one_of
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32
from ranker.core.views import view_texts
from rerankers.pairs import VIEWS
from rerankers.windows import places_to_scores, read_order, read_rating, windows

T = TypeVar("T", int, str)
MODES = ("listwise", "pointwise")
TEXT_CHARACTERS = 4000  # of a query or a skill in a prompt
PROBE = ("We weld steel frames.", ("weld metal", "sing"))
_LOG = logging.getLogger(__name__)

SCALE = """\
A skill fits best if the text asks for it in so many words. Then come skills that the text implies at the same level of
detail, then those that are related but broader, narrower or incidental, then those of the same occupation whose
activity the text does not mention. Skills of other lines of work fit worst, also if they share words with the text."""
SYSTEM = {
    "listwise": f"""\
You order skills by how well they fit a text about work. {SCALE}
Answer with the numbers of all skills, best first, with ">" between them, such as 3 > 1 > 2, and nothing else.""",
    "pointwise": f"""\
You rate how well a skill fits a text about work. {SCALE}
Answer with one whole number from 0 to 100 and nothing else: 100 asked for, 75 implied, 50 related, 25 same occupation
only, 0 another line of work.""",
}


class Example(NamedTuple):
    """A text with graded skills that the model is shown first."""

    text: str
    skills: tuple[tuple[str, int], ...]


def read_examples(path: Path) -> list[Example]:
    """Read examples, a JSON object per line: {"text": ..., "skills": [{"label": ..., "grade": 0 to 4}, ...]}.

    They must come from training folds: a model that is shown a graded query is not to be measured on it.

    Raises
    ------
    ResourceError
        If the file is not there.
    InputError
        If a line is none, with its number.
    """
    if not path.is_file():
        raise ResourceError(f"examples: no file {path}")
    found = []
    for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            skills = tuple((str(skill["label"]), skill["grade"]) for skill in value["skills"])
            text = value["text"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {at}: not an example ({type(error).__name__}: {error})") from error
        if not isinstance(text, str) or not skills or any(grade not in GRADES for _, grade in skills):
            raise InputError(f"{path}, line {at}: an example needs a text, and skills with grades from 0 to 4")
        found.append(Example(text, skills))
    return found


def _line(text: str) -> str:
    """Return a text on one line, so that nothing in it can look like another line of the prompt."""
    return " ".join(text.split())[:TEXT_CHARACTERS]


def list_prompt(text: str, skills: Sequence[str]) -> str:
    """Return the message that shows a text and its numbered candidates."""
    return "\n".join([f"Text: {_line(text)}", *(f"[{i}] {_line(skill)}" for i, skill in enumerate(skills, 1))])


def pair_prompt(text: str, skill: str) -> str:
    """Return the message that shows a text and one candidate."""
    return f"Text: {_line(text)}\nSkill: {_line(skill)}"


def shots(examples: Sequence[Example], mode: str) -> list[dict[str, str]]:
    """Return the system message, and each example as a question and its right answer."""
    turns: list[tuple[str, str]] = []
    for text, skills in examples:
        if mode == "pointwise":
            turns += [(pair_prompt(text, label), str(25 * grade)) for label, grade in skills]
        else:
            order = np.argsort([-grade for _, grade in skills], kind="stable")
            answer = " > ".join(str(place + 1) for place in order)
            turns.append((list_prompt(text, [label for label, _ in skills]), answer))
    messages = [{"role": "system", "content": SYSTEM[mode]}]
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


class LLMColumn:
    """A hosted model's order or rating.

    Parameters
    ----------
    name : str
        Feature prefix.
    url, model : str
        Base URL up to the version, and the name the server knows the model by.
    mode : {"listwise", "pointwise"}
        Listwise: the score is n for the first of n candidates and 1 for the last, and starts from the pool's order.
        Pointwise: a rating from 0 to 100; a candidate without one gets the mean of its query's.
    view : {"label", "label_description"}
        What is shown of a skill.
    window, step : int
        Candidates of a list, and how far the next window is moved; neighbours share `window - step`.
    examples : str, optional
        File of examples, see `read_examples`.
    key_env : str
        Environment variable with the API key; not set, no key is sent.
    concurrency : int
        Requests under way at once.
    timeout, retries, backoff
        See `ranker.core.chat.Endpoint`.
    price : list of two numbers, optional
        Per million prompt and completion tokens.
    max_cost : float, optional
        What this column may spend in one run, in the currency of `price`.
    max_tokens : int, optional
        Of an answer; models that think first need more than the default.
    cache : str, optional
        File of the answers; default in the cache folder.
    parameters : int, optional
        Size of the model where it is known; without it, it is missing in the system's size.
    extra : dict
        Further fields of a request; part of the cache's key.

    Raises
    ------
    ArgumentError, ResourceError, InputError, PrerequisiteError
        A value that is not allowed; a file that is not there or not readable; httpx not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str,
        model: str,
        mode: str = "listwise",
        view: str = "label_description",
        window: int = 20,
        step: int = 10,
        examples: str | None = None,
        key_env: str = "OPENAI_API_KEY",
        concurrency: int = 8,
        timeout: float = 60.0,
        retries: int = 4,
        backoff: float = 0.5,
        price: Sequence[float] | None = None,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        cache: str | None = None,
        parameters: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        one_of(mode, MODES, "mode")
        one_of(view, VIEWS, "view")
        number(window, 2, 1000, "window", whole=True)
        number(step, 1, window - 1, "step", whole=True)
        number(concurrency, 1, 1024, "concurrency", whole=True)
        number(timeout, 0.01, 86400, "timeout")
        number(retries, 0, 100, "retries", whole=True)
        if price is not None and (not isinstance(price, list | tuple) or len(price) != 2):
            raise ArgumentError(f"price: {price!r} is not two numbers, per million prompt and completion tokens")
        self.name, self.view, self.mode = name, view, mode
        self.window, self.step, self.parameters = window, step, parameters
        self._shots = shots([] if examples is None else read_examples(Path(examples).expanduser()), mode)
        self._max_tokens = max_tokens or (8 if mode == "pointwise" else 6 * window)
        endpoint = Endpoint(
            url, model, key_env, timeout, retries, backoff, dict(extra or {}),
            price=None if price is None else (float(price[0]), float(price[1])), max_cost=max_cost,
        )
        self.client = ChatClient(endpoint)
        self.unread = 0
        self._reason = ""
        self._version = digest([self._shots, self._max_tokens])[:16]
        self._cache = AnswerCache(Path(cache).expanduser() if cache else cache_dir() / "llm" / "answers.sqlite")
        self._gate = asyncio.Semaphore(concurrency)
        self._texts: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def fit(self, taxonomy: Taxonomy) -> None:
        """Take the skills' texts; nothing is sent."""
        self._texts = view_texts(taxonomy, self.view)

    def score(self, queries: Sequence[str], pool: Int32) -> Float32:
        """Return float32 of the pool's shape.

        Raises
        ------
        ResourceError
            If the endpoint is gone or refuses the requests; what was answered is kept.
        RankerError
            If the next request might cost more than is left.
        """
        if not self._texts:
            raise RankerError(f"column {self.name}: asked for scores before fit(taxonomy)")
        before = self.unread
        one = self._order if self.mode == "listwise" else self._rate
        skills = [[self._texts[row] for row in part] for part in pool]
        rows = self._run(_all([one(query, part) for query, part in zip(queries, skills, strict=True)]))
        if self.unread > before:
            text = "column %s: %d answers could not be read; their candidates stay where they were"
            _LOG.warning(text, self.name, self.unread - before)
        return np.array(rows, dtype=np.float32).reshape(pool.shape)

    def probe(self) -> None:
        """Ask about a text and two skills that are always the same, to see whether the endpoint answers at all.

        The answer is kept as any other: the same run again asks nothing.

        Raises
        ------
        ResourceError, RankerError
            As `score`; and if what is answered cannot be read.
        """
        text, skills = PROBE
        self._run(_all([(self._order if self.mode == "listwise" else self._rate)(text, skills)]))
        if self.unread:
            endpoint = self.client.endpoint
            raise ResourceError(
                f"column {self.name}: {endpoint.model} at {endpoint.url} does not answer as it is asked to "
                f"({self._reason}); check the model, max_tokens (a model that thinks first needs more) and extra"
            )

    def _run(self, work: Coroutine[Any, Any, list[list[float]]]) -> list[list[float]]:
        """Run requests on a loop of their own, so that a caller may have one too; connections outlive a call."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name=f"llm-{self.name}", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _order(self, text: str, skills: Sequence[str]) -> list[float]:
        """Return scores of a query's candidates: windows from the end to the start, each ordered by the model."""
        order = list(range(len(skills)))
        for start, end in windows(len(skills), self.window, self.step):
            part = order[start:end]
            message = list_prompt(text, [skills[place] for place in part])

            def read(said: str | None, n: int = len(part)) -> str:
                return " ".join(map(str, read_order(said, n)))

            answer = await self._ask(message, read)
            if answer is not None:
                order[start:end] = [part[int(place)] for place in answer.split()]
        return places_to_scores(order)

    async def _rate(self, text: str, skills: Sequence[str]) -> list[float]:
        """Return ratings of a query's candidates."""
        found = await _all([self._ask(pair_prompt(text, skill), read_rating) for skill in skills])
        known = [rating for rating in found if rating is not None]
        mean = float(np.mean(known)) if known else 0.0
        return [mean if rating is None else float(rating) for rating in found]

    async def _ask(self, message: str, read: Callable[[str | None], T]) -> T | None:
        """Return an answer from the cache or the endpoint, None where it cannot be read."""
        key = (self.client.endpoint.identity, self._version, digest(message))
        known = self._cache.get(*key)
        if known is not None:
            return cast(T, known)  # what this prompt's `read` made
        async with self._gate:
            got = await self.client.complete(
                [*self._shots, {"role": "user", "content": message}], read, max_tokens=self._max_tokens
            )
        if got.value is not None:
            self._cache.put(*key, got.value, (got.prompt_tokens, got.completion_tokens))
        elif got.lost:
            endpoint = self.client.endpoint
            raise ResourceError(
                f"column {self.name}: {endpoint.model} at {endpoint.url} gave no answer in {endpoint.retries + 1} "
                f"tries ({got.reason}); the answers so far are kept: mend it and run the same command again"
            )
        else:
            self.unread += 1
            self._reason = got.reason
        return got.value

    def backbones(self) -> dict[str, int]:
        """Return the model's size where the config states it."""
        identity = self.client.endpoint.identity
        return {} if self.parameters is None else {f"{identity}@{digest(identity)[:16]}": self.parameters}


A = TypeVar("A")


async def _all(work: Sequence[Coroutine[Any, Any, A]]) -> list[A]:
    """Return all results in order; the first error ends the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
