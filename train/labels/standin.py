"""A stand-in for a judge's server: speaks the chat-completions protocol over HTTP and answers by a script.

It is for tests and for measuring what the client costs; it holds no model.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple


class Reply(NamedTuple):
    """What the server sends.

    Attributes
    ----------
    content : str
        The message of the completion.
    status : int
        Another status than 200 sends `content` as it is.
    headers : mapping
        Further headers.
    raw : bytes, optional
        Sent as the body instead of a completion.
    cut : int, optional
        Close the connection after so many bytes of the body.
    message : mapping
        Further fields of the completion's message.
    finish : str
        Why the completion ended.
    """

    content: str = ""
    status: int = 200
    headers: Mapping[str, str] = {}
    raw: bytes | None = None
    cut: int | None = None
    message: Mapping[str, Any] = {}
    finish: str = "stop"


Script = Callable[[Mapping[str, Any]], Awaitable[Reply]]


class StandIn:
    """A server on a free port of the loopback interface, in a thread of its own, as a context manager.

    Attributes
    ----------
    url : str
        Base URL, up to "/v1".
    requests : list
        Bodies of the requests it got, in order.
    keys : list of str
        Their authorization headers, "" where there was none.
    in_flight, peak : int
        Requests under way, and the most there were at once.
    """

    def __init__(self, script: Script) -> None:
        """Make a server that answers each request body by awaiting `script`."""
        self.script = script
        self.requests: list[Mapping[str, Any]] = []
        self.keys: list[str] = []
        self.in_flight = self.peak = 0
        self.url = ""
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> StandIn:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        await self._stop.wait()
        server.close()  # asyncio.run cancels the connections that are still open

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client may go at any time, and so may this server.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append(body)
        self.keys.append(headers.get("authorization", ""))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            reply = await self.script(body)
        finally:
            self.in_flight -= 1
        data = reply.raw if reply.raw is not None else _body(body, reply)
        lines = [f"HTTP/1.1 {reply.status} -", "content-type: application/json", f"content-length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + data[: reply.cut])
        await writer.drain()
        return reply.cut is None


def _body(request: Mapping[str, Any], reply: Reply) -> bytes:
    if reply.status != 200:
        return reply.content.encode()
    prompt = sum(len(message["content"]) for message in request["messages"]) // 4
    completion = len(reply.content) // 2
    message = {"role": "assistant", "content": reply.content, **reply.message}
    return json.dumps(
        {
            "object": "chat.completion",
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reply.finish}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": completion},
        }
    ).encode()
