"""The corridor, hints about it, and walks through it as the library's own trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turncredit.core.types import Array, Group, ScoredTrajectory, StopReason, Task, Trajectory, Turn

DOORS, KEY = 8, 2
START, PULL = -1.0, 2.0  # logits: of the policy at first, and what a hint adds
TASK = Task(id="corridor", env="corridor", split="train", task_type="corridor", digest="d")
TOKENS = np.arange(1 + 2 * DOORS)
WAYS = ("left", "right")


@dataclass(frozen=True)
class Hint:
    """Names one door, and moves whoever reads it `pull` towards right there."""

    door: int
    pull: float

    def on(self, logit_K: Array) -> Array:
        """The logits of a policy that reads it."""
        return logit_K + np.where(np.arange(DOORS) == self.door, self.pull, 0.0)


HINTS: Mapping[str, Hint] = {
    "right": Hint(KEY, PULL),  # the key door, the right way
    "useless": Hint(KEY + 4, PULL),  # a door that does not matter
    "wrong": Hint(KEY, -PULL),  # the key door, the wrong way
}


def log_prob_K2(logit_K: Array) -> Array:
    """Log-probability of left and right at each door, (K, 2)."""
    return -np.logaddexp(0.0, np.stack([logit_K, -logit_K], axis=1))


class Walks:
    """Makes the trajectories of one update: equal turns are one object.

    Args:
        old_2K: logits of the student without and with the hint in its prompt, (2, K).
        looks: logits of everybody else who reads the walks; "" is the teacher.
    """

    def __init__(self, old_2K: Array, looks: Mapping[str, Array]) -> None:
        self._old = [_cells(logit_K) for logit_K in old_2K]
        self._looks = {name: _cells(logit_K) for name, logit_K in looks.items()}
        self._turns: dict[tuple[int, int, bool, bool], Turn] = {}

    def group(self, action_GK: Sequence[Sequence[int]], hinted_G: Sequence[bool]) -> Group:
        """The group of these walks."""
        members = enumerate(zip(action_GK, hinted_G, strict=True))
        return Group(TASK, tuple(self._walk(i, a_K, hinted) for i, (a_K, hinted) in members))

    def _walk(self, member: int, action_K: Sequence[int], hinted: bool) -> Trajectory:
        won = bool(action_K[KEY])
        facts: dict[str, Any] = {
            "task": TASK,
            "member": member,
            "seed": member,
            "snapshot_id": "s",
            "tokens": TOKENS,
            "prompt_length": 1,
            "turns": tuple(self._turn(k, a, hinted, won) for k, a in enumerate(action_K)),
            "reward": float(won),
            "stop": StopReason.SUCCESS if won else StopReason.FAILED,
            "student_hint_hash": "h" if hinted else "",
        }
        read = {
            name: tuple([cell[a] for cell, a in zip(cells, action_K, strict=True)])
            for name, cells in self._looks.items()
        }
        if "" not in read:
            return Trajectory(**facts, streams=read)
        teacher_K = read.pop("")
        return ScoredTrajectory(
            **facts, streams=read, teacher_K=teacher_K, hint_hash="h", teacher_snapshot_id="s"
        )

    def _turn(self, k: int, action: int, hinted: bool, won: bool) -> Turn:
        pays = won and k == DOORS - 1  # nobody is told at the key door
        if (found := self._turns.get((k, action, hinted, pays))) is not None:
            return found
        made = Turn(
            start=1 + 2 * k,
            logprob_N=self._old[hinted][k][action],
            observation=f"You are at door {k + 1}.",
            text=WAYS[action],
            action=WAYS[action],
            reward=float(pays),
            state_key=f"door {k + 1}",
        )
        self._turns[k, action, hinted, pays] = made
        return made


def _cells(logit_K: Array) -> list[list[Array]]:
    """The log-probability of each way at each door, as an array of one number."""
    return [[value_2[:1], value_2[1:]] for value_2 in log_prob_K2(logit_K)]
