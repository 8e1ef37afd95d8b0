"""What a run costs: tokens by kind and wall seconds by phase, per step and in all.

A record may also say how many games were played and solved, the arithmetic done and its floor, and
money. What one record does not say is unknown in a sum of records, not zero.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from turncredit.core.errors import DataError
from turncredit.core.types import Usage

TOKENS = (
    "unique",
    "prefill",
    "cached",
    "sampled",
    "teacher",
    "teacher_unique",
    "teacher_cached",
    "trained",
)
_PARTS = ("games", "flops")  # of a record, whose numbers add up by name


@dataclass(slots=True)
class _Page:
    """The counts of one step that is open."""

    student: Usage = field(default_factory=Usage)
    teacher: Usage = field(default_factory=Usage)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class Ledger:
    """Counts for the steps in progress and for the whole run.

    Tokens: `prefill` computed as context of the student, `teacher` computed when scoring,
    `cached` read without computing, of both (None once a backend cannot tell), of which
    `teacher_cached` in scoring; `sampled`; `trained` forward and backward. `unique` and
    `teacher_unique` say how many there were to compute at least (`end_step` is told).

    Several steps may be open at once, each under its key; counts under the key None belong to the
    step that ends next.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._pages: defaultdict[int | None, _Page] = defaultdict(_Page)
        self._began = clock()
        self._closed = 0  # the last step that ended
        self._past: dict[str, Any] | None = None

    @classmethod
    def resume(cls, records: Iterable[Mapping[str, Any]]) -> Ledger:
        """A ledger whose totals start from the records of earlier steps.

        Raises:
            DataError: something among the records is none.
        """
        ledger = cls()
        for record in records:
            try:
                ledger._remember(record)
                ledger._closed = max(ledger._closed, record.get("step", 0))
            except (KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"ledger.jsonl: the record of step {record.get('step', '?')} is damaged "
                    f"({type(error).__name__}: {error})"
                ) from error
        return ledger

    def key(self, step: int | None) -> int | None:
        """Under which key counts for a step go: None (the next to end) once it has ended."""
        return step if step is not None and step > self._closed else None

    @contextmanager
    def phase(self, name: str, step: int | None = None) -> Iterator[None]:
        """Time a phase of a step; a phase entered again adds up, phases may overlap."""
        began = self._clock()
        try:
            yield
        finally:
            self._pages[self.key(step)].seconds[name] += self._clock() - began

    def add(self, usage: Usage, *, teacher: bool = False, step: int | None = None) -> None:
        """Count what a call used."""
        page = self._pages[self.key(step)]
        if teacher:
            page.teacher += usage
        else:
            page.student += usage

    def usage(self, step: int | None = None) -> tuple[Usage, Usage]:
        """What the student and the teacher of an open step used, with all under None."""
        pages = [self._pages[key] for key in {step, None}]
        return (
            sum((page.student for page in pages), Usage()),
            sum((page.teacher for page in pages), Usage()),
        )

    def elapsed(self) -> float:
        """Seconds since the last step ended."""
        return self._clock() - self._began

    def end_step(
        self, step: int | None = None, *, more: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Close a step: its record for `ledger.jsonl`.

        Args:
            step: its key.
            more: further parts of the record; its `tokens` join those counted here.
        """
        more = dict(more or {})
        student, teacher = self.usage(step)
        seconds = defaultdict(float)
        for key in {step, None}:
            for phase, value in self._pages.pop(key, _Page()).seconds.items():
                seconds[phase] += value
        both = student + teacher
        record = {
            "tokens": {
                "prefill": student.prefill,
                "cached": both.cached,
                "sampled": both.sampled,
                "teacher": teacher.prefill,
                "teacher_cached": teacher.cached,
                "trained": both.trained,
                **more.pop("tokens", {}),
            },
            "requests": both.requests,
            "seconds": {**seconds, "step": self.elapsed()},
            **more,
        }
        self._began, self._closed = self._clock(), max(self._closed, step or 0)
        self._remember(record)
        return record

    def totals(self) -> dict[str, Any]:
        """All closed steps together, in the form of one record; None where something is unknown."""
        return dict(self._past or _nothing())

    def _remember(self, record: Mapping[str, Any]) -> None:
        self._past = _total(record) if self._past is None else _sum(self._past, _total(record))


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """A record as flat scalars; unknown counts are left out.

    `tokens/<kind>`, `time/<phase>` and `time/floor`, `flops/done`, `flops/floor` and
    `flops/ratio`, `money/<currency>` and what that is per solved game.
    """
    flat = {f"tokens/{kind}": n for kind, n in record["tokens"].items() if n is not None}
    flat |= {f"time/{phase}": seconds for phase, seconds in record["seconds"].items()}
    if flops := record.get("flops"):
        flat |= {f"flops/{name}": value for name, value in flops.items()}
        if flops["floor"]:
            flat["flops/ratio"] = flops["done"] / flops["floor"]
    if (floor := record.get("floor_seconds")) is not None:
        flat["time/floor"] = floor
    if money := record.get("money"):
        name = f"money/{money['currency'].lower()}"
        flat[name] = money["amount"]
        if solved := record.get("games", {}).get("solved"):
            flat[f"{name}_per_solved_game"] = money["amount"] / solved
    return flat


def _nothing() -> dict[str, Any]:
    return {"tokens": dict.fromkeys(TOKENS, 0), "requests": 0, "seconds": {}, "steps": 0}


def _total(record: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of one record: every part is there, None where the record does not have it."""
    return {
        "tokens": {kind: record["tokens"].get(kind) for kind in TOKENS},
        "requests": record["requests"],
        "seconds": dict(record["seconds"]),
        "steps": 1,
        **{part: record.get(part) for part in (*_PARTS, "floor_seconds", "money")},
    }


def _sum(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Two sums together."""
    one, two = a["money"], b["money"]
    same = one and two and one["currency"] == two["currency"]
    return {
        "tokens": {kind: _plus(a["tokens"][kind], b["tokens"][kind]) for kind in TOKENS},
        "requests": a["requests"] + b["requests"],
        "seconds": _added(a["seconds"], b["seconds"]),
        "steps": a["steps"] + b["steps"],
        **{part: _added(a[part], b[part]) if a[part] and b[part] else None for part in _PARTS},
        "floor_seconds": _plus(a["floor_seconds"], b["floor_seconds"]),
        "money": {**one, "amount": one["amount"] + two["amount"]} if same else None,
    }


def _plus(one: float | None, two: float | None) -> Any:
    return None if one is None or two is None else one + two


def _added(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in {**a, **b}}
