"""Paired statistics of two policies on the same games. NumPy only."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from turncredit.core.types import Array


def mcnemar_exact(gained: int, lost: int) -> float:
    """Exact two-sided McNemar p: the chance of a split at least this uneven between equals.

    Args:
        gained: games that only the second policy won.
        lost: games that only the first policy won.

    Source: the two-sided binomial test of `min(gained, lost)` out of `gained + lost` at 1/2.
    """
    trials, fewer = gained + lost, min(gained, lost)
    if trials == 0:
        return 1.0
    # Whole numbers until the last division: exact for any number of games.
    tail = ways = 1  # of 0 out of `trials`
    for k in range(fewer):
        ways = ways * (trials - k) // (k + 1)
        tail += ways
    return min(1.0, 2 * tail / 2**trials)


def bootstrap_interval(
    difference_D: ArrayLike, *, seed: int = 0, resamples: int = 10_000, level: float = 0.95
) -> tuple[float, float]:
    """Paired-bootstrap percentile interval of a mean difference.

    Args:
        difference_D: (D,) second minus first, one entry a game.
        seed: of the resampling; equal seeds give equal intervals.
        resamples: how many.
        level: coverage, between 0 and 1.

    Returns:
        Lower and upper end; (nan, nan) for no games.
    """
    values_D: Array = np.asarray(difference_D, dtype=np.float64).reshape(-1)
    if values_D.size == 0:
        return (math.nan, math.nan)
    draw = np.random.default_rng(seed)
    # Only how often each distinct value is drawn matters, so a resample is one multinomial.
    distinct, counts = np.unique(values_D, return_counts=True)
    drawn = draw.multinomial(values_D.size, counts / values_D.size, size=resamples)
    means = drawn @ distinct / values_D.size
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return (float(low), float(high))


def wilson_interval(
    successes: int, trials: int, *, z: float = 1.959963984540054
) -> tuple[float, float]:
    """Wilson score interval of a success rate (95 % by default); (nan, nan) for no trials.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if trials == 0:
        return (math.nan, math.nan)
    rate, z2 = successes / trials, z * z
    centre = rate + z2 / (2 * trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    scale = 1 + z2 / trials
    return (max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))
