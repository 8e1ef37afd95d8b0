"""GRPO: one number a trajectory, its reward against its group's.

A_i = (R_i - mean R) / (std R + epsilon), over the *trajectories* of a group, never over turn rows:
a long trajectory weighs no more than a short one. Defaults are those of the article (population
standard deviation, epsilon 1e-4).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.settings import setting
from turncredit.core.types import Array, Credit, Group, Trajectory, frozen_array

NEEDS_TEACHER = False

# Rewards closer than this are one reward: dividing their rounding noise by a tiny standard
# deviation would make a gradient out of nothing.
ZERO_SPREAD = 1e-9

STD_CHOICES = ("population", "sample", "none")


@dataclass(frozen=True)
class Config:
    """Settings of the group baseline; the defaults are the article's."""

    std: Literal["population", "sample", "none"] = setting(
        "population", "divide by the group's standard deviation (ddof 0 or 1), or do not"
    )
    epsilon: float = setting(1e-4, "added to the standard deviation before dividing")

    def __post_init__(self) -> None:
        check_baseline(self.std, self.epsilon)


def check_baseline(std: str, epsilon: float) -> None:
    """Refuse baseline settings that cannot work.

    Raises:
        ConfigError: unknown `std`, or an epsilon outside (0, 0.5).
    """
    if std not in STD_CHOICES:
        raise ConfigError(f"std must be one of {', '.join(STD_CHOICES)}; got {std!r}")
    if not 0 < epsilon < 0.5:
        raise ConfigError(f"epsilon must lie in (0, 0.5); got {epsilon}")


def advantage_G(
    reward_G: Array,
    *,
    std: Literal["population", "sample", "none"] = "population",
    epsilon: float = 1e-4,
) -> Array:
    """Group-relative advantage of each reward.

    Args:
        reward_G: (G,) outcomes of the members of one group.
        std: which standard deviation divides the centred rewards, if any.
        epsilon: added to it.

    Returns:
        (G,). Exactly zero everywhere when the rewards do not differ (so also for G = 1).
    """
    reward_G = np.asarray(reward_G, np.float64)
    if len(reward_G) < 2 or np.ptp(reward_G) <= ZERO_SPREAD:
        return np.zeros(len(reward_G))
    centred_G = reward_G - reward_G.mean()
    if std == "none":
        return centred_G
    return centred_G / (reward_G.std(ddof=int(std == "sample")) + epsilon)


def outcome_G(group: Group, config: Config) -> Array:
    """Advantage of each trajectory of `group`, (G,)."""
    return advantage_G(group.reward_G, std=config.std, epsilon=config.epsilon)


def over_tokens(trajectory: Trajectory, value_K: Array) -> tuple[Array, ...]:
    """Give every action token of turn k the value of its turn: per turn (N,)."""
    count_K = [len(turn.logprob_N) for turn in trajectory.turns]
    flat = np.repeat(np.asarray(value_K, np.float64), count_K)
    stops = list(accumulate(count_K, initial=0))
    return tuple(flat[start:stop] for start, stop in pairwise(stops))


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
