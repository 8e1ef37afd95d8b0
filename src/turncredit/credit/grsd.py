"""GRSD: guidance written from a group's own successes and failures scales each turn, with a floor.

Per turn k of a trajectory with group-relative advantage A, in a group that has both outcomes and a
hint (any other group is plain GRPO):

    gap        d_k = mean over the turn's action tokens of (teacher - student) log-prob, nats
    signal     e_k = exp(clip(sign(A) d_k, -20, 20)) - 1
    scaled     n_k = e_k / (mean |e| over the turns of the group + 1e-6), 0 where |n| <= dead_zone
    gate       g_k = clip(n_k, -bound, bound)
    advantage  A_k = A max(1 + mix g_k, floor)

With `level` "token" (a published ablation) each token has a gap and a gate of its own, scaled by
the group's mean or not at all.

Source: arXiv 2607.28076 and its published code; numbers are the launcher's (the code's own default
bound is 3). The mean is over turns, so here long trajectories weigh more in the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Array, Credit, Group
from turncredit.credit import grpo
from turncredit.credit.gaps import joined, scored, turn_means
from turncredit.credit.weights import check_mix, spread

NEEDS_TEACHER = True
NEEDS = Needs(hint="guidance", mix="mix", bound="weight_bound", independent=False)

_STEEP = 20.0
_EPSILON = 1e-6  # beside a mean of signals, not of rewards: published apart from `epsilon`


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of GRSD; the defaults are those of the published launcher."""

    mix: float = setting(0.5, "share of the gate in the advantage; 0 is GRPO")
    weight_bound: float = setting(0.2, "gates stay within +/- this bound")
    floor: float = setting(0.1, "smallest factor an advantage is multiplied by")
    dead_zone: float = setting(0.0, "scaled signals up to this size count as none")
    level: Literal["turn", "token"] = setting("turn", "what has a gate: turns, or single tokens")
    token_norm: Literal["none", "group"] = setting(
        "none", "what token signals are divided by: nothing, or the group's mean size"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mix(self.mix)
        for name, value in (("weight_bound", self.weight_bound), ("dead_zone", self.dead_zone)):
            if not (np.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be 0 or more; got {value}")
        if not 0 < self.floor <= 1:
            raise ConfigError(
                f"floor must lie in (0, 1], or a turn could change sign; got {self.floor}"
            )


def signal(gap: Array, advantage: Array) -> Array:
    """e: how much more (or less) likely the teacher finds what the outcome asks for."""
    return np.expm1(np.clip(np.sign(advantage) * gap, -_STEEP, _STEEP))


def scale(signals: Array, epsilon: float = _EPSILON) -> float:
    """Mean size of a group's signals, never 0."""
    return (float(np.abs(signals).mean()) if len(signals) else 0.0) + epsilon


def gate(signals: Array, divisor: float, config: Config) -> Array:
    """g: scaled signals without the small ones, within +/- `config.weight_bound`."""
    scaled = signals / divisor
    loud = np.where(np.abs(scaled) <= config.dead_zone, 0.0, scaled)
    return np.clip(loud, -config.weight_bound, config.weight_bound)


def reflection_advantage(
    score_G: ArrayLike, valid_G: ArrayLike, epsilon: float = _EPSILON
) -> Array:
    """Advantage of the reflections of one group, from a judge's scores.

    Args:
        score_G: (G,) judged quality, on any scale.
        valid_G: (G,) whether the reflection could be read and judged.
        epsilon: added to the population deviation.

    Returns:
        (G,). 0 where not valid, and everywhere with fewer than two valid ones.
    """
    kept = np.flatnonzero(np.asarray(valid_G, bool))
    score_G = np.asarray(score_G, np.float64)
    out_G = np.zeros(len(score_G))
    out_G[kept] = grpo.advantage_G(score_G[kept], epsilon=epsilon)
    return out_G


def credit(group: Group, config: Config) -> Credit:
    """Credit of a scored group, by turn or by token.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    judged_G = [scored(trajectory) for trajectory in group.trajectories]
    gap_GK = [trajectory.gap_K for trajectory in judged_G]
    guided_G = [bool(trajectory.hint_hash) for trajectory in judged_G]
    if not any(guided_G) or not np.ptp(group.success_G):
        return grpo.credit(group, config)
    advantage_G = grpo.outcome_G(group, config)
    signal_GK = [
        _signals(gap_K, advantage, config.level)
        for gap_K, advantage in zip(gap_GK, advantage_G, strict=True)
    ]
    divisor = _divisor(signal_GK, guided_G, config)
    weight_GT = [
        1 + guided * gate(joined(signal_K), divisor, config)
        for signal_K, guided in zip(signal_GK, guided_G, strict=True)
    ]
    return spread(group, advantage_G, gap_GK, weight_GT, mix=config.mix, floor=config.floor)


def _signals(gap_K: Sequence[Array], advantage: Array, level: str) -> list[Array]:
    """Per turn (N,): each token's signal, or that of the turn's mean gap."""
    if level == "token":
        return [signal(gap_N, advantage) for gap_N in gap_K]
    signal_K = signal(turn_means(gap_K), advantage)
    return [np.full(len(gap_N), e) for gap_N, e in zip(gap_K, signal_K, strict=True)]


def _divisor(
    signal_GK: Sequence[Sequence[Array]], guided_G: Sequence[bool], config: Config
) -> float:
    """What the signals of a group are divided by: turns count once each, whatever their length."""
    if config.level == "token" and config.token_norm == "none":
        return 1.0
    count = 1 if config.level == "turn" else None
    return scale(
        joined(
            [
                signal_N[:count]
                for signal_K, guided in zip(signal_GK, guided_G, strict=True)
                if guided
                for signal_N in signal_K
            ]
        )
    )
