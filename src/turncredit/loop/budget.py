"""Money: what has been spent, and that no call is made which could take it past a limit.

Every call says beforehand what it costs at most. That much is set aside while it is under way; a
call for which there is no room waits until others have ended cheaper than they might have, and is
refused when none is left to wait for. A note on disk says how much may have been spent: it is
raised before the money is, so a killed run counts what it lost, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from turncredit.core.errors import ConfigError, TurncreditError
from turncredit.core.metering import asked_again
from turncredit.core.types import Usage
from turncredit.record.prices import Price

# By how much at least the note is raised: a share of the limit, or of what is spent without one.
_OF_LIMIT, _OF_SPENT = 0.001, 0.01
_ROUNDING = 1e-9  # of the limit: the same amounts, added in another order
_PREPAID: ContextVar[bool] = ContextVar("prepaid", default=False)


class BudgetReached(TurncreditError):
    """The next call could cost more than is left. Nothing is wrong: the run can be resumed."""


class Budget:
    """What one run may spend.

    Args:
        price: of the backend; None where nobody knows it.
        limit: amount never to be passed, in the price's currency; None: only count.
        usage: what the backend has used so far, all calls together.
        clock: for machines that are paid by the hour.

    Raises:
        ConfigError: there is a limit, but no price.
    """

    def __init__(
        self,
        price: Price | None,
        limit: float | None,
        usage: Callable[[], Usage],
        *,
        clock: Callable[[], float] = time.monotonic,
        unpriced: str = "no price is known",
    ) -> None:
        if limit is not None and price is None:
            raise ConfigError(f"max_cost={limit:g} cannot be kept: {unpriced}")
        self.price, self.limit = price, limit
        self._usage, self._clock = usage, clock
        self._began, self._first = clock(), usage()
        self._before = 0.0  # spent by earlier processes
        self._noted = 0.0
        self._write: Callable[[Mapping[str, Any]], None] | None = None
        self._aside, self._holders = 0.0, 0
        self._freed: asyncio.Event | None = None

    def resume(
        self,
        note: Mapping[str, Any] | None,
        booked: Mapping[str, Any] | None,
        write: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Go on from what a run spent before.

        Args:
            note: the last that was written, or None.
            booked: money of the ledger: `currency` and `amount`, or None.
            write: keeps a note durably.

        Raises:
            ConfigError: it was counted in another currency.
        """
        if self.price is None:
            return
        currency = self.price.currency
        amounts = [0.0]
        for found in (note, booked):
            if found and found["currency"] != currency and self.limit is not None:
                raise ConfigError(
                    f"this run has spent {found['currency']}, and its price is now in {currency}: "
                    "max_cost cannot be kept. Give a price in the same currency (--prices FILE)"
                )
            if found and found["currency"] == currency:
                amounts.append(found["amount"])
        self._before, self._write = max(amounts), write
        self._noted = self._before

    @property
    def spent(self) -> float:
        """So far, by this run, killed attempts included."""
        if self.price is None:
            return 0.0
        used = self._usage().since(self._first)
        return self._before + self._cost(used) + self._hours()

    def room(self, amount: float) -> bool:
        """So much more can be spent."""
        return self._keeps_within(self.spent + self._aside + amount)

    def check(self, amount: float, what: str) -> None:
        """Refuse what will probably not fit, before any of it is begun.

        Raises:
            BudgetReached: it does not.
        """
        if not self.room(amount):
            raise self._reached(what, amount)

    @asynccontextmanager
    async def paid(self, most: Usage, what: str, *, whole: bool = False) -> AsyncIterator[None]:
        """Around a call, or around several that belong together.

        Args:
            most: what it costs at most.
            what: in words.
            whole: calls inside are paid by this one.

        Raises:
            BudgetReached: there is no room for it, and nothing to wait for.
        """
        if self.price is None or _PREPAID.get():
            yield
            return
        amount = self._cost(most)
        await self._room_for(amount, what)
        self._aside, self._holders = self._aside + amount, self._holders + 1
        token = _PREPAID.set(True) if whole else None
        try:
            self._note()
            with asked_again(lambda: self._again(amount, what)):
                yield
        finally:
            self._holders -= 1
            self._aside = self._aside - amount if self._holders else 0.0
            if token is not None:
                _PREPAID.reset(token)
            if self._freed is not None:
                self._freed.set()

    def _again(self, amount: float, what: str) -> None:
        """A call may have been billed without an answer: its second try needs room of its own."""
        if not self.room(0.0):  # what is set aside is for the second try by now
            raise self._reached(f"{what} once more", amount)
        self._note()

    def settle(self) -> None:
        """Note what was really spent: once nothing is under way any more."""
        if self._write is not None:
            self._keep(self.spent)

    def _cost(self, usage: Usage) -> float:
        assert self.price is not None
        return self.price.of(_tokens(usage), 0.0)

    def _hours(self) -> float:
        assert self.price is not None
        return self.price.of({}, self._clock() - self._began)

    async def _room_for(self, amount: float, what: str) -> None:
        while not self.room(amount):
            # Without the others it would not fit, either: no use waiting for them.
            if not self._holders or not self._keeps_within(self.spent + amount):
                raise self._reached(what, amount)
            if self._freed is None:
                self._freed = asyncio.Event()
            self._freed.clear()
            await self._freed.wait()

    def _keeps_within(self, amount: float) -> bool:
        return self.limit is None or amount <= self.limit * (1 + _ROUNDING)

    def _reached(self, what: str, amount: float) -> BudgetReached:
        currency = self.price.currency if self.price else ""
        return BudgetReached(
            f"{what} could cost up to {amount:.4g} {currency}; {self.spent:.4g} of "
            f"{self.limit:g} {currency} (--max-cost) are spent"
        )

    def _note(self) -> None:
        """Before the money goes: how much may have gone if this process ends now."""
        most = self.spent + self._aside
        if self._write is None or most <= self._noted:
            return
        if self.limit is None:
            self._keep(most * (1 + _OF_SPENT))
        else:
            self._keep(max(most, min(most + _OF_LIMIT * self.limit, self.limit)))

    def _keep(self, amount: float) -> None:
        assert self._write is not None
        assert self.price is not None
        self._write({"currency": self.price.currency, "amount": amount, "price": str(self.price)})
        self._noted = amount  # not before: where it could not be written, nobody may rely on it


def _tokens(usage: Usage) -> dict[str, int | None]:
    return {
        "prefill": usage.prefill,
        "cached": usage.cached,
        "sampled": usage.sampled,
        "trained": usage.trained,
    }
