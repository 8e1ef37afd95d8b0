"""A tiny environment for these tests: open the right door."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from turncredit.core.errors import EnvError
from turncredit.core.protocols import Tool
from turncredit.core.types import Observation, Step, Task


def task(number: int, split: str = "valid_seen", kind: str = "north", digest: str = "") -> Task:
    return Task(
        id=f"{split}/door-{number:03d}",
        env="doors",
        split=split,
        task_type=kind,
        digest=digest or f"{number:064x}",
        payload={"walkthrough": ("look", f"open {number}")},
    )


class Room:
    def __init__(self, number: int, *, breaks: bool, patience: int | None) -> None:
        self._number, self._breaks, self._patience = number, breaks, patience
        self._acts = 0
        self.closed = 0

    def _shown(self) -> Observation:
        return Observation(
            f"door {self._number}, act {self._acts}", ("look", f"open {self._number}")
        )

    async def start(self) -> Observation:
        await asyncio.sleep(0)
        return self._shown()

    async def act(self, action: str) -> Step:
        # Games take turns in another order for every number of games in flight.
        await asyncio.sleep(0.0005 * (self._number % 3))
        self._acts += 1
        if self._breaks:
            raise EnvError("the door fell off")
        won = action == f"open {self._number}"
        done = won or self._acts == self._patience
        admissible = won or action == "look"
        return Step(
            observation=self._shown(),
            reward=float(won),
            success=won,
            done=done,
            admissible=admissible,
        )

    async def close(self) -> None:
        self.closed += 1


@dataclass
class Doors:
    name: str = "doors"
    instructions: str = "open the door"
    tool: Tool = field(default_factory=lambda: Tool("door", "act", "action", "what to do"))
    splits: tuple[str, ...] = ("train", "valid_seen", "valid_unseen")
    per_split: int = 6
    broken: frozenset[str] = frozenset()
    patience: int | None = None

    def tasks(self, split: str) -> Sequence[Task]:
        kinds = ("north", "north", "north", "south")
        return [task(n, split, kinds[n % len(kinds)]) for n in range(self.per_split)]

    def episode(self, task: Task) -> Room:
        number = int(task.id[-3:])
        return Room(number, breaks=task.id in self.broken, patience=self.patience)
