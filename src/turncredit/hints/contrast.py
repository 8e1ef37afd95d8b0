"""One right hint and several wrong ones, to be read side by side: for the contrastive method.

The right text is the look credit is made from; the wrong ones are kept as streams `wrong0`,
`wrong1`, ... With `skillbank` a wrong text is the general one with the skill of another type of
task; with `toy_key` it names another door. Which ones is decided by the task's id alone, so all
members of a group, and all runs, meet the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from turncredit.core.errors import ConfigError
from turncredit.core.looks import Demand, Insertion, Look
from turncredit.core.settings import setting
from turncredit.core.types import Group, Task
from turncredit.hints import skillbank, toy
from turncredit.hints.texts import check_at_least

WRONG = "wrong{}"  # name of a wrong look, so of its stream


@dataclass(frozen=True)
class Config(skillbank.Config):
    """Where the texts come from, and how many are wrong."""

    source: Literal["skillbank", "toy_key"] = setting(
        "skillbank", "skills, or for the toy the doors of the corridor"
    )
    wrong_hints: int = setting(2, "wrong texts beside the right one")

    def __post_init__(self) -> None:
        check_at_least(1, wrong_hints=self.wrong_hints)

    @property
    def demand(self) -> Demand:
        """One look for every text."""
        return Demand(least_looks=1 + self.wrong_hints, looks=1 + self.wrong_hints)


class Contrast:
    """The source: 1 + `wrong_hints` looks, so as many requests, a trajectory."""

    sees_future = False

    def __init__(self, config: Config) -> None:
        self._count = config.wrong_hints
        self._bank = skillbank.create(config) if config.source == "skillbank" else None
        self._doors = toy.create(toy.Config())

    def texts(self, task: Task, group: Group) -> tuple[str, list[str]]:
        """The right text, and the wrong ones.

        Raises:
            ConfigError: nothing is known about such tasks, or too little that is wrong.
        """
        if self._bank is None:
            right, others = self._doors.text(task, group), toy.other_doors(task)
        else:
            right = self._bank.text(task, group)
            others = [f"{self._bank.general}\n\n{t}" for t in self._bank.by_type.values()]
        wrong = sorted({*others} - {right}, key=lambda text: _draw(task, text))[: self._count]
        if len(wrong) < self._count:
            raise ConfigError(
                f"task {task.id}: there are only {len(wrong)} wrong hints, not "
                f"{self._count}; lower --wrong-hints"
            )
        return right, wrong

    def looks(self, group: Group) -> Sequence[Sequence[Look]]:
        """For every member the right look, then the wrong ones.

        Raises:
            ConfigError: as of `texts`.
        """
        right, wrong = self.texts(group.task, group)
        looks = [
            Look((Insertion(right),)),
            *(Look((Insertion(t),), name=WRONG.format(i)) for i, t in enumerate(wrong)),
        ]
        return [looks for _ in group.trajectories]


def _draw(task: Task, text: str) -> str:
    return sha256(f"{task.id}\x1f{text}".encode()).hexdigest()


def create(config: Config) -> Contrast:
    """The hint source.

    Raises:
        ConfigError, DataError: the skills cannot be read.
    """
    return Contrast(config)
