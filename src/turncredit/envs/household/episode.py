"""An episode of a household game, whichever engine plays it; and what a policy is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from turncredit.core.errors import EnvError
from turncredit.core.protocols import Tool
from turncredit.core.types import Observation, Step
from turncredit.envs.household.domain import BANNER, TASK_PREFIX
from turncredit.envs.household.engine import Game

INSTRUCTIONS = (
    "You act in a house through text commands, one per turn. "
    "Search the receptacles for what the task names; you can carry one object. "
    "A microwave heats, a fridge cools, a sinkbasin cleans."
)
TOOL = Tool(
    name="alfworld_step",
    description="Run one command in the house.",
    argument="action",
    argument_description="The command, for example: go to desk 1",
)


@dataclass(frozen=True, slots=True)
class Frame:
    """What an engine shows after a command (or before the first one)."""

    text: str
    admissible: tuple[str, ...]
    won: bool
    key: str


class Player(Protocol):
    """An engine playing one game once."""

    async def open(self) -> Frame:
        """The opening, with banner and task line."""
        ...

    async def act(self, command: str) -> Frame:
        """Run one command."""
        ...

    async def close(self) -> None:
        """Free what it holds. Safe to call twice."""
        ...


class PythonPlayer:
    """The engine of this package."""

    def __init__(self, game: Game) -> None:
        self._play = game.play()

    async def open(self) -> Frame:
        """The opening."""
        return self._frame()

    async def act(self, command: str) -> Frame:
        """Run one command."""
        self._play.act(command)
        return self._frame()

    async def close(self) -> None:
        """Holds nothing."""

    def _frame(self) -> Frame:
        play = self._play
        return Frame(play.text, play.admissible, play.won, play.key())


class HouseholdEpisode:
    """One play of one game: start once, act until done, close. Then it is used up.

    `act` raises `EnvError` out of that order; it never restarts or moves on to another game.
    """

    def __init__(self, player: Player, name: str) -> None:
        self._player, self._name = player, name
        self._admissible: frozenset[str] | None = None  # None: not started, or over
        self._started = False

    async def start(self) -> Observation:
        """The room as it is first seen, without the task line (that is `Task.payload["goal"]`)."""
        if self._started:
            raise EnvError(f"{self._name}: started twice; an episode is single-use")
        self._started = True
        frame = await self._player.open()
        self._admissible = frozenset(frame.admissible)
        room, _ = split_opening(frame.text)
        return Observation(room, frame.admissible, frame.key)

    async def act(self, action: str) -> Step:
        """Run one command. An inadmissible one changes nothing and reads "Nothing happens."."""
        if self._admissible is None:
            state = "is over" if self._started else "has not started"
            raise EnvError(f"{self._name}: act({action!r}), but the episode {state}")
        admissible = action.strip() in self._admissible
        frame = await self._player.act(action)
        self._admissible = None if frame.won else frozenset(frame.admissible)
        return Step(
            observation=Observation(frame.text, frame.admissible, frame.key),
            reward=float(frame.won),
            success=frame.won,
            done=frame.won,
            admissible=admissible,
        )

    async def close(self) -> None:
        """Free the player. Safe to call twice."""
        self._started, self._admissible = True, None
        await self._player.close()


def split_opening(text: str) -> tuple[str, str]:
    """The opening text → (what the room looks like, the task line)."""
    room, _, task = text.removeprefix(BANNER).rpartition(TASK_PREFIX)
    return room, task
