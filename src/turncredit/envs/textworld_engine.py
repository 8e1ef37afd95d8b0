"""The reference engine: TextWorld in worker processes, reused from a pool (extra `textworld`).

One game at a time per process, never threads; a worker that dies or hangs becomes an `EnvError`
that names it, and a fresh one takes its place. Workers end with this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import turncredit
from turncredit.core.errors import EnvError, MissingExtra
from turncredit.envs.household.episode import Frame

_START_SECONDS = 180.0  # the imports alone take seconds, more on a busy machine
_WORKER_MODULE = "turncredit.envs.textworld_worker"
_PACKAGE_PARENT = Path(turncredit.__file__).parents[1]
_IDLE = ("look", "inventory", "help", "examine")
_LOADS_PER_WORKER = 500  # TextWorld's reset leaks a little


class Worker:
    """One process. `request` is for one caller at a time."""

    def __init__(self) -> None:
        # Its own temporary folder: alfworld's import and TextWorld's libraries leave things there.
        self._scratch = Path(tempfile.mkdtemp(prefix="turncredit-textworld-"))
        paths = [str(_PACKAGE_PARENT), *filter(None, [os.environ.get("PYTHONPATH")])]
        surroundings = {
            **os.environ,
            "TMPDIR": str(self._scratch),
            "ALFWORLD_DATA": str(self._scratch),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                # -P: nothing in the user's folder may stand in for a module TextWorld imports.
                [sys.executable, "-P", "-m", _WORKER_MODULE, str(self._scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=surroundings,
            )
        self._buffer = b""
        self.loads = 0

    @property
    def _log(self) -> Path:
        return self._scratch / "log"

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    async def ready(self) -> None:
        """Wait until it has imported TextWorld.

        Raises:
            MissingExtra: TextWorld is not installed.
        """
        hello = await self._answer(_START_SECONDS, "its start")
        if missing := hello.get("missing"):
            self.kill()
            raise MissingExtra("the TextWorld engine", "textworld", missing)

    async def request(self, message: Mapping[str, str], seconds: float) -> Mapping[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            EnvError: the worker died, took too long (it is killed then), or reports a fault.
        """
        what = " ".join(f"{kind} {value!r}" for kind, value in message.items())
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._dead(what) from error
        answer = await self._answer(seconds, what)
        if "error" in answer:
            raise EnvError(f"TextWorld worker {self.pid}: {what}: {answer['error']}")
        return answer

    async def _answer(self, seconds: float, what: str) -> Mapping[str, Any]:
        try:
            return json.loads(await asyncio.wait_for(self._line(), seconds))
        except EOFError as error:
            raise self._dead(what) from error
        except TimeoutError as error:
            self.kill()
            raise EnvError(
                f"TextWorld worker {self.pid}: no answer to {what} within {seconds:g} s; killed"
            ) from error

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            await _readable(descriptor)
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _dead(self, what: str) -> EnvError:
        tail = self._log.read_text(errors="replace")[-400:].strip() if self._log.exists() else ""
        self.kill()
        code = self._process.returncode
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        words = f"; its last words: {tail}" if tail else ""
        return EnvError(f"TextWorld worker {self.pid} died ({cause}) during {what}{words}")

    def kill(self) -> None:
        """End the process now and remove what it left. Safe to call twice."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


class Pool:
    """At most `size` workers at a time (per event loop), started when first needed.

    Args:
        size: workers; an episode keeps one from start to close, further episodes wait.
        seconds: how long one load or step may take.
    """

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds = size, seconds
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._turns = weakref.WeakKeyDictionary()
        self._finalizer = weakref.finalize(self, _kill_all, self._all)  # also at exit

    async def acquire(self) -> Worker:
        """A ready worker, when it is this caller's turn.

        Raises:
            MissingExtra: TextWorld is not installed.
            EnvError: the worker does not start.
        """
        await self._turn().acquire()
        while self._idle:
            worker = self._idle.pop()
            if worker.alive():
                return worker
            self._all.discard(worker)
        if not self._finalizer.alive:
            self._turn().release()
            raise EnvError("the pool of TextWorld workers is closed; make a new environment")
        worker = Worker()
        self._all.add(worker)
        try:
            await worker.ready()
        except BaseException:
            self.release(worker, reuse=False)
            raise
        return worker

    def release(self, worker: Worker, *, reuse: bool) -> None:
        """Give a worker back; `reuse` only when it answered everything it was asked."""
        if reuse and worker.loads < _LOADS_PER_WORKER and self._finalizer.alive:
            self._idle.append(worker)
        else:
            worker.kill()
            self._all.discard(worker)
        self._turn().release()

    def close(self) -> None:
        """End all workers."""
        self._idle.clear()
        self._finalizer()

    def pids(self) -> list[int]:
        """Process ids of all workers, busy and idle."""
        return sorted(worker.pid for worker in self._all)

    def _turn(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        return self._turns.setdefault(loop, asyncio.Semaphore(self.size))


def _kill_all(workers: set[Worker]) -> None:
    for worker in workers:
        worker.kill()
    workers.clear()


class TextWorldPlayer:
    """Plays one game file on a worker of the pool. The worker is held from `open` to `close`."""

    def __init__(self, pool: Pool, path: Path) -> None:
        self._pool, self._path = pool, path
        self._worker: Worker | None = None
        self._sound = False  # no request is unanswered or failed: the worker may be reused
        self._shown = Frame("", (), False, "")

    async def open(self) -> Frame:
        """Take a worker and load the game into it."""
        self._worker = await self._pool.acquire()
        self._worker.loads += 1
        return await self._request({"load": str(self._path)}, "")

    async def act(self, command: str) -> Frame:
        """Run one command."""
        return await self._request({"step": command}, command.strip())

    async def _request(self, message: Mapping[str, str], command: str) -> Frame:
        if self._worker is None:
            raise EnvError(f"{self._path}: the episode is not open")
        self._sound = False
        answer = await self._worker.request(message, self._pool.seconds)
        self._sound = True
        # TextWorld does not name its state. The commands that led there do, if not uniquely: equal
        # keys mean equal states. Those that cannot change anything leave the key as it is.
        key, idle = self._shown.key, command.partition(" ")[0] in _IDLE
        if not key:
            key = _digest(answer["text"])
        elif command in self._shown.admissible and not idle:
            key = _digest(f"{key} {command}")
        self._shown = Frame(answer["text"], tuple(answer["admissible"]), answer["won"], key)
        return self._shown

    async def close(self) -> None:
        """Give the worker back. Safe to call twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.release(worker, reuse=self._sound)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
