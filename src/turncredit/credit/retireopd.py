"""RetireOPD: the outcome, plus distillation of a separately trained teacher until it has served.

The teacher is another run: the same environment with the hint in the *student's* prompt
(`skill_grpo`). The student plays without a hint; per action token, with d = teacher - student:

    advantage   A, as in GRPO
    term        coefficient * d as the token's weight (sampled reverse KL to the teacher)

The teacher is dropped for good, and GRPO is left, once both hold:

    the running average of mean |d| has not fallen by 1 % for `patience` updates
    the running average of the student's success is at least `fraction` of the teacher's

Our reading: of the method only the abstract is public. It gives the two conditions and that
retirement is for good; the averages, the patience and every number are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Credit, Group
from turncredit.credit import grpo
from turncredit.credit.terms import check_not_negative, with_term

NEEDS_TEACHER = True
NEEDS = Needs(hint="skillbank", snapshot="trained", term="opid", mix="coefficient")

# What counts as shrinking: noise alone makes new lows for ever, each a hair below the last.
SHRINK = 0.99


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of RetireOPD, as we read it."""

    coefficient: float = setting(0.1, "weight of the gap to the trained teacher; 0 is GRPO")
    gap_clip: float = setting(0.0, "bound of a gap's absolute value; 0: none")
    fraction: float = setting(0.9, "share of the teacher's success the student must reach")
    patience: int = setting(10, "updates without a smaller discrepancy before the teacher retires")
    smoothing: float = setting(0.9, "decay of the running averages, per update")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(
            coefficient=self.coefficient, gap_clip=self.gap_clip, fraction=self.fraction
        )
        if self.patience < 1:
            raise ConfigError(f"patience must be at least 1 update; got {self.patience}")
        if not 0 <= self.smoothing < 1:
            raise ConfigError(
                f"smoothing must lie in [0, 1) (0: the last update alone); got {self.smoothing}"
            )


def loss_settings(config: Config) -> Mapping[str, float]:
    """What the loss has to know."""
    return {"opid_clip": config.gap_clip}


def retire(
    state: Mapping[str, float], seen: Mapping[str, float], config: Config
) -> dict[str, float]:
    """The state after one more update with the teacher.

    Args:
        state: what the last call gave; empty before the first.
        seen: of this update: "discrepancy", the mean absolute gap of its action tokens, nats;
            "success", the share of its trajectories that succeeded; "teacher_success", the
            teacher's own share.
        config: fraction, patience and smoothing are used.

    Returns:
        "retired" (0 or 1; a 1 stays); "discrepancy" and "success", running averages; "lowest", the
        discrepancy to get below; "stalled", updates since it fell.
    """
    if state.get("retired"):
        return dict(state)
    discrepancy = _averaged(state, seen, "discrepancy", config)
    success = _averaged(state, seen, "success", config)
    lowest = state.get("lowest")
    shrinks = lowest is None or discrepancy < SHRINK * lowest
    stalled = 0.0 if shrinks else state["stalled"] + 1
    reached = success >= config.fraction * seen["teacher_success"]
    return {
        "retired": float(stalled >= config.patience and reached),
        "discrepancy": discrepancy,
        "success": success,
        "lowest": discrepancy if lowest is None or shrinks else lowest,
        "stalled": stalled,
    }


def _averaged(
    state: Mapping[str, float], seen: Mapping[str, float], name: str, config: Config
) -> float:
    if name not in state:
        return float(seen[name])
    return config.smoothing * state[name] + (1 - config.smoothing) * seen[name]


def credit(group: Group, config: Config) -> Credit:
    """GRPO's advantage, and the term's weight on every action token.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    return with_term(grpo.credit(group, config), group, config.coefficient)
