"""What other readings of a trajectory say about its tokens. Arithmetic of no single method."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.types import Array, ScoredTrajectory, Trajectory


def scored(trajectory: Trajectory) -> ScoredTrajectory:
    """`trajectory`, now known to have a teacher's scores.

    Raises:
        ConfigError: it has not been scored by a teacher.
    """
    if not isinstance(trajectory, ScoredTrajectory):
        raise ConfigError(
            f"trajectory {trajectory.name} has no teacher scores: run the teacher "
            "(loop.teacher.score, with a hint) before a method that needs it, or use grpo"
        )
    return trajectory


def gaps_of(trajectory: Trajectory) -> tuple[Array, ...]:
    """Teacher minus student log-probability of every action token, per turn (N,), nats.

    Raises:
        ConfigError: the trajectory has not been scored by a teacher.
    """
    return scored(trajectory).gap_K


def split(values_T: Array, trajectory: Trajectory) -> tuple[Array, ...]:
    """Values of all action tokens of a trajectory, in order, cut at its turns: per turn (N,)."""
    stops = list(accumulate((len(turn.logprob_N) for turn in trajectory.turns), initial=0))
    return tuple(values_T[start:stop] for start, stop in pairwise(stops))


def joined(values_K: Sequence[Array]) -> Array:
    """All action tokens of a trajectory in one array, (T,): what `split` cuts."""
    return np.concatenate(values_K) if len(values_K) else np.zeros(0)


def turn_sums(values_K: Sequence[Array]) -> Array:
    """Sum of each turn's values, (K,); 0 for a turn without tokens."""
    sums_K = np.zeros(len(values_K))
    stops = np.cumsum([len(values_N) for values_N in values_K], dtype=np.int64)
    filled = np.flatnonzero(np.diff(stops, prepend=0))
    if len(filled):  # one pass over all tokens; empty turns have no segment and stay 0
        starts = np.concatenate([[0], stops])[filled]
        sums_K[filled] = np.add.reduceat(np.concatenate(values_K), starts)
    return sums_K


def turn_means(values_K: Sequence[Array], empty: float = 0.0) -> Array:
    """Mean of each turn's values, (K,); `empty` for a turn without tokens."""
    count_K = np.array([len(values_N) for values_N in values_K], np.float64)
    return np.where(count_K > 0, turn_sums(values_K) / np.maximum(count_K, 1), empty)
