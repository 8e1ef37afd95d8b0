"""A small HTTP/1.1 server for loopback services: asyncio, kept-alive connections, 127.0.0.1 only.

It runs an event loop in a thread of its own, so that a blocking client in the same process can
talk to it. Everything a service does happens in that one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from turncredit.backends.loopback.faults import Fault, Plan

_MAX_HEAD = 64 * 1024
_START_S = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names are lower-case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; an empty body is an empty object."""
        return json.loads(self.body) if self.body else {}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """As bytes of HTTP/1.1."""
        try:
            phrase = HTTPStatus(self.status).phrase
        except ValueError:
            phrase = "Unknown"
        lines = [
            f"HTTP/1.1 {self.status} {phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def json_reply(value: Any, status: int = 200, **headers: str) -> Reply:
    """An answer in JSON."""
    return Reply(status, json.dumps(value).encode(), headers=headers)


Handler = Callable[[Request], Awaitable[Reply]]


class Server:
    """Answers requests with `handle` until stopped; usable as a context manager.

    Args:
        handle: called in the server's loop, any number at once.
        port: 0 picks a free one.
        faults: what goes wrong on the way, if anything.
        closing: awaited in the server's loop at the end.
    """

    def __init__(
        self,
        handle: Handler,
        *,
        port: int = 0,
        faults: Plan | None = None,
        closing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._handle, self._port, self._closing = handle, port, closing
        self.faults = faults or Plan()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        self._thread.start()
        self.call(self._listen())

    def stop(self) -> None:
        """Close every connection and end the loop. Safe to call twice."""
        if self._loop.is_closed() or not self._thread.is_alive():
            return
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    def call(self, work: Any) -> Any:
        """Run a coroutine in the server's loop and wait for it here."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(
            self._connection, "127.0.0.1", self._port, limit=_MAX_HEAD
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._listener:
            self._listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._closing:
            await self._closing()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (request := await _read(reader)) is not None:
                if not await self._answer(request, writer):
                    break
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass  # the client, or the server, hung up
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False ends the connection."""
        fault = self.faults.meet(request.path)
        reply = await self._reply(request, fault)
        if reply is None:
            writer.transport.abort()
            return False
        writer.write(reply.encode())
        await writer.drain()
        return request.headers.get("connection", "").lower() != "close"

    async def _reply(self, request: Request, fault: Fault | None) -> Reply | None:
        """What the client gets; None: nothing, its connection breaks."""
        if fault is None:
            return await self._handle(request)
        await asyncio.sleep(fault.seconds)
        if fault.kind == "status":
            headers = {"Retry-After": "0"} if fault.status in (429, 503) else {}
            return json_reply({"detail": fault.text, "code": fault.code}, fault.status, **headers)
        if fault.kind == "drop":
            return None
        if fault.kind == "duplicate":
            # As a proxy that sends a request again: the service sees it twice, the client once.
            await self._handle(request)
        reply = await self._handle(request)
        return None if fault.kind == "lose_reply" else reply


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection, or None at its end."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        path, _, query = target.partition("?")
        return Request(method, path, query, headers, await _body(reader, headers))
    return None


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    parts: list[bytes] = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readline()
    return b"".join(parts)
