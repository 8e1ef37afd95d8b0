"""Work that is asked for now and fetched later, under a name: each name is done once.

Operations of a run are numbered by the client and done in that order, whatever order they arrive
in; a number that arrives twice is done once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

from turncredit.backends.loopback.http import Reply, json_reply
from turncredit.backends.loopback.shelf import Expired, NotFound
from turncredit.core.errors import BackendError, TurncreditError

Work = Callable[[], Awaitable[Reply]]


class Promises:
    """What is under way and what is done, by name."""

    def __init__(self) -> None:
        self._work: dict[str, asyncio.Task[Reply]] = {}
        self._turns: dict[tuple[str, int], asyncio.Event] = defaultdict(asyncio.Event)
        self._droppable: set[str] = set()
        self.cancelled = 0

    def start(self, name: str, work: Work, *, droppable: bool = False) -> None:
        """Begin `work`, unless something of this name was begun before."""
        if name not in self._work:
            self._work[name] = asyncio.ensure_future(_outcome(work))
            if droppable:
                self._droppable.add(name)

    def in_turn(self, run: str, number: int, work: Work) -> str:
        """Begin an operation of a run, to be done after the one numbered before it."""

        async def wait_and_work() -> Reply:
            if number > 0:
                await self._turns[run, number - 1].wait()
            try:
                return await work()
            finally:
                self._turns[run, number].set()

        name = f"{run}#{number}"
        self.start(name, wait_and_work)
        return name

    async def fetch(self, name: str, patience: float) -> Reply | None:
        """The outcome, or None when it is not there after `patience` seconds.

        Raises:
            KeyError: nothing of this name was ever begun.
        """
        task = self._work[name]
        done, _ = await asyncio.wait([task], timeout=patience)
        if not done:
            return None
        return _failure("cancelled", "user") if task.cancelled() else task.result()

    def drop(self, name: str) -> None:
        """The client does not want it any more; training goes on all the same."""
        task = self._work.get(name)
        if task is not None and name in self._droppable and not task.done():
            task.cancel()
            self.cancelled += 1

    async def aclose(self) -> None:
        """Give up what is under way."""
        for task in self._work.values():
            task.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)


async def _outcome(work: Work) -> Reply:
    """The result of an operation, or in what way it failed; never an exception."""
    try:
        return await work()
    except NotFound as error:
        return _failure(str(error), "user")
    except Expired as error:
        return _failure(str(error), "user")
    except BackendError as error:
        return _failure(str(error), "server")
    except (TurncreditError, ValueError, KeyError) as error:
        return _failure(str(error), "user")


def _failure(text: str, whose: str) -> Reply:
    return json_reply({"error": text, "category": whose})
