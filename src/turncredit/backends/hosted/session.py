"""A session with a service: begun when it is first needed, and ended without waiting for ever.

SDKs block while they open and close one. `asyncio.to_thread` will not do for that: the loop, and
then the interpreter, wait for its threads, so that Ctrl-C would take as long as a service that
does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

from turncredit.backends.hosted.once import Once

T = TypeVar("T")

FAREWELL_S = 10.0  # in all; a service that cannot be reached ends the session by itself


class Session:
    """What an SDK has of a session.

    Args:
        begin: opens one; may block.
        end: closes it; may block.
    """

    def __init__(self, begin: Callable[[], Any], end: Callable[[Any], object]) -> None:
        self._begin, self._end, self._opened = begin, end, Once()

    async def open(self) -> Any:
        """The session, begun if there is none: once, however many ask."""
        return await self._opened.ask("session", lambda: aside(self._begin))

    async def close(self) -> None:
        """End it, if there is one; one that is being begun is waited for, to be ended, too."""
        opened, self._opened = self._opened, Once()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(FAREWELL_S):
                service = await opened.ask("session", _nothing)
                if service is not None:
                    await aside(lambda: self._end(service))


async def _nothing() -> None:
    """No session."""


async def aside(call: Callable[[], T]) -> T:
    """What a blocking call returns, made in a thread that holds up no end of anything.

    It goes on when whoever waits is cancelled.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            found = call()
        except BaseException as error:  # noqa: BLE001 (raised again where it is awaited)
            tell(answer.set_exception, error)
        else:
            tell(answer.set_result, found)

    def tell(say: Callable[[Any], None], what: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if answer.done() else say(what))

    threading.Thread(target=copy_context().run, args=(work,), daemon=True).start()
    return await answer
