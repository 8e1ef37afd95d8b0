"""DAPO: GRPO with a higher upper clip, groups that say nothing left out, and a price on length.

    reward      2 R - 1 + penalty,  R the outcome, 0 or 1
    penalty     0 up to limit - cache action tokens, then falling linearly to -1 at the limit
    advantage   (reward - mean) / (sample standard deviation + epsilon)

`keep` is dynamic sampling: a group whose outcomes are all the same teaches nothing, so another one
is played in its place. The ratio's bounds are 0.8 and 1.28, tokens are averaged over the batch.

After the published recipe in its reproduction for one-turn tasks; a trajectory's length is the sum
of its action tokens here, what the environment showed is not the policy's doing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Array, Credit, Group
from turncredit.credit import grpo
from turncredit.credit.terms import check_not_negative

NEEDS_TEACHER = False
# Lengths move advantages too, where an overlong penalty bites.
NEEDS = Needs(clip=(0.8, 1.28), zero_on_equal=False, independent=False)


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of DAPO; the defaults are those of its reproduction."""

    std: Literal["population", "sample", "none"] = setting(
        "sample", "divide by the group's standard deviation (ddof 0 or 1), or do not"
    )
    epsilon: float = setting(1e-8, "added to the standard deviation before dividing")
    overlong_limit: int = setting(4096, "action tokens that cost a whole point; 0: no penalty")
    overlong_cache: int = setting(1024, "action tokens below the limit where the penalty begins")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(overlong_limit=self.overlong_limit)
        if self.overlong_limit and not 1 <= self.overlong_cache <= self.overlong_limit:
            raise ConfigError(
                f"overlong_cache must lie in [1, overlong_limit] = [1, {self.overlong_limit}] "
                f"(or set overlong_limit to 0); got {self.overlong_cache}"
            )


def overlong_G(length_G: Array, *, limit: int, cache: int) -> Array:
    """Penalty of each length, (G,) in [-1, 0].

    Args:
        length_G: (G,) action tokens.
        limit: length from which the penalty is -1; 0 for no penalty at all.
        cache: tokens below the limit over which it grows linearly from 0.
    """
    length_G = np.asarray(length_G, np.float64)
    if not limit:
        return np.zeros(len(length_G))
    return -np.clip((length_G - (limit - cache)) / cache, 0.0, 1.0)


def penalty_G(group: Group, config: Config) -> Array:
    """Price of each member's length, (G,) in [-1, 0]."""
    length_G = [sum(len(turn.logprob_N) for turn in t.turns) for t in group.trajectories]
    return overlong_G(
        np.array(length_G, np.float64), limit=config.overlong_limit, cache=config.overlong_cache
    )


def keep(group: Group, config: Config) -> bool:
    """Whether the outcomes of `group` differ: its length penalty is no reason to keep it."""
    return len(group.trajectories) > 1 and bool(np.ptp(group.reward_G) > grpo.ZERO_SPREAD)


def credit(group: Group, config: Config) -> Credit:
    """Every action token of a trajectory carries the advantage of its shaped reward."""
    price_G = penalty_G(group, config)
    priced = tuple(
        replace(trajectory, reward=2 * trajectory.reward - 1 + price)
        for trajectory, price in zip(group.trajectories, price_G.tolist(), strict=True)
    )
    given = grpo.credit(replace(group, trajectories=priced), config)
    overlong = {"overlong_mean": float(price_G.mean())} if len(price_G) else {}
    return replace(given, metrics={**given.metrics, **overlong})
