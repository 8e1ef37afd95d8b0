"""`kill`, and so a cluster, ends a command as Ctrl-C does: saved, with its costs, resumable."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, KILLED = 130, 143  # exit statuses, as shells know them


@contextmanager
def kill_is_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Around a command; gives what says whether SIGTERM has come.

    Whoever has SIGTERM heard or ignored already keeps it so.
    """
    killed = False

    def told(_: int, frame: FrameType | None) -> None:
        nonlocal killed
        killed = True
        # Whoever listens to Ctrl-C now (an event loop ends its tasks in order) hears of this, too.
        interrupted = signal.getsignal(signal.SIGINT)
        if not callable(interrupted):  # a job in the background of a shell
            raise KeyboardInterrupt
        interrupted(signal.SIGINT, frame)

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield lambda: False
        return
    signal.signal(signal.SIGTERM, told)
    try:
        yield lambda: killed
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
