"""Bounded weights around 1 that reshape an advantage and never turn it round.

Every multiplicative method ends here: A ((1 - mix) + mix w) with w in [1 - bound, 1 + bound]. With
mix 0 the factor is 1.0 and the advantage is GRPO's, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.settings import setting
from turncredit.core.types import Array, Credit, Group, frozen_array
from turncredit.credit import grpo
from turncredit.credit.gaps import joined, split, turn_means, turn_sums

# exp of more overflows nothing and is past every bound; exp of less is as good as 0.
_STEEP = 20.0


def check_mix(mix: float, name: str = "mix") -> None:
    """Refuse a share of the weight outside [0, 1].

    Raises:
        ConfigError: it lies outside.
    """
    if not 0 <= mix <= 1:
        raise ConfigError(f"{name} must lie in [0, 1] (0 is GRPO); got {mix}")


def check_bound(bound: float, what: str = "turn") -> None:
    """Refuse a bound that lets a weight reach 0 or below.

    Raises:
        ConfigError: it does not lie in [0, 1).
    """
    if not 0 <= bound < 1:
        raise ConfigError(
            f"weight_bound must lie in [0, 1), or a {what} could change sign; got {bound}"
        )


@dataclass(frozen=True)
class TokenConfig(grpo.Config):
    """Settings of methods that weigh each token by how its gap leans."""

    mix: float = setting(0.5, "share of the token weight in the advantage; 0 is GRPO")
    weight_bound: float = setting(0.2, "token weights stay within 1 +/- this bound")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mix(self.mix)
        check_bound(self.weight_bound, "token")


def by_leaning(group: Group, gap_GK: Sequence[Sequence[Array]], config: TokenConfig) -> Credit:
    """Credit whose token weights are `leaning` of the gaps.

    Args:
        group: the trajectories.
        gap_GK: per trajectory and turn (N,): what is taken for a gap, nats.
        config: baseline, mix and bound.
    """
    advantage_G = grpo.outcome_G(group, config)
    weight_GT = [
        leaning(joined(gap_K), advantage, config.weight_bound)
        for gap_K, advantage in zip(gap_GK, advantage_G.tolist(), strict=True)
    ]
    return spread(group, advantage_G, gap_GK, weight_GT, mix=config.mix)


def around_one(z: Array, bound: float) -> Array:
    """clip(1 + bound z, 1 - bound, 1 + bound)."""
    return np.clip(1 + bound * z, 1 - bound, 1 + bound)


def leaning(gap: Array, advantage: float, bound: float) -> Array:
    """clip(exp(sign(A) gap), 1 - bound, 1 + bound): more where the gap argues as the outcome does.

    Args:
        gap: nats.
        advantage: only its sign is used; 0 gives 1.
        bound: see `check_bound`.
    """
    agreement = np.clip(np.sign(advantage) * gap, -_STEEP, _STEEP)
    return np.clip(np.exp(agreement), 1 - bound, 1 + bound)


def mixed(advantage: float, weight: Array, mix: float, floor: float = 0.0) -> Array:
    """A ((1 - mix) + mix w), the factor held at or above `floor`."""
    return advantage * np.maximum((1 - mix) + mix * weight, floor)


def spread(
    group: Group,
    advantage_G: Array,
    gap_GK: Sequence[Sequence[Array]],
    weight_GT: Sequence[Array],
    *,
    mix: float,
    floor: float = 0.0,
) -> Credit:
    """Credit from one weight a token.

    Args:
        group: the trajectories.
        advantage_G: (G,) group-relative advantages.
        gap_GK: per trajectory and turn (N,): what the weights were made of, nats.
        weight_GT: per trajectory (T,) weights of its action tokens.
        mix: share of the weight.
        floor: smallest factor an advantage may be multiplied by.

    Returns:
        Figures per turn: `evidence` (sum of the gaps), `weight` (mean; 1 without tokens) and
        `advantage` (mean; 0 without tokens).
    """
    rows = list(zip(group.trajectories, advantage_G.tolist(), weight_GT, strict=True))
    advantage_GK = tuple(split(mixed(a, w_T, mix, floor), t) for t, a, w_T in rows)
    return Credit(
        advantage_GK,
        figures={
            "evidence": tuple(frozen_array(turn_sums(gap_K)) for gap_K in gap_GK),
            "weight": tuple(frozen_array(turn_means(split(w_T, t), 1.0)) for t, _, w_T in rows),
            "advantage": tuple(frozen_array(turn_means(a_K)) for a_K in advantage_GK),
        },
        metrics=gap_metrics(gap_GK) | weight_metrics(joined(weight_GT)),
    )


def gap_metrics(gap_GK: Sequence[Sequence[Array]]) -> dict[str, float]:
    """Means over turns of the summed gaps, and of their sizes; nothing for no turns."""
    evidence = joined([turn_sums(gap_K) for gap_K in gap_GK])
    if not len(evidence):
        return {}
    return {
        "evidence_mean": float(evidence.mean()),
        "evidence_abs_mean": float(np.abs(evidence).mean()),
    }


def weight_metrics(weight: Array) -> dict[str, float]:
    """How far the weights leave 1; nothing for no weights."""
    if not len(weight):
        return {}
    return {
        "weight_mean": float(weight.mean()),
        "weight_std": float(weight.std()),
        "weight_min": float(weight.min()),
        "weight_max": float(weight.max()),
    }
