"""SDAR: beside the outcome, raise every action token by how much the hinted self approves of it.

Per action token, with the gap d = teacher - student log-prob (numbers: the published defaults):

    advantage   A, as in GRPO
    term        coefficient * sigmoid(beta d) * d,  the gate held fixed

The gradient pulls every sampled token *up*, by the gate: close to 1 where the hinted teacher likes
the token, close to 0 where it rejects it. A token is never pushed down by the term. The gate is
recomputed with the policy of each optimizer step; the teacher's side stays that of the rollout.

After the published code of "Self-Distilled Agentic Reinforcement Learning".
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
NEEDS = Needs(hint="skillbank", term="sdar", mix="coefficient")


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of SDAR; the defaults are those of the published scripts."""

    coefficient: float = setting(0.01, "weight of the gated distillation term; 0 is GRPO")
    beta: float = setting(5.0, "how sharply the gate opens with the gap; 0: always one half")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(coefficient=self.coefficient, beta=self.beta)


def loss_settings(config: Config) -> Mapping[str, float]:
    """What the loss has to know."""
    return {"sdar_beta": config.beta}


def credit(group: Group, config: Config) -> Credit:
    """GRPO's advantage, and the term's weight on every action token.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    return with_term(grpo.credit(group, config), group, config.coefficient)
