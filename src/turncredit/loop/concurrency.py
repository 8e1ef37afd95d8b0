"""Many calls at once, a bounded number in flight; the first error ends them all and is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from turncredit.core.errors import ConfigError

T = TypeVar("T")


def slots_for(limit: int) -> asyncio.Semaphore:
    """Slots that several `bounded` share: so many calls run at a time, whoever makes them.

    Raises:
        ConfigError: `limit` is below 1.
    """
    if limit < 1:
        raise ConfigError(f"concurrency must be at least 1, not {limit}")
    return asyncio.Semaphore(limit)


async def bounded(
    calls: Iterable[Callable[[], Awaitable[T]]], limit: int | asyncio.Semaphore
) -> list[T]:
    """Results of `calls` in their order, at most `limit` running at a time.

    A slow call holds back no other. When one raises, the rest are cancelled, awaited, and the
    error is raised as it was (not wrapped in a group, so callers catch what they know).

    Args:
        calls: are made in their order.
        limit: a number, or slots shared with others.

    Raises:
        ConfigError: `limit` is below 1.
    """
    slots = slots_for(limit) if isinstance(limit, int) else limit

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await call()

    tasks = [asyncio.ensure_future(one(call)) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
