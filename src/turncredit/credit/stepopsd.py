"""StepOPSD: hindsight scales tokens within a trust region, every step by the same mean amount.

Per token t of step k (a turn) of a trajectory with group-relative advantage A:

    gap        d_t = teacher - student log-prob, nats; the teacher is an older snapshot of the
               policy and reads hindsight at the step's boundary
    weight     w_t = 2 sigmoid(sign(A) d_t)
    change     u_t = clip(w_t - 1, -bound, bound)
    budget     u_t <- clip(u_t m / (mean |u| over the step + epsilon), -bound, bound),
               m the mean over the trajectory's steps of mean |u|
    advantage  A_t = A (1 + mix u_t)

Source: arXiv 2605.27140, of which a summary is public and no code. It gives w, the trust region
of 0.2, the mix of 0.2 that falls to 0 over 50 updates, and that every step has the same mean
absolute budget. *Our reading*: clip first, then scale to the trajectory's mean budget, then clip
again (which the scaling could undo; a step at the clip then keeps a little less than the budget);
the size of the budget; and that a step is the whole sampled action (`clean_step`). Its
`action_only` cuts reasoning off; which tokens of an action are the command is not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Array, Credit, Group
from turncredit.credit import grpo
from turncredit.credit.belief import sigmoid
from turncredit.credit.gaps import gaps_of, joined, turn_means
from turncredit.credit.weights import check_bound, check_mix, spread

NEEDS_TEACHER = True
NEEDS = Needs(
    hint="hindsight", snapshot="stale", mix="mix", decay_steps=50, bound="weight_bound"
)  # fmt: skip


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of StepOPSD; the defaults are the paper's as far as its summary gives them."""

    epsilon: float = setting(1e-4, "added to standard deviations and to a step's mean change")
    mix: float = setting(0.2, "share of the token weight in the advantage; 0 is GRPO")
    weight_bound: float = setting(0.2, "trust region: token weights stay within 1 +/- this bound")
    spans: Literal["clean_step"] = setting(
        "clean_step", "which tokens of a step are scaled: all the policy sampled"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mix(self.mix)
        check_bound(self.weight_bound, "token")


def credit(group: Group, config: Config) -> Credit:
    """Token-level credit of a scored group, every step with the same budget.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    gap_GK = [gaps_of(trajectory) for trajectory in group.trajectories]
    advantage_G = grpo.outcome_G(group, config)
    weight_GT = [
        1 + joined(changes(gap_K, advantage, config))
        for gap_K, advantage in zip(gap_GK, advantage_G.tolist(), strict=True)
    ]
    return spread(group, advantage_G, gap_GK, weight_GT, mix=config.mix)


def changes(gap_K: Sequence[Array], advantage: float, config: Config) -> list[Array]:
    """Changes u of one trajectory, per step (N,), each within +/- `config.weight_bound`.

    Args:
        gap_K: per step (N,) nats. Steps without tokens have no part in the budget.
        advantage: only its sign is used.
        config: bound and epsilon are used.
    """
    bound = config.weight_bound
    raw_K = [np.clip(2 * sigmoid(np.sign(advantage) * gap_N) - 1, -bound, bound) for gap_N in gap_K]
    mean_K = turn_means([np.abs(raw_N) for raw_N in raw_K])
    filled_K = [len(raw_N) > 0 for raw_N in raw_K]
    budget = float(mean_K[filled_K].mean()) if any(filled_K) else 0.0
    return [
        np.clip(raw_N * (budget / (mean + config.epsilon)), -bound, bound)
        for raw_N, mean in zip(raw_K, mean_K.tolist(), strict=True)
    ]
