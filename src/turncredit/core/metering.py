"""What a backend counts, and for whom: a meter tells of every use in the task that called.

And the way back: whoever pays for a call may refuse that it is made once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from turncredit.core.types import Usage


@dataclass(slots=True)
class Meter:
    """Tokens used by all clients of a backend.

    Count inside the call that used them, not in a task of its own: listeners tell calls that
    overlap apart by the context they hear of them in.

    Attributes:
        total: of all calls.
    """

    total: Usage = field(default_factory=Usage)
    _listeners: list[Callable[[Usage], None]] = field(default_factory=list)

    def add(self, usage: Usage) -> Usage:
        """Count, tell whoever listens, and hand back."""
        self.total += usage
        for tell in self._listeners:
            tell(usage)
        return usage

    def listen(self, tell: Callable[[Usage], None]) -> None:
        """From now on `tell` hears of every use."""
        self._listeners.append(tell)


@runtime_checkable
class MeteredBackend(Protocol):
    """A backend whose every use can be heard of as it happens; of others, totals are compared."""

    @property
    def meter(self) -> Meter:
        """Counts all that `usage` says."""
        ...


_AGAIN: ContextVar[Callable[[], None] | None] = ContextVar("again", default=None)


@contextmanager
def asked_again(check: Callable[[], None]) -> Iterator[None]:
    """Around a call: `check` hears, in its task, before it is made once more, and may raise."""
    token = _AGAIN.set(check)
    try:
        yield
    finally:
        _AGAIN.reset(token)


def ask_again() -> None:
    """Before a call is repeated that may have been billed, and is counted.

    Raises:
        TurncreditError: whoever pays has no room for another.
    """
    if (check := _AGAIN.get()) is not None:
        check()
