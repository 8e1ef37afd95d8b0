"""Calls to a service: a deadline each, a bounded number in flight, turns taken between groups.

Only what is safe to repeat is repeated: the caller says so per call (sampling and scoring, never
an update), and the error says so (rate limits, a service that is full). Who is cancelled gives its
slot back at once and is counted: the service may work on, and bill. So is a call whose connection
broke; but while nothing listens at the service's address no safe call is sent, or counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from turncredit.backends.hosted import reach
from turncredit.backends.hosted.faults import CallTimeout, Unreached, Unreadable
from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.metering import Meter, ask_again
from turncredit.core.turns import GROUP
from turncredit.core.types import Usage

T = TypeVar("T")

_BACKOFF_S, _LONGEST_S = 1.0, 30.0
_PATIENCE_S = 900.0  # for a service at whose address nothing listens
_REMIND_S = 120.0  # without an answer: then it is said, of all calls at most so often


class Slots:
    """At most `limit` holders; a free slot goes to the group whose last turn is longest ago.

    Within a group it is first come, first served. Bound to the loop it is first waited in.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ConfigError(f"calls in flight must be at least 1, not {limit}")
        self._free = limit
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def one(self, group: Hashable):
        """Hold a slot."""
        await self._take(group)
        try:
            yield
        finally:
            self._give()

    async def _take(self, group: Hashable) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give()  # it was given a slot in the same moment
            raise

    def _give(self) -> None:
        while self._waiting:
            group, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[group] = turns  # to the back of the line
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


@dataclass(slots=True)
class Counts:
    """What has happened to calls.

    Attributes:
        made: calls answered.
        retried: repetitions, of safe calls only.
        timed_out: deadlines passed.
        abandoned: calls cancelled or timed out while the service had them.
        abandoned_usage: what they may cost, by the caller's estimate.
    """

    made: int = 0
    retried: int = 0
    timed_out: int = 0
    abandoned: int = 0
    abandoned_usage: Usage = field(default_factory=Usage)


class Calls:
    """Makes calls.

    Adapters count what is answered on its `meter`; what is given up is counted there by itself.

    Args:
        limit: in flight at most.
        deadline: seconds a call may take, waiting for a slot not counted.
        attempts: of a call that is safe to repeat.
        backoff: seconds before the first repetition; doubles, with jitter.
        on_wait: told in words when the service makes us wait; may be set later.
    """

    def __init__(
        self,
        *,
        limit: int = 16,
        deadline: float = 1800.0,
        attempts: int = 4,
        backoff: float = _BACKOFF_S,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        if deadline <= 0 or attempts < 1:
            raise ConfigError(f"deadline={deadline}, attempts={attempts}: both must be positive")
        self._slots, self._deadline, self._attempts = Slots(limit), deadline, attempts
        self._backoff, self.on_wait = backoff, on_wait
        self._reminded = -_REMIND_S
        # Where a connection failed, since when nothing is known to answer there, who looks.
        self._down, self._since, self._looking = "", 0.0, asyncio.Lock()
        self.patience = _PATIENCE_S
        self._random = random.Random()
        self.counts, self.meter = Counts(), Meter()

    async def run(
        self,
        make: Callable[[], Awaitable[T]],
        *,
        what: str,
        repeat: bool = False,
        estimate: Usage | None = None,
        deadline: float | None = None,
    ) -> T:
        """Make one call.

        Args:
            make: starts the call; called again for every attempt.
            what: the call in words, for messages.
            repeat: sampling and scoring may be repeated; an update must not be.
            estimate: what the call may cost when it is abandoned.
            deadline: seconds, in place of the usual.

        Raises:
            CallTimeout: the deadline passed.
            Unreached: nothing has listened at the service's address for a quarter of an hour.
            BackendError: what the adapter made of the service's error.
        """
        attempts, pause = self._attempts if repeat else 1, self._backoff
        for attempt in range(1, attempts + 1):
            if self._down and repeat:
                await self._until_there(what, min(self.patience, deadline or self._deadline))
            try:
                async with self._slots.one(GROUP.get()):
                    result = await self._once(make, what, estimate, deadline or self._deadline)
            except BackendError as error:
                if isinstance(error, Unreached):
                    self._broke(error.address)
                lost = isinstance(error, Unreached | Unreadable) and repeat
                if lost:
                    self.abandon(estimate)
                if attempt == attempts or not error.retryable:
                    raise
                if lost:
                    ask_again()
                self._say(f"{what}: {error}; trying again in about {pause:.0f} s")
            else:
                self.counts.made += 1
                return result
            # The slot is free meanwhile: a call that waits holds up no other.
            await asyncio.sleep(pause * self._random.uniform(0.75, 1.25))
            pause = min(2 * pause, _LONGEST_S)
            self.counts.retried += 1
        raise AssertionError("unreachable")

    def _broke(self, address: str) -> None:
        """A connection failed; before anything else is sent, somebody looks."""
        if not self._down:
            self._since = asyncio.get_running_loop().time()
        self._down = address

    async def _until_there(self, what: str, patience: float) -> None:
        """Wait until something listens where nothing did; nothing is sent meanwhile."""
        async with self._looking:  # one look for all who wait
            loop, pause, address = asyncio.get_running_loop(), self._backoff, self._down
            if not address:
                return
            self._say(f"nothing answers at {address}: waiting, and nothing is sent meanwhile")
            while not await asyncio.to_thread(reach.answers, address):
                if loop.time() - self._since >= patience:
                    raise Unreached(
                        f"{what}: nothing answers at {address}, so it was not sent again. Check "
                        "the network, and go on with --resume",
                        address=address,
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_S)
            self._down = ""

    async def _once(
        self,
        make: Callable[[], Awaitable[T]],
        what: str,
        estimate: Usage | None,
        deadline: float,
    ) -> T:
        try:
            async with asyncio.timeout(deadline):
                with self._reminders(what):
                    return await make()
        except TimeoutError as error:
            self.counts.timed_out += 1
            self.abandon(estimate)
            raise CallTimeout(
                f"{what}: no answer within {deadline:g} s. Its work may go on and be billed; "
                "raise the deadline (--deadline) if calls are that slow"
            ) from error
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.abandon(estimate)
            raise

    def abandon(self, estimate: Usage | None) -> None:
        """Count a call without a certain answer as if the service had done and billed it."""
        self.counts.abandoned += 1
        if estimate is not None:
            self.counts.abandoned_usage += self.meter.add(estimate)

    @contextmanager
    def _reminders(self, what: str) -> Iterator[None]:
        """Say now and then that a call is still waited for: SDKs repeat requests in silence."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def remind() -> None:
            nonlocal handle
            now = loop.time()
            if now - self._reminded >= _REMIND_S:
                self._reminded = now
                self._say(f"{what}: no answer for {now - began:.0f} s so far; still waiting")
            handle = loop.call_later(_REMIND_S, remind)

        handle = loop.call_later(_REMIND_S, remind)
        try:
            yield
        finally:
            handle.cancel()

    def _say(self, text: str) -> None:
        if self.on_wait:
            self.on_wait(text)
