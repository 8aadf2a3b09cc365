"""A model behind an OpenAI-compatible endpoint: one request, one answer, with bounded retries and back-off."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from ranker.core.artifacts import digest
from ranker.core.errors import ArgumentError, RankerError, ResourceError, missing_extra

if TYPE_CHECKING:
    import httpx

MAX_WAIT = 60.0  # seconds, also where a server asks for more
# So many requests in a row that all ended without an answer mean a server that is gone, or one that was never right.
HOPELESS = 64
FATAL = {301, 302, 307, 308, 401, 403, 404, 405}  # the next request would fare no better
LOST = {408, 409, 425, 429, 500, 502, 503, 504, 529}  # the same request may succeed later
T = TypeVar("T")
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True)
class Endpoint:
    """Where a model answers, how long one waits for it, and what it may cost.

    Attributes
    ----------
    url : str
        Base URL up to the version, such as "http://localhost:8000/v1".
    model : str
        Name the server knows the model by; answers are cached under it.
    key_env : str
        Environment variable with the API key. Not set: no key is sent.
    timeout : float
        Seconds for one request, from connecting to the last byte.
    retries : int
        Further tries after the first.
    backoff : float
        Seconds before the first further try, on average three quarters of it; doubled each time.
    extra : mapping
        Further fields of the request body; they belong to the model's identity in the cache.
    price : tuple of float, optional
        Price per million prompt and completion tokens, in any currency.
    max_cost : float, optional
        What a client may spend, in the same currency; a request that might pass it is not sent.
    """

    url: str
    model: str
    key_env: str = "JUDGE_API_KEY"
    timeout: float = 60.0
    retries: int = 4
    backoff: float = 0.5
    extra: Mapping[str, Any] = field(default_factory=dict)
    price: tuple[float, float] | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        if self.max_cost is not None and self.price is None:
            raise ArgumentError("a limit on the cost needs the price per million prompt and completion tokens")
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ArgumentError(f"{self.url!r} is not a base URL; give one such as http://localhost:8000/v1")

    @property
    def identity(self) -> str:
        """Name that answers are cached under."""
        return f"{self.model}+{digest(dict(self.extra))[:8]}" if self.extra else self.model


class Answer(NamedTuple, Generic[T]):
    """The end of one request: what was read, or None and the reason; and the tokens it took, all tries together.

    `lost` tells that the endpoint gave no completion at all.
    """

    value: T | None
    reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    lost: bool = False


class _Failure(NamedTuple):
    """A try that gave no answer: why, whether the server can be blamed, whether to try again, and what it asked for."""

    reason: str
    lost: bool
    again: bool = True
    wait: float = 0.0


@dataclass
class Usage:
    """What was asked of an endpoint in this run.

    Attributes
    ----------
    calls, retries : int
        Requests sent, and how many of them were further tries.
    failures : Counter
        Tries without an answer, by kind.
    in_flight, peak : int
        Requests under way now, and the most there were at once.
    reserved : float
        What those under way may cost.
    """

    calls: int = 0
    retries: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    in_flight: int = 0
    peak: int = 0
    reserved: float = 0.0

    def cost(self, price: tuple[float, float] | None) -> float | None:
        """Return the cost at a price per million prompt and completion tokens, None without a price."""
        if price is None:
            return None
        return (self.prompt_tokens * price[0] + self.completion_tokens * price[1]) / 1e6


class ChatClient:
    """Puts requests to one endpoint.

    Use it as an asynchronous context manager. Connections are kept open between requests; there are as many as there
    ever were requests at once.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Make a client; nothing is sent yet.

        Raises
        ------
        PrerequisiteError
            If httpx is not installed.
        ArgumentError
            If the key cannot be sent.
        """
        try:
            import httpx
        except ImportError as error:
            raise missing_extra("httpx", "llm") from error
        self.endpoint = endpoint
        self.usage = Usage()
        self._errors = httpx.RequestError
        self._answered = False
        self._streak = 0
        key = os.environ.get(endpoint.key_env, "").strip()
        if not key.isascii():
            raise ArgumentError(f"the key in ${endpoint.key_env} is not plain ASCII; copy it anew")
        self._connection = partial(
            httpx.AsyncClient,
            headers={"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})},
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
            # One limit over the whole request stands in _try: a server that drips bytes would escape httpx's own.
            timeout=httpx.Timeout(None),
            trust_env=urlsplit(endpoint.url).hostname not in LOOPBACK,  # no proxy to one's own machine
            verify=httpx.create_ssl_context(),  # made once: reading the certificates takes tens of milliseconds
        )
        # One client per connection: a shared pool looks at every connection for every request, which at 64 took 30 ms.
        self._idle: list[httpx.AsyncClient] = []
        self._url = httpx.URL(endpoint.url.rstrip("/") + "/chat/completions")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._idle:
            await client.aclose()

    async def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        read: Callable[[str | None], T],
        *,
        max_tokens: int,
        **fields: object,
    ) -> Answer[T]:
        """Ask for a completion at temperature 0, trying again where that may help.

        Parameters
        ----------
        messages : sequence of mapping
            Of role and content.
        read : callable
            Makes the answer of the completion's text; raises ValueError where it is none.
        max_tokens : int
            Of the completion.
        fields
            Further fields of the body; the endpoint's own `extra` counts before them.

        Returns
        -------
        Answer
            Its value is None where no try gave one.

        Raises
        ------
        ResourceError
            If the endpoint refuses all requests (address, key, model), or seems to be gone.
        RankerError
            If the request might cost more than is left to spend.
        """
        asked = {"model": self.endpoint.model, "messages": messages, "temperature": 0, "max_tokens": max_tokens}
        body = json.dumps({**asked, **fields, **self.endpoint.extra}).encode()
        prompt = completion = 0
        for attempt in range(self.endpoint.retries + 1):
            self.usage.retries += attempt > 0
            with self._reserved(len(body), max_tokens):
                got = await self._try(read, body)
            prompt, completion = prompt + got[1], completion + got[2]
            if not isinstance(got[0], _Failure):
                self._answered, self._streak = True, 0
                return Answer(got[0], "", prompt, completion)
            failure = got[0]
            self.usage.failures[failure.reason.split(":", 1)[0]] += 1
            if not failure.again or attempt == self.endpoint.retries:
                break
            await asyncio.sleep(self._pause(attempt, failure.wait))
        self._give_up_if_hopeless(failure)
        return Answer(None, failure.reason, prompt, completion, failure.lost)

    @contextmanager
    def _reserved(self, size: int, max_tokens: int) -> Iterator[None]:
        """Set aside what a request may cost for as long as it is under way; raise where that is not left.

        A prompt of `size` bytes is taken for size / 3 tokens, more than English text has.
        """
        usage, limit, price = self.usage, self.endpoint.max_cost, self.endpoint.price
        most = 0.0 if price is None else (size / 3 * price[0] + max_tokens * price[1]) / 1e6
        spent = usage.cost(price) or 0.0
        if limit is not None and spent + usage.reserved + most > limit:
            raise RankerError(
                f"{self.endpoint.model}: {spent:.4f} of at most {limit:g} is spent, and the next request may cost "
                f"{most:.4f}; the answers so far are kept: raise max_cost and run the same command again"
            )
        usage.reserved += most
        try:
            yield
        finally:
            usage.reserved -= most

    def _pause(self, attempt: int, asked: float) -> float:
        """Return the seconds to wait: doubled each time, spread so that many do not come back at once."""
        own = self.endpoint.backoff * 2.0**attempt * random.uniform(0.5, 1.0)
        return min(max(own, asked), MAX_WAIT)

    def _give_up_if_hopeless(self, failure: _Failure) -> None:
        """Raise after too many requests in a row without an answer.

        Once the endpoint has answered, malformed and refused answers no longer count: one text may get 2,000 of them.
        """
        self._streak += failure.lost or not self._answered
        if self._streak >= HOPELESS:
            raise ResourceError(
                f"{self.endpoint.model} at {self.endpoint.url} gave no answer to {self._streak} requests in a row, the "
                f"last: {failure.reason}; the answers so far are kept: mend it and run the same command again"
            )

    async def _try(self, read: Callable[[str | None], T], body: bytes) -> tuple[T | _Failure, int, int]:
        """Send one request; return the answer or the failure, and the tokens of prompt and completion."""
        usage = self.usage
        usage.calls += 1
        usage.in_flight += 1
        usage.peak = max(usage.peak, usage.in_flight)
        client = self._idle.pop() if self._idle else self._connection()
        try:
            async with asyncio.timeout(self.endpoint.timeout):
                response = await client.post(self._url, content=body)
        except TimeoutError:
            return _Failure(f"timed out: after {self.endpoint.timeout:g} s", lost=True), 0, 0
        except self._errors as error:
            return _Failure(f"connection: {type(error).__name__} {error}".rstrip(), lost=True), 0, 0
        finally:
            usage.in_flight -= 1
            self._idle.append(client)
        if response.status_code != 200:
            return self._status(response), 0, 0
        return self._read(read, response)

    def _status(self, response: httpx.Response) -> _Failure:
        """Return the failure that a status other than 200 means; raise where no request can succeed."""
        status = response.status_code
        said = " ".join(response.text.split())[:200]
        if status in FATAL:
            raise ResourceError(
                f"{self._url} answers {status} {said!r}; check the base URL, the model name {self.endpoint.model!r} "
                f"and the key in ${self.endpoint.key_env}; the answers so far are kept"
            )
        if status in LOST or status >= 500:
            return _Failure(f"status {status}: {said}", lost=True, wait=_retry_after(response.headers))
        return _Failure(f"status {status}: {said}", lost=False, again=False)  # the request itself is at fault

    def _read(self, read: Callable[[str | None], T], response: httpx.Response) -> tuple[T | _Failure, int, int]:
        """Read the answer out of a chat completion."""
        try:
            value = response.json()
            choice = value["choices"][0]
            message = choice["message"]
            content = message.get("content")
            refusal = message.get("refusal")
            finish = choice.get("finish_reason")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            return _Failure(f"malformed: no chat completion but {response.text[:80]!r}", lost=False), 0, 0
        tokens = _tokens(value)
        self.usage.prompt_tokens += tokens[0]
        self.usage.completion_tokens += tokens[1]
        if refusal or finish == "content_filter":
            return _Failure(f"refused: {str(refusal or finish)[:80]}", lost=False), *tokens
        try:
            return read(content), *tokens
        except ValueError as error:
            return _Failure(f"malformed: {error}"[:200], lost=False), *tokens


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that a server asks to wait; 0 where it does not say so in seconds."""
    try:
        return max(0.0, float(headers.get("retry-after", "0")))
    except ValueError:
        return 0.0  # a date: the back-off of our own will do


def _tokens(value: Mapping[str, Any]) -> tuple[int, int]:
    """Return prompt and completion tokens that a completion states; 0 where it does not."""
    usage = value.get("usage")
    found = [usage.get(key) if isinstance(usage, dict) else 0 for key in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (number if type(number) is int and number > 0 else 0 for number in found)
    return prompt, completion
