"""How two columns of signed numbers agree: correlations, and signs. NumPy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from turncredit.core.types import Array


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two columns of advantages agree, over the turns where either is not 0.

    Attributes:
        turns: how many those are.
        pearson: linear correlation; NaN where one of them does not vary.
        spearman: that of the ranks.
        opposed: turns on which they have opposite signs.
    """

    turns: int
    pearson: float
    spearman: float
    opposed: int


def agreement(one_D: Array, other_D: Array) -> Agreement:
    """Compare two columns, (D,) each."""
    live = (one_D != 0) | (other_D != 0)
    one, other = one_D[live], other_D[live]
    opposed = int((np.sign(one) * np.sign(other) < 0).sum())
    return Agreement(len(one), _pearson(one, other), _pearson(_ranks(one), _ranks(other)), opposed)


def _pearson(one_D: Array, other_D: Array) -> float:
    if len(one_D) < 2 or not np.ptp(one_D) or not np.ptp(other_D):
        return math.nan
    return float(np.corrcoef(one_D, other_D)[0, 1])


def _ranks(values_D: Array) -> Array:
    """Ranks from 1; equal values share the mean of theirs."""
    _, where, counts = np.unique(values_D, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[where]
