"""OPID: add to the outcome how much hindsight skills about this very trajectory move each token.

After the episode, an analyser writes one skill about all of it and a few about single turns. The
old policy reads its own trajectory again with them; with the gaps d = teacher - student log-prob:

    advantage   A + weight * (episode_weight * d_episode + step_weight * d_step)

per token. The streams "episode" and "step" are the hint source's looks: by default a turn with a
step skill is read with that alone, and the others with the episode's. A turn that no look covers
has no gap. The sum is not bounded and may turn a token's sign: a gap of -50 costs 0.05.

After the published code. Its share of anchor-relative advantage has weight 0 in every published
script, and is left to the parity room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Array, Credit, Group
from turncredit.credit import grpo
from turncredit.credit.gaps import scored
from turncredit.credit.terms import check_not_negative

NEEDS_TEACHER = True
NEEDS = Needs(hint="reflection", mix="weight", streams=("episode", "step"), zero_on_equal=False)

Gaps = Sequence[tuple[Array, ...]]

_EPSILON = 1e-6  # of the published standardisation


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of OPID; the defaults are those of the published scripts."""

    weight: float = setting(1.0, "scales both gaps; 0 is GRPO")
    episode_weight: float = setting(0.001, "weight of the gap under the episode's skill")
    step_weight: float = setting(0.001, "weight of the gap under a turn's own skill")
    gap_scale: Literal["raw", "standard"] = setting(
        "raw", "gaps as they are, or standardised over the group's tokens of the stream"
    )
    gap_clip: float = setting(0.0, "bound of a gap's absolute value, after scaling; 0: none")
    members: Literal["all", "failed"] = setting("all", "whose gaps count")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(
            weight=self.weight,
            episode_weight=self.episode_weight,
            step_weight=self.step_weight,
            gap_clip=self.gap_clip,
        )
        for name, known in (("gap_scale", ("raw", "standard")), ("members", ("all", "failed"))):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{name} must be {' or '.join(known)}; got {getattr(self, name)!r}"
                )


def moments(value_N: Array) -> tuple[float, float]:
    """What to subtract and what to divide by, so that values are standardised.

    The population deviation plus a little, or 1 where it is no more than rounding.
    """
    if not len(value_N):
        return 0.0, 1.0
    spread = float(value_N.std())
    return float(value_N.mean()), spread + _EPSILON if spread > _EPSILON else 1.0


def gaps(group: Group, stream: str, config: Config) -> Gaps:
    """Gaps of one stream as the settings want them, `[trajectory][turn]` -> (N,), nats.

    A turn whose gaps are exactly 0 is one that no look of this name covered; it stays so.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    raw = [scored(trajectory).gap_of(stream) for trajectory in group.trajectories]
    if config.members == "failed":
        counts_G = (~group.success_G.astype(bool)).tolist()
        raw = [_times(gap_K, float(counts)) for counts, gap_K in zip(counts_G, raw, strict=True)]
    centre, scale = 0.0, 1.0
    if config.gap_scale == "standard":
        seen = [gap_N for gap_K in raw for gap_N in gap_K if gap_N.any()]
        centre, scale = moments(np.concatenate([np.zeros(0), *seen]))
    bound = config.gap_clip or np.inf
    return [
        tuple(
            np.clip((gap_N - centre) / scale, -bound, bound) if gap_N.any() else gap_N
            for gap_N in gap_K
        )
        for gap_K in raw
    ]


def credit(group: Group, config: Config) -> Credit:
    """The outcome's advantage plus the weighted gaps of both streams, per token.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    given = grpo.credit(group, config)
    if config.weight == 0:
        return given
    shares = {"episode": config.episode_weight, "step": config.step_weight}
    for stream, share in shares.items():
        gaps_GK = gaps(group, stream, config)
        given = replace(
            given,
            advantage=tuple(
                tuple(
                    a + b for a, b in zip(have, _times(gap_K, config.weight * share), strict=True)
                )
                for have, gap_K in zip(given.advantage, gaps_GK, strict=True)
            ),
            metrics={**given.metrics, **_metrics(stream, gaps_GK)},
        )
    return given


def _times(gap_K: Sequence[Array], factor: float) -> tuple[Array, ...]:
    return tuple(gap_N * factor for gap_N in gap_K)


def _metrics(stream: str, gaps_GK: Gaps) -> Mapping[str, float]:
    every = np.concatenate([np.zeros(0), *(gap_N for gap_K in gaps_GK for gap_N in gap_K)])
    if not len(every):
        return {}
    return {
        f"{stream}_gap_abs_mean": float(np.abs(every).mean()),
        f"{stream}_moved": float((every != 0).mean()),
    }
