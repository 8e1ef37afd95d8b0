"""Groups that no second look could give a weight: their trajectories need not be read again.

When all members of a group have one outcome, most methods' credit is exactly 0 whatever the teacher
says. Such a group trains nothing; scoring it would be the dearest part of an update for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from turncredit.core.needs import Needs
from turncredit.core.types import Array, Group, ScoredTrajectory, Trajectory
from turncredit.credit.grpo import ZERO_SPREAD

_LOUD = 2.0  # nats, deviation of the made-up gaps


def promised(method: Any, needs: Needs, config: Any) -> bool:
    """The method says that members of equal outcome get no weight, in advantage or term.

    Args:
        method: one that may let its teacher retire hears every gap, and promises nothing.
        needs: what it asks for with `config`.
        config: its settings at this update.
    """
    return not hasattr(method, "retire") and weightless(needs, config)


def weightless(needs: Needs, config: Any) -> bool:
    """The method says that members of equal outcome train nothing. With its mix at 0 it is GRPO."""
    if needs.mix and getattr(config, needs.mix) == 0:
        return True
    return needs.zero_on_equal and not needs.term


def is_silent(group: Group, method: Any, needs: Needs, config: Any) -> bool:
    """Whether the credit of `group` is exactly 0 whatever a look would find.

    The promise is not taken on trust (a method that says nothing of itself has promised): it must
    hold for this group under gaps that are made up.
    """
    if not group.trajectories or np.ptp(group.reward_G) > ZERO_SPREAD:
        return False
    if not promised(method, needs, config):
        return False
    return not method.credit(pretended(group, needs.streams), config).has_signal


def pretended(group: Group, streams: Sequence[str] = ()) -> Group:
    """`group` as some teacher might have scored it: every token has a gap, the same each time."""
    draw = np.random.default_rng(0)
    return replace(
        group, trajectories=tuple(_pretended(t, streams, draw) for t in group.trajectories)
    )


def _pretended(
    trajectory: Trajectory, streams: Sequence[str], draw: np.random.Generator
) -> ScoredTrajectory:
    def other() -> tuple[Array, ...]:
        return tuple(
            turn.logprob_N + draw.normal(0, _LOUD, len(turn.logprob_N)) for turn in trajectory.turns
        )

    values = {f.name: getattr(trajectory, f.name) for f in fields(Trajectory)}
    values["streams"] = {**trajectory.streams, **{name: other() for name in streams}}
    return ScoredTrajectory(
        **values, teacher_K=other(), hint_hash="made up", teacher_snapshot_id=""
    )


def context_tokens(groups: Sequence[Group]) -> int:
    """Tokens of all trajectories: what one look would have read at least, its hint not counted."""
    return sum(len(t.tokens) for group in groups for t in group.trajectories)
