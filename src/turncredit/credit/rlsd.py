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
from turncredit.core.types import Credit, Group
from turncredit.credit.gaps import gaps_of
from turncredit.credit.weights import TokenConfig, by_leaning

NEEDS_TEACHER = True
NEEDS = Needs(hint="skillbank", mix="mix", decay_steps=100, bound="weight_bound")


@dataclass(frozen=True)
class Config(TokenConfig):
    """Settings of RLSD; the defaults are the published scripts'."""


def credit(group: Group, config: Config) -> Credit:
    """Token-level credit of a scored group.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    return by_leaning(group, [gaps_of(t) for t in group.trajectories], config)
