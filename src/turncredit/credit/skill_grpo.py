"""Skill-GRPO: GRPO whose student itself acts with the hint in its prompt.

Credit is GRPO's. What differs is whom it trains: the policy reads the skills while it acts, and is
evaluated both with and without them. The baseline published beside SDAR, which puts the skills into
the observation; here they stand where the hint source places them, in front of the opening one.
"""

from __future__ import annotations

from dataclasses import dataclass

from turncredit.core.needs import Needs
from turncredit.core.types import Credit, Group
from turncredit.credit import grpo

NEEDS_TEACHER = False
NEEDS = Needs(hint="skillbank", student_hint="all")


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of Skill-GRPO: those of the group baseline."""


def credit(group: Group, config: Config) -> Credit:
    """Every action token of a trajectory carries that trajectory's advantage."""
    return grpo.credit(group, config)
