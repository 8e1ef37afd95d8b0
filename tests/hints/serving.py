"""A real chat-completions server on this machine, whose answers are scripted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def completion(text: object, **usage: int) -> str:
    """A body as services give it."""
    body: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": text}}]}
    return json.dumps(body | ({"usage": usage} if usage else {}))


@dataclass
class Reply:
    """What the server does with one request."""

    body: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait: float = 0.0  # before answering
    drip: float = 0.0  # between the bytes of the body


@dataclass
class Service:
    """The requests so far: path, headers, body."""

    reply: Callable[[int, dict[str, Any]], Reply]
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    url: str = ""
    busiest: int = 0
    busy: int = 0


@contextmanager
def serving(reply: Callable[[int, dict[str, Any]], Reply]) -> Iterator[Service]:
    """Answer request n (from 0) with `reply(n, its body)` while in the block."""
    service, lock = Service(reply), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(service.requests)
                service.requests.append((self.path, dict(self.headers), body))
                service.busy += 1
                service.busiest = max(service.busiest, service.busy)
            answer = service.reply(number, body)
            time.sleep(answer.wait)
            with lock:
                service.busy -= 1
            with suppress(OSError):  # the client went away, as it should after its timeout
                self._send(answer)

        def _send(self, answer: Reply) -> None:
            data = answer.body.encode()
            self.send_response(answer.status)
            for name, value in ({"Content-Length": str(len(data))} | answer.headers).items():
                self.send_header(name, value)
            self.end_headers()
            pieces = [data] if not answer.drip else [bytes([b]) for b in data]
            for piece in pieces:
                self.wfile.write(piece)
                time.sleep(answer.drip)

        def log_message(self, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
