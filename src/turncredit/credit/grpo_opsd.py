"""GRPO + OPSD: the outcome, and plain self-distillation added to it without a gate.

The published code runs it as SDAR with beta 0, which holds the gate at one half: the term is
coefficient * (teacher - student) / 2, its gradient a constant pull of coefficient / 2 on every
sampled token. A teacher that rejects the token is not heard, which is what SDAR's gate is about.
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
    """Settings of GRPO + OPSD; the defaults are those of the published scripts."""

    coefficient: float = setting(0.01, "weight of the term, halved by its fixed gate; 0 is GRPO")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(coefficient=self.coefficient)


def loss_settings(config: Config) -> Mapping[str, float]:
    """What the loss has to know: a gate that does not move."""
    return {"sdar_beta": 0.0}


def credit(group: Group, config: Config) -> Credit:
    """GRPO's advantage, and the term's weight on every action token.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    return with_term(grpo.credit(group, config), group, config.coefficient)
