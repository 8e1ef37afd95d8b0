"""`turncredit serve-loopback` in a process of its own, as the pages start it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def serving(words: Sequence[str], end: signal.Signals = signal.SIGTERM) -> Iterator[str]:
    """Start it by the words of a page, on a free port, and end it by a signal; its address."""
    words = [*words, "--threads", "1"]
    words[words.index("--port") + 1] = "0"
    command = [sys.executable, "-m", "turncredit.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found is not None
        try:
            yield found[0]
        finally:
            process.send_signal(end)
            process.wait(60)
        assert "would have cost" in process.stdout.read()
        assert process.returncode == 0
