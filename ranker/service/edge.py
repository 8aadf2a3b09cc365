"""What every request passes first and last: its id, its key, the size of its body; headers, log line, counters."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ranker.service.logs import LOGGER
from ranker.service.metrics import Metrics
from ranker.service.settings import Settings

LOCKED = ("/v1/", "/info", "/metrics")  # what a key opens, where keys are set; the page and the health checks are free
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class RefusedError(Exception):
    """A request that gets an error for an answer.

    Attributes
    ----------
    status : int
    kind : str
        Stable word for programs.
    more : mapping
        Further fields of the body, such as the limit.
    headers : mapping of str to str
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        more: Mapping[str, Any] = MappingProxyType({}),
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.more, self.headers = status, kind, more, headers


def limited(name: str, allowed: int, found: int | None = None) -> dict[str, Any]:
    """Return the fields of an error that a limit made: the setting's name, its value, and what the request had."""
    return {"limit": name, "allowed": allowed, **({} if found is None else {"found": found})}


def error_response(refused: RefusedError, request_id: str) -> Response:
    """Return an error as {"error", "error_type", "request_id", ...}."""
    body = {"error": str(refused), "error_type": refused.kind, "request_id": request_id, **refused.more}
    return Response(json.dumps(body), refused.status, dict(refused.headers), "application/json")


def too_large(limit: int) -> RefusedError:
    """Return the error for a body of more bytes than allowed."""
    return RefusedError(413, "too_large", f"the body has more than {limit} bytes", more=limited("max_body", limit))


def no_key() -> RefusedError:
    """Return the error for a request without a key that opens the service."""
    message = "a key is needed: Authorization: Bearer KEY, or X-API-Key: KEY"
    return RefusedError(401, "no_key", message, headers={"WWW-Authenticate": "Bearer"})


class Lock:
    """API keys, known by their SHA-256 only; every one is compared, each in constant time."""

    def __init__(self, digests: Sequence[str]) -> None:
        self._digests = [digest.encode() for digest in digests]

    def opens(self, headers: Headers) -> bool:
        """Whether the headers carry a key: `Authorization: Bearer KEY` or `X-API-Key: KEY`; true where none is set."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest().encode()
        matches = [hmac.compare_digest(known, digest) for known in self._digests]
        return any(matches) or not self._digests


class Edge:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, *, settings: Settings, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics
        self._max_body = settings.max_body
        self._lock = Lock(settings.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        state = scope.setdefault("state", {})
        request_id = state["request_id"] = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                out = MutableHeaders(scope=message)
                out["X-Request-Id"] = request_id
                out.append("Server-Timing", f"total;dur={1000 * (time.perf_counter() - start):.1f}")
                for name, value in HEADERS.items():
                    out.setdefault(name, value)
                out.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            try:
                locked = scope["path"].startswith(LOCKED) and not self._lock.opens(headers)
                body = None if locked else await self._body(headers, receive)
                if locked:
                    await error_response(no_key(), request_id)(scope, receive, send_on)
                elif body is not None:
                    await self.app(scope, _replay(body, receive), send_on)
            except RefusedError as refused:
                await error_response(refused, request_id)(scope, receive, send_on)
            except Exception:
                LOGGER.exception("request failed", extra={"fields": {"request_id": request_id}})
                if status:
                    raise  # the answer has begun; only the connection can tell the client now
                message = "something went wrong here; the log has it under this request_id"
                await error_response(RefusedError(500, "internal", message), request_id)(scope, receive, send_on)
        finally:
            self._count(scope, request_id, status, time.perf_counter() - start)

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """Return the body, read no further than the limit; None where the client left."""
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body:
            raise too_large(self._max_body)
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body:
                raise too_large(self._max_body)
            more = message.get("more_body", False)
        return b"".join(parts)

    def _count(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.requests.labels(route, method, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        if not route.startswith("/health"):
            fields = {"request_id": request_id, "method": method, "route": route, "status": status}
            fields |= {"ms": round(1000 * seconds, 1), **scope["state"].get("log", {})}
            LOGGER.info("request", extra={"fields": fields})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was read, then what follows it: that the client left."""
    waiting = [body]

    async def receive_on() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return receive_on
