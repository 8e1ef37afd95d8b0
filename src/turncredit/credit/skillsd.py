"""Skill-SD: the outcome, and a k3 divergence to the hinted self weighted by the policy's ratio.

Per action token, with l = log pi - teacher log-prob and rho = pi / pi_old:

    advantage   A, as in GRPO
    term        coefficient * rho * (exp(-l) - 1 + l)

At the weights that sampled, the gradient is coefficient * l: a token the hinted teacher likes less
than the student is pushed down, one it likes more is pulled up. Both factors carry a gradient;
the loss guards the exponentials.

After the published code, whose hints are a fixed skill bank and whose teacher is the sampling
snapshot. The paper writes its skills from finished trajectories: `--hint reflection`.
"""

from __future__ import annotations

from dataclasses import dataclass

from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Credit, Group
from turncredit.credit import grpo
from turncredit.credit.terms import check_not_negative, with_term

NEEDS_TEACHER = True
NEEDS = Needs(hint="skillbank", term="skillsd", mix="coefficient")


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of Skill-SD; the defaults are those of the published scripts."""

    coefficient: float = setting(0.001, "weight of the divergence to the hinted self; 0 is GRPO")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(coefficient=self.coefficient)


def credit(group: Group, config: Config) -> Credit:
    """GRPO's advantage, and the term's weight on every action token.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    return with_term(grpo.credit(group, config), group, config.coefficient)
