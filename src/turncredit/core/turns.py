"""Whose call it is: where calls wait for a slot, groups take turns."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Callers that share a value share a queue.
GROUP: ContextVar[Hashable] = ContextVar("group", default=None)


@contextmanager
def of_group(name: Hashable) -> Iterator[None]:
    """Calls made inside, by this task and those it starts, belong to one group."""
    token = GROUP.set(name)
    try:
        yield
    finally:
        GROUP.reset(token)
