"""SEED: the outcome, plus each token's shift under a hindsight skill the policy wrote itself.

As in OPID, but the analyser is the current policy (after a supervised warm-up on analyses), so
that it learns to act and to judge together. Per action token, with the gap
d = log-prob with the skill - log-prob without:

    advantage   A, as in GRPO
    term        coefficient * d as the token's weight: what an advantage of A + coefficient * d
                does, where one optimizer step is made per rollout

Our reading: of the method only the abstract is public. It says that the policy analyses finished
trajectories, that sampled actions are rescored with and without the skill, and that the token-level
shift joins the outcome's reward; weight and form are OPID's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Credit, Group
from turncredit.credit import grpo
from turncredit.credit.terms import check_not_negative, with_term

NEEDS_TEACHER = True
NEEDS = Needs(hint="reflection", term="opid", mix="coefficient")


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of SEED, as we read it."""

    coefficient: float = setting(0.001, "weight of the gap under the policy's own skill; 0 is GRPO")
    gap_clip: float = setting(0.0, "bound of a gap's absolute value; 0: none")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(coefficient=self.coefficient, gap_clip=self.gap_clip)


def loss_settings(config: Config) -> Mapping[str, float]:
    """What the loss has to know."""
    return {"opid_clip": config.gap_clip}


def credit(group: Group, config: Config) -> Credit:
    """GRPO's advantage, and the term's weight on every action token.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    return with_term(grpo.credit(group, config), group, config.coefficient)
