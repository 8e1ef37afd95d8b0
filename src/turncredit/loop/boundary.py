"""The line between our code and an environment's: whatever fails behind it is an `EnvFault`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from turncredit.core.errors import ConfigError, EnvError, MissingExtra

T = TypeVar("T")


class EnvFault(EnvError):
    """A fault caught at the boundary; the text names the call and the cause."""


async def ask(
    call: Callable[[], Awaitable[T]], what: str, timeout: float, expect: type | None = None
) -> T:
    """Await environment code.

    Args:
        call: makes the call.
        what: its name in messages.
        timeout: seconds it may take.
        expect: the type its answer must have.

    Raises:
        EnvFault: it raised anything, gave no answer in time, or the wrong kind of answer.
        ConfigError, MissingExtra: the set-up is wrong, so every episode would fail alike.
    """
    timer = asyncio.timeout(timeout)
    try:
        async with timer:
            answer = await call()
    except (ConfigError, MissingExtra):
        raise
    except Exception as error:  # third-party code: anything may come
        if timer.expired():
            raise EnvFault(f"{what} gave no answer in {timeout:g} s") from error
        raise EnvFault(f"{what} raised {type(error).__name__}: {error}") from error
    if expect is not None and not isinstance(answer, expect):
        raise EnvFault(f"{what} returned {type(answer).__name__}, not {expect.__name__}")
    return answer
