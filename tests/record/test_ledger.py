"""Tokens by kind, seconds by phase."""

from __future__ import annotations

import pytest

from turncredit.core.errors import DataError
from turncredit.core.types import Usage
from turncredit.record.ledger import Ledger, metrics


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_and_the_run() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    with ledger.phase("rollout"):
        clock.now += 2
    ledger.add(Usage(prefill=100, cached=40, sampled=10, requests=2))
    with ledger.phase("teacher"):
        clock.now += 1
    ledger.add(Usage(prefill=70, cached=5, requests=1), teacher=True)
    with ledger.phase("rollout"):
        clock.now += 0.5
    ledger.add(Usage(trained=30, requests=1))
    clock.now += 0.5
    step = ledger.end_step()
    assert step["tokens"] == {
        "prefill": 100,
        "cached": 45,
        "sampled": 10,
        "teacher": 70,
        "teacher_cached": 5,
        "trained": 30,
    }
    assert step["seconds"] == {"rollout": 2.5, "teacher": 1.0, "step": 4.0}
    assert step["requests"] == 4
    clock.now += 1
    assert ledger.end_step()["seconds"] == {"step": 1.0}
    totals = ledger.totals()
    assert totals["tokens"]["prefill"] == 100
    assert totals["seconds"] == {"rollout": 2.5, "teacher": 1.0, "step": 5.0}


def test_a_phase_that_fails_is_timed_too() -> None:
    clock = Clock()
    ledger = Ledger(clock)

    def update() -> None:
        with ledger.phase("update"):
            clock.now += 3
            raise RuntimeError

    with pytest.raises(RuntimeError):
        update()
    assert ledger.end_step()["seconds"]["update"] == 3


def test_unknown_cached_counts_stay_unknown() -> None:
    ledger = Ledger()
    ledger.add(Usage(prefill=1, cached=None))
    step = ledger.end_step()
    assert step["tokens"]["cached"] is None
    assert "tokens/cached" not in metrics(step)
    ledger.end_step()
    assert ledger.totals()["tokens"]["cached"] is None


def test_totals_go_on_after_a_resume() -> None:
    first = Ledger()
    first.add(Usage(sampled=5, trained=2))
    record = {"step": 1, **first.end_step()}
    resumed = Ledger.resume([record])
    resumed.add(Usage(sampled=1))
    resumed.end_step()
    assert resumed.totals()["tokens"]["sampled"] == 6
    assert resumed.totals()["tokens"]["trained"] == 2


def test_what_a_record_does_not_say_is_unknown_in_the_sum() -> None:
    old = {"step": 1, "requests": 1, "seconds": {"step": 1.0}}
    old["tokens"] = {"prefill": 3, "cached": 0, "sampled": 1, "teacher": 0, "trained": 0}
    ledger = Ledger.resume([old])
    ledger.end_step(2, more={"tokens": {"unique": 5}, "flops": {"done": 2.0, "floor": 1.0}})
    totals = ledger.totals()
    assert totals["tokens"]["prefill"] == 3
    assert totals["tokens"]["unique"] is None
    assert totals["flops"] is None
    assert totals["steps"] == 2
    assert Ledger().totals()["tokens"]["unique"] == 0


def test_parts_of_records_add_up_and_two_currencies_do_not() -> None:
    ledger = Ledger()
    for step, currency in ((1, "USD"), (2, "USD"), (3, "CNY")):
        more = {
            "games": {"played": 8, "solved": step},
            "flops": {"done": 3.0, "floor": 2.0},
            "floor_seconds": 0.5,
            "money": {"currency": currency, "amount": 0.25},
        }
        ledger.end_step(step, more=more)
        if step == 2:
            assert ledger.totals()["money"] == {"currency": "USD", "amount": 0.5}
    totals = ledger.totals()
    assert totals["games"] == {"played": 24, "solved": 6}
    assert totals["flops"] == {"done": 9.0, "floor": 6.0}
    assert totals["floor_seconds"] == 1.5
    assert totals["money"] is None


def test_several_steps_may_be_open_and_late_counts_go_to_the_next() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    ledger.add(Usage(sampled=1))  # in nobody's name
    ledger.add(Usage(sampled=10), step=1)
    with ledger.phase("rollout", 2):
        ledger.add(Usage(sampled=100), step=2)
        clock.now += 3
    assert ledger.end_step(1)["tokens"]["sampled"] == 11
    with ledger.phase("save", 1):  # update 1 is closed: saving it is time of the next
        clock.now += 1
    second = ledger.end_step(2)
    assert second["tokens"]["sampled"] == 100
    assert second["seconds"] == {"rollout": 3.0, "save": 1.0, "step": 1.0}


def test_money_per_solved_game() -> None:
    ledger = Ledger(Clock())
    money = {"currency": "USD", "amount": 3.0}
    more = {"games": {"played": 8, "solved": 4}, "money": money, "floor_seconds": 2.0}
    flat = metrics(ledger.end_step(1, more=more | {"flops": {"done": 6.0, "floor": 4.0}}))
    assert flat["money/usd"] == 3.0
    assert flat["money/usd_per_solved_game"] == 0.75
    assert flat["flops/ratio"] == 1.5
    assert flat["time/floor"] == 2.0
    nobody = metrics(ledger.end_step(2, more=more | {"games": {"played": 8, "solved": 0}}))
    assert "money/usd_per_solved_game" not in nobody


def test_metrics_are_flat() -> None:
    ledger = Ledger(Clock())
    ledger.add(Usage(sampled=5))
    with ledger.phase("rollout"):
        pass
    flat = metrics(ledger.end_step())
    assert flat["tokens/sampled"] == 5
    assert set(flat) >= {"time/rollout", "time/step", "tokens/teacher"}


@pytest.mark.parametrize("damage", [{"tokens": 3}, {"seconds": 3}])
def test_a_damaged_record_is_named(damage: dict[str, object]) -> None:
    ledger = Ledger()
    record = {**ledger.end_step(), "step": 7, **damage}
    with pytest.raises(DataError, match="step 7"):
        Ledger.resume([record])
