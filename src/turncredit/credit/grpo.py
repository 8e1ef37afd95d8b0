"""GRPO: one number a trajectory, its reward against its group's.

A_i = (R_i - mean R) / (std R + epsilon), over the *trajectories* of a group: a long trajectory
weighs no more than a short one. Defaults are those of the article (population standard deviation,
epsilon 1e-4). Published variants have a name each: statistics over turn rows, where every turn
brings its trajectory's reward once more; and each reward against the mean of the *others*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.settings import check_choices, setting
from turncredit.core.types import Array, Credit, Group, Trajectory, frozen_array
from turncredit.credit.gaps import split

NEEDS_TEACHER = False

# Rewards closer than this are one reward: dividing their rounding noise by a tiny standard
# deviation would make a gradient out of nothing.
ZERO_SPREAD = 1e-9

Std = Literal["population", "sample", "none"]
Baseline = Literal["trajectories", "turn_rows", "leave_one_out"]
STD_CHOICES = get_args(Std)
BASELINE_CHOICES = get_args(Baseline)


@dataclass(frozen=True)
class Config:
    """Settings of the group baseline; the defaults are the article's.

    Methods that begin with this baseline extend it, so that these names mean the same everywhere.
    """

    baseline: Literal["trajectories", "turn_rows", "leave_one_out"] = setting(
        "trajectories", "compare a reward with the mean over trajectories, turns or the others"
    )
    std: Literal["population", "sample", "none"] = setting(
        "population", "divide by the group's standard deviation (ddof 0 or 1), or do not"
    )
    epsilon: float = setting(1e-4, "added to the standard deviation before dividing")

    def __post_init__(self) -> None:
        check_choices(self)
        if not 0 < self.epsilon < 0.5:
            raise ConfigError(f"epsilon must lie in (0, 0.5); got {self.epsilon}")


def advantage_G(
    reward_G: Array,
    *,
    std: Std = "population",
    epsilon: float = 1e-4,
    baseline: Baseline = "trajectories",
    turns_G: Sequence[int] | None = None,
) -> Array:
    """Group-relative advantage of each reward.

    Args:
        reward_G: (G,) outcomes of the members of one group.
        std: which standard deviation divides the centred rewards, if any.
        epsilon: added to it.
        baseline: what the rewards are centred on.
        turns_G: (G,) turns of each member; only `turn_rows` reads them.

    Returns:
        (G,). Exactly zero everywhere when the rewards do not differ (so also for G = 1).

    Raises:
        ConfigError: `turn_rows` without `turns_G`.
    """
    reward_G = np.asarray(reward_G, np.float64)
    entries = _entries(reward_G, baseline, turns_G)
    if len(entries) < 2 or np.ptp(entries) <= ZERO_SPREAD:
        return np.zeros(len(reward_G))
    centred_G = reward_G - entries.mean()
    if baseline == "leave_one_out":
        # R_i - mean of the others, in a form that keeps the numbers near each other.
        centred_G = centred_G * (len(reward_G) / (len(reward_G) - 1))
    if std == "none":
        return centred_G
    return centred_G / (entries.std(ddof=int(std == "sample")) + epsilon)


def _entries(reward_G: Array, baseline: Baseline, turns_G: Sequence[int] | None) -> Array:
    """What mean and deviation are taken over."""
    if baseline != "turn_rows":
        return reward_G
    if turns_G is None:
        raise ConfigError('baseline "turn_rows" counts turns: give turns_G, one number a member')
    return np.repeat(reward_G, np.asarray(turns_G, np.int64))


def outcome_G(group: Group, config: Config) -> Array:
    """Advantage of each trajectory of `group`, (G,)."""
    return advantage_G(
        group.reward_G,
        std=config.std,
        epsilon=config.epsilon,
        baseline=config.baseline,
        turns_G=[len(trajectory.turns) for trajectory in group.trajectories],
    )


def over_tokens(trajectory: Trajectory, value_K: Array) -> tuple[Array, ...]:
    """Give every action token of turn k the value of its turn: per turn (N,)."""
    count_K = [len(turn.logprob_N) for turn in trajectory.turns]
    return split(np.repeat(np.asarray(value_K, np.float64), count_K), trajectory)


def credit(group: Group, config: Config) -> Credit:
    """Every action token of a trajectory carries that trajectory's advantage."""
    advantage_GK = tuple(
        frozen_array(np.full(len(trajectory.turns), advantage))
        for trajectory, advantage in zip(group.trajectories, outcome_G(group, config), strict=True)
    )
    pairs = zip(group.trajectories, advantage_GK, strict=True)
    return Credit(
        tuple(over_tokens(trajectory, value_K) for trajectory, value_K in pairs),
        figures={"advantage": advantage_GK},
    )
