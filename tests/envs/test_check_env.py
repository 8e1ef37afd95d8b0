"""The suite passes sound environments, and each of its checks catches its fault."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from turncredit.core.errors import ConfigError
from turncredit.core.protocols import Tool
from turncredit.core.types import Observation, Step, Task
from turncredit.envs import household
from turncredit.envs.check import CHECKS, check_environment

ACTIONS = ("east", "look", "west")


class Episode:
    """A walk on a line to place 3. Single-use."""

    def __init__(self) -> None:
        self.place, self.started = 0, False

    async def start(self) -> Observation:
        if self.started:
            raise RuntimeError("started twice")
        self.started = True
        return self.observation()

    def observation(self, text: str = "") -> Observation:
        return Observation(text or f"place {self.place}", ACTIONS, str(self.place))

    async def act(self, action: str) -> Step:
        if action not in ACTIONS:
            return Step(observation=self.observation("no"), admissible=False)
        self.place += {"east": 1, "look": 0, "west": -1}[action]
        won = self.place == 3
        return Step(observation=self.observation(), success=won, done=won, reward=float(won))

    async def close(self) -> None:
        pass


class Line:
    name, instructions, splits = "line", "Walk to 3.", ("train",)
    tool = Tool("go", "Go.", "where", "a direction")
    make: type[Episode] = Episode

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self.splits:
            raise ConfigError(f"no split {split}")
        walk = {"walkthrough": ("east", "east", "east")}
        return [
            Task(id=f"{i}", env="line", split=split, task_type="x", digest=f"d{i}", payload=walk)
            for i in range(2)
        ]

    def episode(self, task: Task) -> Episode:
        return self.make()


def failures(environment: object) -> list[str]:
    results = asyncio.run(check_environment(environment))  # type: ignore[arg-type]
    return [result.name for result in results if not result.passed]


def test_a_sound_environment_passes() -> None:
    assert failures(Line()) == []


def test_household_passes() -> None:
    assert (
        failures(household.create(household.Config(train_games=30, eval_games_per_split=30))) == []
    )


class NoInstructions(Line):
    instructions = ""


class Shuffled(Line):
    turn = itertools.count()

    def tasks(self, split: str) -> Sequence[Task]:
        tasks = list(super().tasks(split))
        return tasks if next(self.turn) % 2 else tasks[::-1]


class SameDigest(Line):
    def tasks(self, split: str) -> Sequence[Task]:
        return [replace(task, digest="d") for task in super().tasks(split)]


class AnySplit(Line):
    def tasks(self, split: str) -> Sequence[Task]:
        return super().tasks("train")


class OpenSecret(Episode):
    async def start(self) -> Observation:
        return replace(await super().start(), actions=("east", "east"))


class MovesOnNonsense(Episode):
    async def act(self, action: str) -> Step:
        if action not in ACTIONS:
            self.place -= 1
        return await super().act(action)


class Restless(Episode):
    seen = itertools.count()

    def observation(self, text: str = "") -> Observation:
        return Observation(f"{next(self.seen)}", ACTIONS, str(self.place))


class Shared(Episode):
    last: Episode | None = None

    async def start(self) -> Observation:
        type(self).last = self
        return await super().start()

    async def act(self, action: str) -> Step:
        assert type(self).last is not None
        return await Episode.act(type(self).last, action)


class DoneIsSuccess(Episode):
    steps = 0

    async def act(self, action: str) -> Step:
        self.steps += 1
        step = await super().act(action)
        return replace(step, done=True, success=True) if self.steps >= 40 else step


class NeverWins(Episode):
    async def act(self, action: str) -> Step:
        return replace(await super().act(action), success=False, done=False)


class Reusable(Episode):
    """May be started again."""

    async def start(self) -> Observation:
        self.place = 0
        return self.observation()


class NumberForText(Episode):
    def observation(self, text: str = "") -> Observation:
        return Observation(self.place + 1, ACTIONS, "")  # type: ignore[arg-type]


class WordForFlag(Episode):
    async def act(self, action: str) -> Step:
        return replace(await super().act(action), admissible="no")  # type: ignore[arg-type]


class WordForSplits(Line):
    splits = "abc"  # type: ignore[assignment]


class NoTaskType(Line):
    def tasks(self, split: str) -> Sequence[Task]:
        tasks = super().tasks(split)
        return [replace(task, task_type=None) for task in tasks]  # type: ignore[arg-type]


class Hangs(Episode):
    async def close(self) -> None:
        await asyncio.sleep(3600)


def test_an_environment_that_hangs_ends_the_suite() -> None:
    hanging = type("Hanging", (Line,), {"make": Hangs})
    *_, last = asyncio.run(check_environment(hanging(), seconds=0.2))
    assert not last.passed
    assert "no answer after 0.2 s" in last.detail


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (NumberForText, "start, act, close keep the contract"),
        (WordForFlag, "start, act, close keep the contract"),
        (WordForSplits, "the interface is complete"),
        (NoTaskType, "ids and digests are unique"),
        (NoInstructions, "the interface is complete"),
        (Shuffled, "the same tasks in the same order, every time"),
        (SameDigest, "ids and digests are unique"),
        (AnySplit, "an unknown split is refused"),
        (OpenSecret, "start, act, close keep the contract"),
        (MovesOnNonsense, "an inadmissible command changes nothing"),
        (Restless, "replays reproduce every answer"),
        (Shared, "interleaved episodes do not touch each other"),
        (DoneIsSuccess, "looking around for ever never succeeds"),
        (NeverWins, "walkthroughs succeed"),
        (Reusable, "an episode is single-use"),
    ],
)
def test_each_check_catches_its_fault(broken: type, check: str) -> None:
    if issubclass(broken, Episode):
        broken = type(broken.__name__, (Line,), {"make": broken})
    assert check in failures(broken())
    assert check in [name for name, _ in CHECKS]
