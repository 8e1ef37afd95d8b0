"""What methods with a distillation term beside the outcome advantage share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.types import Array, Credit, Group, frozen_array
from turncredit.credit.gaps import gaps_of, scored, turn_means


def everywhere(group: Group, weight: float) -> tuple[tuple[Array, ...], ...]:
    """`weight` for every action token of every member that a teacher looked at, else 0.

    Where the hint source had nothing to say, a teacher without a hint would only repeat the
    student, and a term would still pull at its tokens.

    Returns:
        `[trajectory][turn]` -> (N,).

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    return tuple(
        tuple(
            np.full(len(turn.logprob_N), weight if scored(trajectory).hint_hash else 0.0)
            for turn in trajectory.turns
        )
        for trajectory in group.trajectories
    )


def with_term(outcome: Credit, group: Group, weight: float) -> Credit:
    """`outcome` with a term of `weight` on every action token; as it was where `weight` is 0.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher, and `weight` is not 0.
    """
    if weight == 0:
        return outcome
    return replace(
        outcome,
        distill=everywhere(group, weight),
        figures={**outcome.figures, "gap": gap_means(group)},
        metrics={**outcome.metrics, **gap_metrics(group)},
    )


def gap_means(group: Group) -> tuple[Array, ...]:
    """Mean gap of each turn, per trajectory (K,), nats; 0 for a turn without tokens."""
    return tuple(frozen_array(turn_means(gaps_of(t))) for t in group.trajectories)


def gap_metrics(group: Group) -> Mapping[str, float]:
    """Mean gap and mean absolute gap of all action tokens, nats; nothing without tokens."""
    gaps = [gap_N for trajectory in group.trajectories for gap_N in gaps_of(trajectory)]
    values = np.concatenate([np.zeros(0), *gaps])
    if not len(values):
        return {}
    return {"gap_mean": float(values.mean()), "gap_abs_mean": float(np.abs(values).mean())}


def check_not_negative(**values: float) -> None:
    """Refuse settings below 0.

    Raises:
        ConfigError: names the first of them.
    """
    for name, value in values.items():
        if not (value >= 0 and np.isfinite(value)):
            raise ConfigError(f"{name} must be at least 0 and finite; got {value}")
