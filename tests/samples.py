"""Groups made of numbers: scored trajectories with given gaps, for tests of credit and loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from turncredit.core.types import Group, ScoredTrajectory, StopReason, Task, Trajectory, Turn

TASK = Task(id="t", env="sample", split="train", task_type="x", digest="d")


def scored(
    gap_K: Sequence[Sequence[float]], reward: float, member: int = 0, text: str = ""
) -> ScoredTrajectory:
    """One trajectory; `gap_K[k]` are the gaps of the tokens of turn k (possibly none)."""
    turns, position = [], 2
    for gaps in gap_K:
        turns.append(Turn(start=position, logprob_N=np.full(len(gaps), -1.0), text=text))
        position += len(gaps) + 1
    return ScoredTrajectory(
        task=TASK, member=member, seed=member, snapshot_id="s", tokens=np.arange(position),
        prompt_length=2, turns=tuple(turns), reward=reward,
        stop=StopReason.SUCCESS if reward > 0 else StopReason.FAILED,
        teacher_K=tuple(np.asarray(gaps, float) - 1.0 for gaps in gap_K),
        hint_hash="h", teacher_snapshot_id="s",
    )  # fmt: skip


def group_of(
    rewards: Sequence[float], evidence_GK: Sequence[Sequence[float]], tokens: int = 1
) -> Group:
    """One turn per evidence, spread evenly over `tokens` tokens."""
    pairs = enumerate(zip(rewards, evidence_GK, strict=True))
    return Group(
        TASK,
        tuple(scored([[e / tokens] * tokens for e in ev], float(r), i) for i, (r, ev) in pairs),
    )


def unscored(trajectory: ScoredTrajectory) -> Trajectory:
    """The same trajectory before the teacher looked at it."""
    names = ("task", "member", "seed", "snapshot_id", "tokens", "prompt_length", "turns", "reward")
    values = {name: getattr(trajectory, name) for name in names}
    return Trajectory(stop=trajectory.stop, **values)


def reordered(group: Group, order: Sequence[int]) -> Group:
    """The same members, and the notes about them, in another order."""
    chosen = list(order)
    return replace(
        group,
        trajectories=tuple(group.trajectories[i] for i in chosen),
        notes={name: values_G[chosen] for name, values_G in group.notes.items()},
    )


def walk(
    observations: Sequence[str], rewards: Sequence[float], member: int = 0, **changes: object
) -> Trajectory:
    """A trajectory of one-token turns that began with `observations` and earned `rewards`."""
    turns = tuple(
        Turn(start=2 + 2 * k, logprob_N=np.full(1, -1.0), observation=text, reward=reward)
        for k, (text, reward) in enumerate(zip(observations, rewards, strict=True))
    )
    won = sum(rewards) > 0
    values: dict[str, object] = {
        "task": TASK, "member": member, "seed": member, "snapshot_id": "s",
        "tokens": np.arange(2 + 2 * len(turns)), "prompt_length": 2, "turns": turns,
        "reward": float(won), "stop": StopReason.SUCCESS if won else StopReason.FAILED,
    }  # fmt: skip
    return Trajectory(**{**values, **changes})
