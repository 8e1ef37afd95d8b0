"""Household games made on the spot: the embedded environment. Nothing to download.

Every task is one generated game, named by its size, split, seed and type, so a task id alone is
enough to make its game again. Listing tasks makes none; a game is made when it is looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, overload

from turncredit.core.errors import ConfigError, DataError, did_you_mean
from turncredit.core.settings import setting
from turncredit.core.types import Task
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.engine import Game
from turncredit.envs.household.episode import INSTRUCTIONS, TOOL, HouseholdEpisode, PythonPlayer
from turncredit.envs.household.generator import SPLITS, GeneratedGame, build, to_bytes
from turncredit.envs.household.rooms import SIZES

_MOST_GAMES = 1_000_000  # seeds of one games_seed; ids of a split then have one width
_CACHED_GAMES = 256  # 0.05 MB (small) to 0.2 MB (full) each
_CACHED_TASKS = 16_384


@dataclass(frozen=True)
class Config:
    """Which games."""

    size: Literal["small", "medium", "full"] = setting(
        "small", "small (6-9 receptacles), medium (10-16), or full (17-30)"
    )
    train_games: int = setting(10_000, "games of the train split")
    eval_games_per_split: int = setting(240, "games of valid_seen and of valid_unseen")
    games_seed: int = setting(0, "another number, other games, on the same layouts")
    task_types: tuple[str, ...] = setting((), f"only these task types, of: {', '.join(TASK_TYPES)}")

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ConfigError(
                f'no size "{self.size}".{did_you_mean(self.size, SIZES)} Known: {", ".join(SIZES)}'
            )
        for name in ("train_games", "eval_games_per_split"):
            if not 1 <= getattr(self, name) <= _MOST_GAMES:
                raise ConfigError(f"{name}={getattr(self, name)}; use 1 to {_MOST_GAMES:,}")
        if self.games_seed < 0:
            raise ConfigError(f"games_seed={self.games_seed}; use 0 or more")
        for word in self.task_types:
            if word not in TASK_TYPES:
                raise ConfigError(
                    f'no task type "{word}".{did_you_mean(word, TASK_TYPES)} '
                    f"Known: {', '.join(TASK_TYPES)}"
                )


class Games(Sequence[Task]):
    """The tasks of one split, made when asked for. Task types take turns, so they are balanced."""

    def __init__(self, household: Household, split: str, count: int) -> None:
        self._household, self._split, self._count = household, split, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"{self._split} has {self._count} games, no number {index}")
        return self._household.task(self._split, index % self._count)


class Household:
    """Environment over generated games."""

    name = "household"
    instructions = INSTRUCTIONS
    tool = TOOL
    splits = SPLITS

    def __init__(self, config: Config) -> None:
        self.config = config
        self._types = tuple(t for t in TASK_TYPES if t in config.task_types) or TASK_TYPES
        self.task = lru_cache(maxsize=_CACHED_TASKS)(self._task)
        self._made = lru_cache(maxsize=_CACHED_GAMES)(_make)

    def tasks(self, split: str) -> Games:
        """The games of a split, in order of their ids.

        Payload: `goal` (the task line), `walkthrough` (commands that win), `layout` (its id).

        Raises:
            ConfigError: no such split.
        """
        if split not in SPLITS:
            raise ConfigError(
                f'no split "{split}".{did_you_mean(split, SPLITS)} Known: {", ".join(SPLITS)}'
            )
        train = split == "train"
        return Games(
            self, split, self.config.train_games if train else self.config.eval_games_per_split
        )

    def episode(self, task: Task) -> HouseholdEpisode:
        """A fresh episode. The game is made again from the task's id when it is not at hand.

        Raises:
            DataError: not a task of this environment, or made by another version of it.
        """
        made, game, digest = self._made(task.id)
        if digest != task.digest:
            raise DataError(
                f"{made.id}: this version makes another game of that name. "
                f"List the tasks again, or use the version they were listed with"
            )
        return HouseholdEpisode(PythonPlayer(game), task.id)

    def _task(self, split: str, index: int) -> Task:
        seed = self.config.games_seed * _MOST_GAMES + index
        task_type = self._types[index % len(self._types)]
        made, _, digest = self._made(f"household/{self.config.size}/{split}/{seed:06d}-{task_type}")
        payload = {"goal": made.task, "walkthrough": made.walkthrough, "layout": made.layout_id}
        return Task(
            id=made.id,
            env=self.name,
            split=split,
            task_type=task_type,
            digest=digest,
            payload=payload,
        )


def _make(task_id: str) -> tuple[GeneratedGame, Game, str]:
    """The game of a task id, ready to play, and the sha256 of its file."""
    try:
        house, size, split, name = task_id.split("/")
        seed, _, task_type = name.partition("-")
        if house != "household":
            raise ValueError(house)
        made, game = build(task_type, int(seed), split=split, size=size)  # type: ignore[arg-type]
    except ValueError as error:
        raise DataError(
            f'"{task_id}" names no household game; '
            f"an id reads household/SIZE/SPLIT/SEED-TASK_TYPE ({error})"
        ) from error
    digest = hashlib.sha256(to_bytes(made)).hexdigest()
    return made, game, digest


def create(config: Config) -> Household:
    """The environment. Makes no game yet."""
    return Household(config)
