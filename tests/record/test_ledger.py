"""Tokens by kind, seconds by phase."""

from __future__ import annotations

import pytest

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


def test_metrics_are_flat() -> None:
    ledger = Ledger(Clock())
    ledger.add(Usage(sampled=5))
    with ledger.phase("rollout"):
        pass
    flat = metrics(ledger.end_step())
    assert flat["tokens/sampled"] == 5
    assert set(flat) >= {"time/rollout", "time/step", "tokens/teacher"}
