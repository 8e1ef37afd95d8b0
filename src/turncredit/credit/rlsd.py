"""RLSD: the outcome sets the sign, the hinted self scales every token by a clipped ratio.

Per token t of a trajectory with group-relative advantage A:

    gap        d_t = teacher - student log-prob, nats
    weight     w_t = clip(exp(sign(A) d_t), 1 - bound, 1 + bound)
    advantage  A_t = A ((1 - mix) + mix w_t)

Source: arXiv 2604.03128, where the teacher sees a reference answer, and the baseline published with
SDAR, where it sees skills; numbers are that code's. Its mix falls linearly to 0 over 100 updates.
"""

from __future__ import annotations

from dataclasses import dataclass

from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Credit, Group
from turncredit.credit import grpo
from turncredit.credit.gaps import gaps_of, joined
from turncredit.credit.weights import check_bound, check_mix, leaning, spread

NEEDS_TEACHER = True
NEEDS = Needs(hint="skillbank", mix="mix", decay_steps=100, bound="weight_bound")


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of RLSD; the defaults are the published scripts'."""

    mix: float = setting(0.5, "share of the token weight in the advantage; 0 is GRPO")
    weight_bound: float = setting(0.2, "token weights stay within 1 +/- this bound")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mix(self.mix)
        check_bound(self.weight_bound, "token")


def credit(group: Group, config: Config) -> Credit:
    """Token-level credit of a scored group.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    gap_GK = [gaps_of(trajectory) for trajectory in group.trajectories]
    advantage_G = grpo.outcome_G(group, config)
    weight_GT = [
        leaning(joined(gap_K), advantage, config.weight_bound)
        for gap_K, advantage in zip(gap_GK, advantage_G.tolist(), strict=True)
    ]
    return spread(group, advantage_G, gap_GK, weight_GT, mix=config.mix)
