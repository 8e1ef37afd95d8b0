"""`turncredit` commands in processes of their own, which signals end, on a service in this one."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from run_rig import TOKENIZER

from turncredit.backends.hosted import session
from turncredit.backends.loopback.faults import Fault, Plan
from turncredit.cli.main import main as turncredit
from turncredit.cli.progress import Terminal

FAREWELL_S = 2.0
LONGEST_S = 100.0  # of a command, on a busy machine


# ── inside the command's process ─────────────────────────────────────────────────────────────


def command(argv: Sequence[str], folder: Path) -> None:
    """Run it as a shell would; what it prints goes to `folder / "log.txt"`."""
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Whoever starts tests in the background of a shell has them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    session.FAREWELL_S = FAREWELL_S
    for name in ("pytrio", "tinker"):
        if name in sys.modules:
            backend: Any = __import__(f"turncredit.backends.{name}.backend", fromlist=["backend"])
            backend.open_tokenizer = lambda *_: TOKENIZER
    phase = Terminal.phase

    def noting(self: Terminal, step: int, name: str) -> None:
        (folder / f"at-{step}-{name}").touch()
        phase(self, step, name)

    Terminal.phase = noting  # type: ignore[method-assign]
    sys.exit(turncredit(argv))


# ── outside ──────────────────────────────────────────────────────────────────────────────────


class Sends(Plan):
    """Signals for a process at the nth request of an address, once `armed` says so.

    Everything asked from then on is slow, so that much is under way.

    Attributes:
        victim: the process; 0: none yet.
        sent: when, in seconds of the monotonic clock; first, when that request came.
        met: when each request came, and its address.
    """

    def __init__(
        self, path: str, nth: int, signals: Sequence[int], armed: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._path, self._nth, self.signals, self._armed = path, nth, signals, armed
        self.victim = 0
        self.sent: list[float] = []
        self.met: list[tuple[float, str]] = []

    def meet(self, path: str) -> Fault | None:
        self.met.append((time.monotonic(), path))
        fault, own = super().meet(path), self._met(path)
        return fault or own

    def _met(self, path: str) -> Fault | None:
        if not self.victim or self._nth < 1 or not self._armed():
            return Fault("delay", seconds=0.5) if self.sent else None
        self._nth -= bool(re.search(self._path, path))
        if self._nth == 0:
            for n, number in enumerate(self.signals):
                threading.Timer(0.05 + 0.3 * n, self._send, (number,)).start()
            self.sent.append(time.monotonic())
        return Fault("delay", seconds=0.5)

    def _send(self, number: int) -> None:
        try:
            os.kill(self.victim, number)
        except ProcessLookupError:
            return
        self.sent.append(time.monotonic())


def ran(argv: Sequence[str], folder: Path, plan: Any = None) -> tuple[int, str]:
    """Exit status and words of a command; `plan` gets to know its process."""
    (folder / "log.txt").unlink(missing_ok=True)
    process: Any = multiprocessing.get_context("forkserver").Process(
        target=command, args=(argv, folder)
    )
    process.start()
    if plan is not None:
        plan.victim = process.pid
    process.join(LONGEST_S)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
    said = (folder / "log.txt").read_text()
    assert status is not None, f"it did not end: {said[-3000:]}"
    return status, said
