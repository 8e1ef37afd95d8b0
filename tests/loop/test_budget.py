"""A budget: room is set aside before a call, waited for, and refused when there is none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turncredit.core.errors import ConfigError
from turncredit.core.metering import ask_again
from turncredit.core.types import Usage
from turncredit.loop.budget import Budget, BudgetReached
from turncredit.record.prices import Price

PRICE = Price(service="s", prefill=1e6, sample=1e6, train=1e6)  # 1 a token
HOURLY = Price(service="s", hour=3600.0)  # 1 a second


class Meter:
    """A backend's count."""

    def __init__(self) -> None:
        self.used = Usage(prefill=500)  # before the budget: not its own

    def __call__(self) -> Usage:
        return self.used


def budget(limit: float | None, price: Price | None = PRICE) -> tuple[Budget, Meter]:
    meter = Meter()
    return Budget(price, limit, meter), meter


def test_calls_wait_for_room_and_are_refused_without_hope() -> None:
    made, meter = budget(10.0)
    order: list[str] = []

    async def call(name: str, most: int, real: int) -> None:
        async with made.paid(Usage(prefill=most), name):
            order.append(name)
            await asyncio.sleep(0.01)
            meter.used += Usage(prefill=real)

    async def main() -> None:
        await asyncio.gather(call("a", 6, 2), call("b", 6, 3))
        assert order == ["a", "b"]  # together they might have cost 12
        assert made.spent == 5
        with pytest.raises(BudgetReached, match="c could cost up to 6"):
            await call("c", 6, 0)
        await call("d", 5, 5)

    asyncio.run(main())
    assert made.spent == 10


def test_what_is_paid_whole_is_not_paid_twice() -> None:
    made, meter = budget(10.0)

    async def main() -> None:
        async with made.paid(Usage(trained=8), "update", whole=True):
            for _ in range(2):
                async with made.paid(Usage(trained=4), "part"):
                    meter.used += Usage(trained=4)
        assert made.room(2)
        assert not made.room(2.1)

    asyncio.run(main())


def test_the_note_never_says_less_than_may_be_spent() -> None:
    made, meter = budget(100.0)
    notes: list[Any] = []
    made.resume(
        {"currency": "USD", "amount": 7.0}, {"currency": "USD", "amount": 6.0}, notes.append
    )

    async def main() -> None:
        for _ in range(50):
            async with made.paid(Usage(prefill=1), "a"):
                meter.used += Usage(prefill=1)
                assert notes[-1]["amount"] >= made.spent

    asyncio.run(main())
    assert made.spent == 57
    assert notes[-1]["amount"] <= 57.2
    made.settle()
    assert notes[-1]["amount"] == 57


def test_without_a_limit_money_is_counted_all_the_same() -> None:
    made, meter = budget(None)

    async def main() -> None:
        async with made.paid(Usage(prefill=10**9), "a"):
            meter.used += Usage(prefill=3)

    asyncio.run(main())
    assert made.spent == 3
    assert budget(None, None)[0].spent == 0


def test_hours_count() -> None:
    now = [0.0]
    made = Budget(HOURLY, 5.0, Meter(), clock=lambda: now[0])
    made.check(4, "a step")
    now[0] = 2.0
    with pytest.raises(BudgetReached):
        made.check(4, "a step")


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ConfigError, match="no price"):
        budget(1.0, None)
    with pytest.raises(ConfigError, match="spent CNY"):
        budget(1.0)[0].resume({"currency": "CNY", "amount": 1.0}, None, print)


def test_a_note_that_was_not_written_is_relied_on_by_nobody() -> None:
    """A full disk ends one call of several: the others must not go on unnoted."""
    made, _ = budget(1000.0)
    notes: list[float] = []

    def write(note: Any) -> None:
        notes.append(note["amount"])
        if len(notes) == 1:
            raise OSError("no room")

    made.resume(None, None, write)

    async def call() -> None:
        async with made.paid(Usage(prefill=10), "a call"):
            pass

    with pytest.raises(OSError, match="no room"):
        asyncio.run(call())
    asyncio.run(call())
    assert len(notes) == 2
    assert min(notes) >= 10


def test_a_second_try_needs_room_of_its_own() -> None:
    made, meter = budget(25.0)
    notes: list[float] = []
    made.resume(None, None, lambda note: notes.append(note["amount"]))

    async def call(tries: int) -> None:
        async with made.paid(Usage(prefill=10), "scoring"):
            for _ in range(tries - 1):
                meter.used += Usage(prefill=10)  # billed, perhaps, without an answer
                ask_again()
            meter.used += Usage(prefill=10)

    asyncio.run(call(2))
    assert made.spent == 20 <= notes[-1]
    made.limit = 35.0
    with pytest.raises(BudgetReached, match="scoring once more could cost up to 10"):
        asyncio.run(call(2))
    assert made.spent == 30
    ask_again()  # outside of all calls nobody minds


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.7])
def test_a_limit_of_just_what_it_costs_is_enough(rate: float) -> None:
    """The same amounts, added one by one, end above their sum in the last bit."""
    price, each = Price(service="s", prefill=rate, sample=0.0, train=0.0), 333_333
    meter = Meter()
    made = Budget(price, price.of({"prefill": 7 * each}, 0.0), meter)

    async def main() -> None:
        for _ in range(7):
            async with made.paid(Usage(prefill=each), "a call"):
                meter.used += Usage(prefill=each)
        with pytest.raises(BudgetReached):
            async with made.paid(Usage(prefill=1), "one more"):
                pass

    asyncio.run(main())
