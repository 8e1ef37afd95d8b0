"""What a backend counts, and for whom: a meter tells of every use in the task that called."""

from __future__ import annotations

from collections.abc import Callable
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
