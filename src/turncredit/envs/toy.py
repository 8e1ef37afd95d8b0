"""A corridor of doors where one door decides: the smallest task that needs turn credit.

At each of 8 doors the policy goes left or right. Only the *key* door of the corridor matters; the
gate at the end is open if the right way was taken there. Key door and right way depend on the
corridor's colour (the task type), so a hint can name them. Everything else is noise that a
trajectory-wide advantage reinforces as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from turncredit.core.errors import ConfigError, EnvError
from turncredit.core.protocols import Tool
from turncredit.core.settings import setting
from turncredit.core.types import Observation, Step, Task

ACTIONS = ("left", "right")
COLOURS = ("red", "blue", "green", "amber", "white", "black", "brown", "violet")
SIZES = {"train": 64, "valid_seen": 16, "valid_unseen": 16}
GOAL = "leave the corridor through an open gate"


@dataclass(frozen=True)
class Config:
    """Size of the toy."""

    corridor_doors: int = setting(8, "doors, so turns, of a corridor")
    corridor_colours: int = setting(4, "kinds of corridor, each with its own key door")

    def __post_init__(self) -> None:
        if self.corridor_doors < 1:
            raise ConfigError(f"corridor_doors={self.corridor_doors}; use at least 1")
        if not 1 <= self.corridor_colours <= len(COLOURS):
            raise ConfigError(f"corridor_colours={self.corridor_colours}; use 1 to {len(COLOURS)}")


@dataclass(frozen=True)
class Corridor:
    """One kind of corridor: its key door (from 1) and the way that opens the gate."""

    colour: str
    doors: int
    key_door: int
    answer: str

    def digest(self, task_id: str) -> str:
        """sha256 of a task's id and rules."""
        rules = [task_id, self.colour, self.doors, self.key_door, self.answer]
        return hashlib.sha256(json.dumps(rules).encode()).hexdigest()


def corridor(index: int, doors: int) -> Corridor:
    """Kind number `index`: key doors are spread out, every fourth kind wants left."""
    answer = "left" if index % 4 == 3 else "right"
    return Corridor(COLOURS[index], doors, (2 + 3 * index) % doors + 1, answer)


class Walk:
    """One episode. The hidden state is the door, and what was chosen at the key door."""

    def __init__(self, kind: Corridor) -> None:
        self._kind = kind
        self._door = 0  # 0: not started
        self._chosen = ""
        self._finished = False

    async def start(self) -> Observation:
        """Stand at the first door."""
        if self._door:
            raise EnvError("toy: start() was called twice; take a new episode")
        self._door = 1
        return self._observation()

    async def act(self, action: str) -> Step:
        """Go `left` or `right`; anything else changes nothing."""
        if self._finished or not self._door:
            raise EnvError("toy: act() outside a running episode")
        if action not in ACTIONS:
            return Step(observation=self._observation("Nothing happens. "), admissible=False)
        if self._door == self._kind.key_door:
            self._chosen = action
        self._door += 1
        if self._door <= self._kind.doors:
            return Step(observation=self._observation())
        self._finished = True
        won = self._chosen == self._kind.answer
        text = f"The {self._kind.colour} corridor ends at a gate. It is {_GATE[won]}."
        end = Observation(text, (), self._key())
        return Step(observation=end, reward=float(won), success=won, done=True)

    async def close(self) -> None:
        """Nothing is held."""
        self._finished = True

    def _observation(self, note: str = "") -> Observation:
        text = f"{note}You are in the {self._kind.colour} corridor at door {self._door}."
        return Observation(text, ACTIONS, self._key())

    def _key(self) -> str:
        return f"{self._kind.colour}/{self._door}/{self._chosen}"


_GATE = {True: "open", False: "shut"}


class Toy:
    """The family of corridors. Held-out splits hold the same kinds under other ids."""

    name = "toy"
    instructions = (
        "You walk through a corridor. At each door go left or right. "
        "The gate at the end is open or shut, depending on the way you took."
    )
    tool = Tool(
        name="toy_step",
        description="Go through the door.",
        argument="action",
        argument_description="left or right",
    )
    splits = tuple(SIZES)

    def __init__(self, config: Config) -> None:
        self._kinds = {
            kind.colour: kind
            for kind in (corridor(i, config.corridor_doors) for i in range(config.corridor_colours))
        }

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split, sorted by id, the colours in equal parts.

        Raises:
            ConfigError: no such split.
        """
        if split not in SIZES:
            raise ConfigError(f'toy has no split "{split}"; it has {", ".join(SIZES)}')
        kinds = list(self._kinds.values())
        made = [self._task(split, i, kinds[i % len(kinds)]) for i in range(SIZES[split])]
        return sorted(made, key=lambda task: task.id)

    def episode(self, task: Task) -> Walk:
        """A fresh walk."""
        if task.task_type not in self._kinds:
            raise ConfigError(f'toy has no corridor "{task.task_type}" (task {task.id})')
        return Walk(self._kinds[task.task_type])

    def _task(self, split: str, index: int, kind: Corridor) -> Task:
        task_id = f"toy/{split}/{index:03d}-{kind.colour}"
        return Task(
            id=task_id,
            env=self.name,
            split=split,
            task_type=kind.colour,
            digest=kind.digest(task_id),
            payload={
                "goal": GOAL,
                "doors": kind.doors,
                "key_door": kind.key_door,
                "answer": kind.answer,
                "walkthrough": (kind.answer,) * kind.doors,
            },
        )


def create(config: Config) -> Toy:
    """The toy environment."""
    return Toy(config)
