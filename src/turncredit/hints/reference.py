"""A reference solution of the task: what OPSD's teacher sees and the student does not.

It comes with the task: `payload["reference"]`, a text, or else `payload["walkthrough"]`, commands
that win. It belongs to the task alone, so it tells nothing of what this trajectory saw or did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from turncredit.core.errors import ConfigError
from turncredit.core.looks import Insertion, Look
from turncredit.core.settings import setting
from turncredit.core.types import Group, Task

_STEPS = "A way to solve this task, step by step:"
_SOLUTION = "A reference solution of this task:"


@dataclass(frozen=True)
class Config:
    """Where the reference stands."""

    place: Literal["system", "opening"] = setting(
        "system", "at the front of the system message, or of the first observation"
    )


class Reference:
    """The source: one look a trajectory, the same text for the whole group."""

    sees_future = False

    def __init__(self, config: Config) -> None:
        self._place: Literal["system", "opening"] = config.place

    def text(self, task: Task, group: Group) -> str:
        """The reference of one task, whole.

        Raises:
            ConfigError: the task comes without one.
        """
        reference = task.payload.get("reference")
        if isinstance(reference, str) and reference.strip():
            return f"{_SOLUTION}\n{reference.strip()}"
        commands = task.payload.get("walkthrough")
        if isinstance(commands, Sequence) and not isinstance(commands, str) and commands:
            steps = "\n".join(f"{n}. {command}" for n, command in enumerate(commands, start=1))
            return f"{_STEPS}\n{steps}"
        raise ConfigError(
            f"task {task.id} has no reference: hint reference needs a text "
            'Task.payload["reference"] or commands Task.payload["walkthrough"] from the '
            f"environment ({task.env}); choose --hint skillbank or hindsight instead"
        )

    def looks(self, group: Group) -> Sequence[Sequence[Look]]:
        """The reference for every member.

        Raises:
            ConfigError: the task comes without one.
        """
        look = Look((Insertion(self.text(group.task, group), self._place),))
        return [[look] for _ in group.trajectories]


def create(config: Config) -> Reference:
    """The hint source."""
    return Reference(config)
