"""Extrapolation: the policy's own way so far, carried on, is the teacher. No hint, no other model.

Per token t of a trajectory with group-relative advantage A:

    gap        d_t = reach (s_t - r_t),  s the policy's log-prob, r that of the initial policy
    weight     w_t = clip(exp(sign(A) d_t), 1 - bound, 1 + bound)
    advantage  A_t = A ((1 - mix) + mix w_t)

In log space the teacher lies as far beyond the policy, times `reach`, as the policy has come from
where it began: log t = s + reach (s - r), not normalised. At the first update nothing has moved and
this is GRPO.

*Our reading*, and not that paper's method: written after the truncated public abstract of "RISE:
Recursive Improvement via Self-Extrapolating Policy Distillation", which names a policy that
extrapolates itself and no formula. Ours is that the initial policy is where the line begins, and
that the teacher only weighs what the outcome has signed (RLSD's weight, its bound and mix).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import REFERENCE, Array, Credit, Group, Trajectory
from turncredit.credit.weights import TokenConfig, by_leaning

NEEDS_TEACHER = False
NEEDS = Needs(mix="mix", bound="weight_bound", streams=(REFERENCE,))


@dataclass(frozen=True)
class Config(TokenConfig):
    """Settings of the extrapolation. Our reading after RISE's abstract, not that paper's method."""

    reach: float = setting(1.0, "how far beyond the policy its teacher lies, in ways come so far")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (np.isfinite(self.reach) and self.reach > 0):
            raise ConfigError(f"reach must be a positive number; got {self.reach}")


def way_come(trajectory: Trajectory) -> tuple[Array, ...]:
    """How far it moved, s - r, of every action token, per turn (N,), nats.

    Raises:
        ConfigError: the initial policy has not scored the trajectory.
    """
    reference_K = trajectory.streams.get(REFERENCE)
    if reference_K is None:
        raise ConfigError(
            f'trajectory {trajectory.name} has no stream "{REFERENCE}": let the initial policy '
            "score it (loop.rescoring.refer) before a method that extrapolates from it"
        )
    pairs = zip(trajectory.turns, reference_K, strict=True)
    return tuple(turn.logprob_N - reference_N for turn, reference_N in pairs)


def credit(group: Group, config: Config) -> Credit:
    """Token-level credit of a group the initial policy has scored.

    Raises:
        ConfigError: the initial policy has not scored a trajectory.
    """
    gap_GK = [
        tuple(config.reach * way_N for way_N in way_come(trajectory))
        for trajectory in group.trajectories
    ]
    return by_leaning(group, gap_GK, config)
