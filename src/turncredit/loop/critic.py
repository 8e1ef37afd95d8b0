"""What a branch is worth where it stopped: the policy as its own critic, an expert's way in hand.

For methods that read `Group.notes["endpoint_value"]`. Question and answer have the form of the
article's code for TEMPO. The critic is not trained here: its answers are the policy's as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from turncredit.core.looks import Ask
from turncredit.core.types import Group, StopReason, Trajectory
from turncredit.credit.tempo import ENDPOINT_VALUE, endpoint_value, parse_value
from turncredit.loop.concurrency import bounded

SAMPLES = 2  # answers a branch is judged by
_RECENT = 4  # turns shown

_QUESTION = """You judge how well an agent stands in the middle of a task.
Task: {goal}
An expert would do: {expert}

The agent has taken {count} turns. The last of them:
{turns}
It now sees: {now}

How likely is it to finish from here? End with a number from 0 (certain to fail) to 1 (certain to
succeed), written like <value>0.5</value>."""


async def judge(
    groups: Sequence[Group], ask: Ask, *, concurrency: int = 16
) -> tuple[list[Group], Mapping[str, float]]:
    """Add `endpoint_value` to every group.

    It is NaN for members that ended, never acted, or were judged in no readable way.

    Returns:
        The groups, and how many members were judged and how many answers could not be read.
    """
    asked = [
        t for group in groups for t in group.trajectories
        if t.stop is StopReason.MAX_TURNS and t.turns
    ]  # fmt: skip
    answers = await bounded([partial(_values, t, ask) for t in asked], concurrency)
    values = dict(zip((id(t) for t in asked), answers, strict=True))
    unread = sum(value is None for given in answers for value in given)
    noted = [
        replace(
            group,
            notes={
                **group.notes,
                ENDPOINT_VALUE: np.array([_mean(values.get(id(t))) for t in group.trajectories]),
            },
        )
        for group in groups
    ]
    return noted, {"critic/branches": float(len(asked)), "critic/parse_failures": float(unread)}


async def _values(trajectory: Trajectory, ask: Ask) -> list[float | None]:
    text = question(trajectory)
    return [parse_value(await ask(text)) for _ in range(SAMPLES)]


def _mean(values: list[float | None] | None) -> float:
    if not values or all(value is None for value in values):
        return float("nan")
    return endpoint_value(values)


def question(trajectory: Trajectory) -> str:
    """What the critic is asked about the end of `trajectory`."""
    payload = trajectory.task.payload
    recent = [f"> {turn.action or '(no valid action)'}" for turn in trajectory.turns[-_RECENT:]]
    return _QUESTION.format(
        goal=payload.get("goal", trajectory.task.task_type),
        expert=", ".join(payload.get("walkthrough", ())) or "(unknown)",
        count=len(trajectory.turns),
        turns="\n".join(recent),
        now=trajectory.final_observation.strip(),
    )
