"""Statistics against numbers worked by hand, against SciPy, and against their own definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from turncredit.proof.statistics import bootstrap_interval, mcnemar_exact, wilson_interval

COUNTS = st.integers(0, 300)


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 0, 2 / 32),
        (6, 0, 2 / 64),
        (3, 1, 2 * (1 + 4) / 16),
        (2, 2, 1.0),
        (8, 2, 2 * (1 + 10 + 45) / 1024),
    ],
)
def test_mcnemar_by_hand(gained: int, lost: int, p: float) -> None:
    assert mcnemar_exact(gained, lost) == p == mcnemar_exact(lost, gained)


@settings(deadline=None)
@given(COUNTS, COUNTS)
def test_mcnemar_is_the_two_sided_binomial_test(gained: int, lost: int) -> None:
    trials = gained + lost
    expected = stats.binomtest(gained, trials).pvalue if trials else 1.0
    assert mcnemar_exact(gained, lost) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_does_not_overflow() -> None:
    assert 0 < mcnemar_exact(2500, 2000) < 1e-12
    assert mcnemar_exact(5000, 5000) == 1.0


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(1, 200))
def test_wilson_against_scipy(successes: int, trials: int) -> None:
    successes = min(successes, trials)
    found = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    low, high = wilson_interval(successes, trials)
    assert (low, high) == pytest.approx((found.low, found.high), abs=1e-9)


def test_bootstrap_against_scipy() -> None:
    draw = np.random.default_rng(7)
    values = draw.choice([-1.0, 0.0, 1.0], size=150, p=[0.1, 0.6, 0.3])
    found = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", random_state=draw
    ).confidence_interval
    low, high = bootstrap_interval(values, resamples=20_000)
    # One game is 1/150; both ends carry the noise of finitely many resamples.
    assert (low, high) == pytest.approx((found.low, found.high), abs=1.01 / 150)


def test_bootstrap_is_the_resampled_mean() -> None:
    """Of two games, one gained: a resample holds the gain 0, 1 or 2 times, by 1/4, 1/2, 1/4."""
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], level=0.4) == (0.5, 0.5)


def test_bootstrap_is_reproducible_and_tight() -> None:
    values = np.repeat([-1.0, 0.0, 1.0], [30, 170, 74])
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values[::-1], seed=1)
    low, high = bootstrap_interval(values)
    error = values.std() / math.sqrt(len(values))
    assert (low, high) == pytest.approx(
        (values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.01
    )


def test_nothing_to_say_about_nothing() -> None:
    assert all(map(math.isnan, bootstrap_interval([])))
    assert all(map(math.isnan, wilson_interval(0, 0)))
    assert bootstrap_interval([0.0] * 9) == (0.0, 0.0)
