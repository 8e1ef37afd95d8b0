"""The official ALFWorld games, on our engine (default) or on TextWorld (the reference)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from turncredit.core.errors import DataError
from turncredit.core.settings import setting
from turncredit.core.types import Task
from turncredit.envs.household import files
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.episode import INSTRUCTIONS, TOOL, HouseholdEpisode, PythonPlayer
from turncredit.envs.textworld_engine import Pool, TextWorldPlayer

_CACHED_GAMES = 256  # about 0.15 MB each


@dataclass(frozen=True)
class Config:
    """Which games, and who plays them."""

    data_root: str | None = setting(
        None, "folder of alfworld-download, or its json_2.1.1 (else ALFWORLD_DATA)"
    )
    engine: Literal["python", "textworld"] = setting(
        "python", "ours, or the reference (extra textworld; slow)"
    )
    task_types: tuple[str, ...] = setting((), f"only these task types, of {', '.join(TASK_TYPES)}")
    textworld_workers: int = setting(4, "most TextWorld processes at a time (some 100 MB each)")
    textworld_timeout: float = setting(120.0, "seconds TextWorld may take over one load or step")


class AlfWorld:
    """Environment over the official game files. No game is read before `tasks` or `episode`."""

    name = "alfworld"
    instructions = INSTRUCTIONS
    tool = TOOL

    def __init__(self, config: Config) -> None:
        self.config = config
        self._list = lru_cache(self._discover)
        self._read = lru_cache(maxsize=_CACHED_GAMES)(self._load)
        self._pool: Pool | None = None
        if config.engine == "textworld":
            self._pool = Pool(config.textworld_workers, config.textworld_timeout)
        try:  # all splits, or the one whose folder the data root is
            self.splits = files.splits_in(self.root)
        except DataError:  # said when games are wanted: `turncredit list` needs none
            self.splits = files.SPLITS

    @cached_property
    def root(self) -> Path:
        """The folder that holds the splits.

        Raises:
            DataError: there is none.
        """
        return files.resolve_root(self.config.data_root)

    def tasks(self, split: str) -> Sequence[Task]:
        """All games of a split, sorted by id. Payload: `goal` (task line), `walkthrough`.

        Reads the folder once: a file that changes later is refused when it is played.

        Raises:
            DataError: no such split or no playable game, with what was left out and why.
        """
        return self._list(split)

    def _discover(self, split: str) -> Sequence[Task]:
        found = files.discover(self.root, split, self.config.task_types or TASK_TYPES)
        if found.excluded:
            why = ", ".join(f"{count} {reason}" for reason, count in found.excluded.items())
            warnings.warn(f"{split}: {len(found.games)} games; left out: {why}", stacklevel=2)
        return tuple(
            Task(
                id=game.id,
                env=self.name,
                split=split,
                task_type=game.task_type,
                digest=game.sha256,
                payload={"goal": game.task_line, "walkthrough": game.walkthrough},
            )
            for game in found.games
        )

    def episode(self, task: Task) -> HouseholdEpisode:
        """A fresh episode.

        Raises:
            DataError: the file is gone, torn, or no longer the one `task` was listed from.
        """
        if self._pool is not None:
            path = files.path_of(self.root, task.id)
            return HouseholdEpisode(TextWorldPlayer(self._pool, path), task.id)
        loaded = self._read(task.id, task.digest)
        return HouseholdEpisode(PythonPlayer(loaded.game), task.id)

    def _load(self, game_id: str, digest: str) -> files.LoadedGame:
        return files.read(files.path_of(self.root, game_id), sha256=digest)

    def close(self) -> None:
        """End the TextWorld processes, if there are any."""
        if self._pool is not None:
            self._pool.close()


def create(config: Config) -> AlfWorld:
    """The environment. Reads no game yet."""
    return AlfWorld(config)
