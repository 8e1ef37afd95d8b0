"""GiGPO: the outcome, plus each turn against the turns of the group that began in the same state.

    return      G_k = r_k + gamma G_{k+1}  over the rewards of a trajectory's turns
    step        (G_k - mean) / (std + epsilon)  over the turns of the group with k's anchor;
                0 for a turn that is alone
    advantage   A + step_weight * step

No teacher. The anchor is the text shown before the action, or the environment's state key. In a
task that rewards only its end, G counts how soon success came: even a group of nothing but
successes then prefers the turns that were nearer to it, and a group of failures stays silent.

After the published code; there, statistics of the outcome are over turn rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from turncredit.core.needs import Needs
from turncredit.core.types import Credit, Group
from turncredit.credit import anchors

NEEDS_TEACHER = False
NEEDS = Needs(mix="step_weight", zero_on_equal=False, independent=False)


@dataclass(frozen=True)
class Config(anchors.Config):
    """Settings of GiGPO; gamma, weight and the steps' deviation are the published ones."""


def credit(group: Group, config: Config) -> Credit:
    """The outcome's advantage plus the anchors'.

    Raises:
        ConfigError: the environment gives no state keys, and they are asked for.
    """
    return anchors.credit(group, config)
