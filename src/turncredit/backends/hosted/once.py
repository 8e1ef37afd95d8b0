"""Calls of a name that are made once: who asks again gets the same answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Once:
    """Saves, which services refuse to make twice under one name.

    Whoever waits for one may be interrupted: it goes on, and the next to ask (a run that saves
    itself at Ctrl-C) waits for the same. What failed may be asked anew.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, asyncio.Task[Any]] = {}

    async def ask(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer of the call named `key`, which `make` begins if it is not there."""
        task = self._made.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._made[key] = asyncio.ensure_future(make())
            task.add_done_callback(_heard)
        return await asyncio.shield(task)


def _heard(task: asyncio.Task[Any]) -> None:
    """An error that nobody waits for any more is no news."""
    if not task.cancelled():
        task.exception()
