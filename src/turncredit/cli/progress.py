"""What a person sees while a run goes on: one live line, and one lasting line per update."""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

from turncredit.cli.costs import lines
from turncredit.loop.listener import Listener

_SILENCE = 1800.0  # seconds in one phase after which every stack is printed: something hangs


class Terminal(Listener):
    """Writes to `stream`; the live line only on a terminal, so that logs stay readable."""

    def __init__(self, max_steps: int, *, label: str = "", stream: TextIO | None = None) -> None:
        self._max, self._label = max_steps, f"{label} " if label else ""
        self._out = stream or sys.stderr
        self._live = self._out.isatty()
        self._began = time.monotonic()
        self._where = ""
        self._header = False

    def phase(self, step: int, name: str) -> None:
        """Show where the update is, and wind the watchdog up again."""
        if self._out is sys.stderr:
            with suppress(OSError, ValueError):  # a captured stderr has no descriptor
                faulthandler.dump_traceback_later(_SILENCE, repeat=True, file=self._out)
        self._where = f"{self._label}update {step}/{self._max}  {name}"
        self._show(self._where)

    def progress(self, done: int, of: int) -> None:
        """Show how far the rollout is."""
        width = 20
        bar = "█" * (width * done // of)
        self._show(f"{self._where} {bar:·<{width}} {done}/{of}")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """One lasting line."""
        if not self._header:
            self._header = True
            self._print(
                f"{self._label}update  success  mixed  turns  invalid     loss   ratio  evidence"
                "  seconds"
            )
        loss, ratio = metrics.get("train/loss"), metrics.get("train/ratio_max")
        invalid = metrics.get("trajectory/invalid_format_mean", 0.0) + metrics.get(
            "trajectory/inadmissible_mean", 0.0
        )
        self._print(
            f"{self._label}{step:>3}/{self._max:<3} {metrics.get('reward/success_rate', 0):7.3f}"
            f"  {metrics['reward/mixed_groups']:2.0f}/{metrics['reward/groups']:<2.0f}"
            f"  {metrics.get('trajectory/turns_mean', 0):5.1f}  {invalid:7.2f}"
            f"  {_number(loss)}  {_number(ratio, 6, 3)}"
            f"  {_number(metrics.get('opsd/evidence_abs_mean'), 8, 3)}"
            f"  {metrics.get('time/step', 0):7.1f}"
        )

    def saved(self, step: int, record: Mapping[str, Any]) -> None:
        """Where the checkpoint is."""
        self._print(f"Saved state: {record['state']}")
        self._print(f"Saved sampler weights: {record['sampler']}")

    def note(self, text: str) -> None:
        """A remark."""
        self._print(f"note: {text}")

    def costs(self, totals: Mapping[str, Any], priced: str) -> None:
        """A few lines at the end."""
        for line in lines(totals, priced):
            self._print(f"{self._label}{line}")

    def _show(self, text: str) -> None:
        if self._live:
            elapsed = time.monotonic() - self._began
            self._out.write(f"\r\x1b[2K{text}  {elapsed:.0f} s")
            self._out.flush()

    def _print(self, text: str) -> None:
        clear = "\r\x1b[2K" if self._live else ""
        self._out.write(f"{clear}{text}\n")
        self._out.flush()


def _number(value: float | None, width: int = 7, digits: int = 4) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"
