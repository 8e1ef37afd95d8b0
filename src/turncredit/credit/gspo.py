"""GSPO: GRPO's advantage, with the ratio of the whole sequence clipped instead of each token's.

For a trajectory with advantage A: s = exp(mean over its action tokens of log pi - log pi_old), and
the loss is -min(s A, clip(s) A), with a clip of a few ten-thousandths: a mean over many tokens
moves little. What is new lies in the loss; credit is GRPO's.

After the published code; a sequence is a trajectory here (there: a turn).
"""

from __future__ import annotations

from dataclasses import dataclass

from turncredit.core.needs import Needs
from turncredit.core.types import Credit, Group
from turncredit.credit import grpo

NEEDS_TEACHER = False
NEEDS = Needs(loss="gspo", clip=(1 - 3e-4, 1 + 4e-4), aggregation="seq-mean-token-mean")


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of the group baseline; the clip is the run's (`--ppo-clip-low`, `-high`)."""


def credit(group: Group, config: Config) -> Credit:
    """Every action token of a trajectory carries that trajectory's advantage."""
    return grpo.credit(group, config)
