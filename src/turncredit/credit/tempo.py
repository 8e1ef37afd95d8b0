"""TEMPO: episodes in macro-steps, a branch worth its reward plus a critic's view of the rest.

A group is N branches of at most H turns from one state. With r the reward of a branch, and V what
a critic says its endpoint is worth (only where the branch ran out of turns: every other end is an
end, and has no future):

    return      R = r + V,      target  mean R      advantage   R - mean R, not divided

The critic is the policy itself, with an expert's solution in front of it, asked for
`<value>x</value>`. The published run trains its answers in the same batch: the reward of an answer
is minus its distance from the target, a reward without a number the worst, and its advantage is
reward - mean over the answers about one state (`critic_rewards`).

V comes in `Group.notes["endpoint_value"]`, NaN where nobody asked or no answer could be read; then
it is 0, as in a run without a critic, where credit is GRPO's without a deviation.

After the article's code for it. Asking the critic and restarting from saved states belong to the
loop, not here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Array, Credit, Group, StopReason, frozen_array
from turncredit.credit import grpo

NEEDS_TEACHER = False
ENDPOINT_VALUE = "endpoint_value"
NEEDS = Needs(loss="importance_sampling", notes=(ENDPOINT_VALUE,), zero_on_equal=False)

# Plain decimals only: a sign or an exponent is not an answer.
_VALUE = re.compile(r"<value>\s*(\d+(?:\.\d*)?|\.\d+)\s*</value>", re.IGNORECASE)


@dataclass(frozen=True)
class Config:
    """Settings of TEMPO."""

    reward_max: float = setting(1.0, "largest return: scale of the critic's error")

    def __post_init__(self) -> None:
        if not self.reward_max > 0:
            raise ConfigError(f"reward_max must be above 0; got {self.reward_max}")


@dataclass(frozen=True, slots=True)
class Answers:
    """What a critic's answers about one state earned, each (A,)."""

    reward: Array
    advantage: Array
    error: Array


def parse_value(text: str) -> float | None:
    """The last value a critic's answer gives, cut to [0, 1]; None when it gives none."""
    found = _VALUE.findall(text)
    return min(float(found[-1]), 1.0) if found else None


def endpoint_value(answers: Sequence[float | None]) -> float:
    """Mean of the answers that could be read; 0 without any."""
    read = [answer for answer in answers if answer is not None]
    return sum(read) / len(read) if read else 0.0


def bootstrapped_G(reward_G: Array, value_G: Array, unfinished_G: NDArray[np.bool_]) -> Array:
    """Return of each branch, (G,): its reward, plus a known value of what it did not finish."""
    return reward_G + np.where(unfinished_G & np.isfinite(value_G), value_G, 0.0)


def return_G(group: Group) -> Array:
    """Return of each branch of a group; one that ran out of turns is unfinished, (G,)."""
    value_G = group.notes.get(ENDPOINT_VALUE, np.zeros(len(group.trajectories)))
    unfinished_G = np.array([t.stop is StopReason.MAX_TURNS for t in group.trajectories], bool)
    return bootstrapped_G(group.reward_G, value_G, unfinished_G)


def critic_rewards(
    answers: Sequence[float | None], target: float, *, reward_max: float = 1.0
) -> Answers:
    """Reward, advantage and error of each answer about one state.

    Args:
        answers: what `parse_value` read, A of them.
        target: mean return of the branches from that state.
        reward_max: largest return. An answer without a number earns minus this.
    """
    error_A = np.array(
        [reward_max if a is None else abs(a - target) / reward_max for a in answers], np.float64
    )
    advantage_A = grpo.advantage_G(-error_A, std="none")
    return Answers(reward=-error_A, advantage=advantage_A, error=error_A)


def credit(group: Group, config: Config) -> Credit:
    """Every action token of a branch carries the branch's centred return."""
    given_G = return_G(group)
    advantage_GK = tuple(
        frozen_array(np.full(len(trajectory.turns), advantage))
        for trajectory, advantage in zip(
            group.trajectories, grpo.advantage_G(given_G, std="none"), strict=True
        )
    )
    pairs = zip(group.trajectories, advantage_GK, strict=True)
    return Credit(
        tuple(grpo.over_tokens(trajectory, value_K) for trajectory, value_K in pairs),
        figures={"advantage": advantage_GK},
        metrics={"value_target": float(given_G.mean())} if len(given_G) else {},
    )
