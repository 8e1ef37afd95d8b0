"""What a run costs: tokens by kind and wall seconds by phase, per step and in all."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from turncredit.core.types import Usage

TOKENS = ("prefill", "cached", "sampled", "teacher", "trained")


class Ledger:
    """Counts for the step in progress and for the whole run.

    Tokens: `prefill` read as context, of which `cached` were free (None once a backend cannot
    tell), `sampled` by the student, `teacher` read when scoring (not part of `prefill`), `trained`
    forward and backward.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._student, self._teacher = Usage(), Usage()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._began = clock()
        self._past: dict[str, Any] = _nothing()

    @classmethod
    def resume(cls, records: Iterable[Mapping[str, Any]]) -> Ledger:
        """A ledger whose totals start from the records of earlier steps."""
        ledger = cls()
        for record in records:
            ledger._past = _sum(ledger._past, record)
        return ledger

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of the step; a phase entered again adds up."""
        began = self._clock()
        try:
            yield
        finally:
            self._seconds[name] += self._clock() - began

    def add(self, usage: Usage, *, teacher: bool = False) -> None:
        """Count what a call used."""
        if teacher:
            self._teacher += usage
        else:
            self._student += usage

    def end_step(self) -> dict[str, Any]:
        """Close the step: its record for `ledger.jsonl`. The next step starts from zero."""
        now = self._clock()
        both = self._student + self._teacher
        record = {
            "tokens": {
                "prefill": self._student.prefill,
                "cached": both.cached,
                "sampled": both.sampled,
                "teacher": self._teacher.prefill,
                "trained": both.trained,
            },
            "requests": both.requests,
            "seconds": {**self._seconds, "step": now - self._began},
        }
        self._past = _sum(self._past, record)
        self._student, self._teacher, self._began = Usage(), Usage(), now
        self._seconds.clear()
        return record

    def totals(self) -> dict[str, Any]:
        """All closed steps together, in the form of one record."""
        return _sum(_nothing(), self._past)


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """A record as flat scalars, `tokens/<kind>` and `time/<phase>`; unknown counts left out."""
    flat = {f"tokens/{kind}": n for kind, n in record["tokens"].items() if n is not None}
    return flat | {f"time/{phase}": seconds for phase, seconds in record["seconds"].items()}


def _nothing() -> dict[str, Any]:
    return {"tokens": dict.fromkeys(TOKENS, 0), "requests": 0, "seconds": {}}


def _sum(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    tokens: dict[str, int | None] = {}
    for kind in TOKENS:
        one, two = a["tokens"].get(kind, 0), b["tokens"].get(kind, 0)
        tokens[kind] = None if one is None or two is None else one + two
    seconds = dict(a["seconds"])
    for phase, value in b["seconds"].items():
        seconds[phase] = seconds.get(phase, 0.0) + value
    return {"tokens": tokens, "requests": a["requests"] + b["requests"], "seconds": seconds}
