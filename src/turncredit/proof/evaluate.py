"""Play every task of a panel once and write every game down.

This module can see no hint source and no teacher (an import contract holds it to that): an
environment that shows the policy a hint is just another environment, whose name and settings say
so. What a game gives depends on the task, the policy and the seed only: not on how many run at
once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from turncredit.core.errors import ConfigError, DataError
from turncredit.core.types import Task, Trajectory
from turncredit.proof.panel import Panel, panel
from turncredit.proof.results import (
    FORMAT,
    Game,
    damage,
    game_from_row,
    game_row,
    student_hint,
    summarize,
)
from turncredit.record import atomic

__all__ = [
    "Options",
    "Panel",
    "Player",
    "check_free",
    "check_output",
    "evaluate",
    "game_seed",
    "panel",
]


class Player(Protocol):
    """Plays one task to its end: a scripted policy, or a model."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything beside task and seed that decides what is played, as plain values."""
        ...

    async def play(self, task: Task, seed: int) -> Trajectory:
        """One game. A fault of the environment is a stop reason, not an exception."""
        ...


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an evaluation runs; nothing here but `seed` can change a result.

    Attributes:
        games_per_batch: games in flight at once.
        overwrite: replace an existing file.
        resume: continue an unfinished file of the same settings and panel.
        on_game: called with each row, in panel order.
    """

    seed: int = 42
    games_per_batch: int = 16
    overwrite: bool = False
    resume: bool = False
    on_game: Callable[[Mapping[str, Any]], None] = lambda row: None


def game_seed(seed: int, task_id: str) -> int:
    """The seed of one game, from the evaluation's seed and the task alone. Below 2**48."""
    digest = hashlib.sha256(f"{seed}/{task_id}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


async def evaluate(
    panel: Panel,
    player: Player,
    output: str | Path,
    options: Options | None = None,
    *,
    environment: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Play `panel` with `player`, append a row a game to `output`, then the summary row.

    Args:
        panel: what to play.
        player: who plays.
        output: JSONL file; interrupted at any point, it can be continued.
        options: how to run.
        environment: the environment's name and settings, to be written down.

    Returns:
        The summary row.

    Raises:
        ConfigError: `output` exists and neither `overwrite` nor `resume` fits it.
        DataError: `output` is to be resumed but is damaged.
    """
    options, path = options or Options(), Path(output)
    check_output(path, options)
    settings = _plain(
        {"environment": dict(environment or {}), "seed": options.seed, **player.settings}
    )
    began = time.monotonic()
    with _locked(path):
        done = _prepare(path, panel, settings, options)
        if done and done[-1]["kind"] == "summary":
            return dict(done[-1])
        games = [game_from_row(row) for row in done]
        snapshots: set[str] = set()
        resumed = len(games)
        async with aclosing(_play(panel, player, options, first=resumed)) as played:
            async for trajectory in played:
                row = game_row(len(games), trajectory, panel=panel.hash, settings=settings)
                atomic.append_line(path, row)
                games.append(game_from_row(row))
                snapshots.add(trajectory.snapshot_id)
                options.on_game(row)
        summary = _summary(panel, settings, games) | {
            "execution": {
                "games_per_batch": options.games_per_batch,
                "seconds": round(time.monotonic() - began, 3),
                "resumed_after": resumed,
                "snapshots": sorted(snapshots),
            }
        }
        atomic.append_line(path, summary)
        _aside(path).unlink(missing_ok=True)
    return summary


def check_output(path: Path, options: Options) -> None:
    """Refuse options that fit neither each other nor an existing file. Nothing is touched.

    Raises:
        ConfigError: with what does fit.
    """
    if options.games_per_batch < 1:
        raise ConfigError(f"games-per-batch is {options.games_per_batch}; use at least 1")
    if options.resume and options.overwrite:
        raise ConfigError("--resume keeps an output and --overwrite-output drops it: choose one")
    if path.exists() and not (options.resume or options.overwrite):
        raise ConfigError(
            f"{path} exists already. Choose another --output, continue it with --resume if it is "
            "unfinished, or replace it with --overwrite-output."
        )


def check_free(path: Path) -> None:
    """Refuse an output that another process is writing.

    Raises:
        ConfigError: naming it.
    """
    with _locked(path):
        pass


def _locked(path: Path) -> AbstractContextManager[None]:
    return atomic.locked(path.with_name(path.name + ".lock"), f"evaluation {path}")


def _aside(path: Path) -> Path:
    """Where a replaced output waits; an interrupted evaluation leaves it there."""
    return path.with_name(path.name + ".old")


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As they read back from the file (a tuple becomes a list), so that old and new compare."""
    return json.loads(json.dumps(settings))


def _summary(panel: Panel, settings: Mapping[str, Any], games: list[Game]) -> dict[str, Any]:
    figures = summarize(games)
    flags: list[str] = []
    if errors := figures["overall"]["env_errors"]:
        flags.append(f"{errors} of {len(games)} games broke (env_error) and are in no rate")
    if hint := student_hint(settings):
        flags.append(f"the policy played with the hint {hint} in its own prompt")
    return {
        "kind": "summary",
        "format": FORMAT,
        "panel": panel.manifest(),
        "settings": dict(settings),
        **figures,
        "flags": flags,
    }


async def _play(
    panel: Panel, player: Player, options: Options, *, first: int
) -> AsyncGenerator[Trajectory, None]:
    """Trajectories of `panel.tasks[first:]` in panel order, `games_per_batch` in flight."""
    gate = asyncio.Semaphore(options.games_per_batch)

    async def one(task: Task) -> Trajectory:
        async with gate:
            return await player.play(task, game_seed(options.seed, task.id))

    running = [asyncio.create_task(one(task)) for task in panel.tasks[first:]]
    try:
        for game in running:
            yield await game
    finally:  # one failed, or the caller stopped: none is left behind
        for game in running:
            game.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _prepare(
    path: Path, panel: Panel, settings: Mapping[str, Any], options: Options
) -> list[Mapping[str, Any]]:
    """The rows to keep of an existing file: none when it is new or to be replaced."""
    check_output(path, options)  # another process may have made it meanwhile
    if not path.exists() or options.overwrite:
        if path.exists() and not _aside(path).exists():
            path.replace(_aside(path))  # until the new one is whole
        atomic.write_bytes(path, b"")
        return []
    if not _is_ours(path):
        raise DataError(f"{path} is not a file that turncredit eval wrote; choose another --output")
    rows = list(atomic.repair(path).records)
    for index, row in enumerate(rows):
        with damage(path, index):
            _check_same(path, row, panel, settings)
            if row["kind"] == "summary" and index == len(rows) - 1 == len(panel.tasks):
                continue
            if row["kind"] != "game" or row["id"] != panel.tasks[index].id:
                raise DataError(f"{path}, line {index + 1}: not game {index} of the panel")
            game_from_row(row)
    return rows


def _is_ours(path: Path) -> bool:
    """Whether all lines, a torn one too, are rows of an evaluation: nothing else is touched."""
    lines = atomic.read_lines(path)
    kinds = [row.get("kind") if isinstance(row, dict) else None for row in lines.records]
    torn = path.read_bytes()[lines.whole_bytes :]
    starts = [b'{"kind":"game"', b'{"kind":"summary"']
    return all(kind in ("game", "summary") for kind in kinds) and any(
        torn.startswith(start[: len(torn)]) for start in starts
    )


def _check_same(
    path: Path, row: Mapping[str, Any], panel: Panel, settings: Mapping[str, Any]
) -> None:
    used = row["panel"]["hash"] if row["kind"] == "summary" else row["panel"]
    if used != panel.hash:
        raise ConfigError(
            f"{path} was begun on another panel of games (hash {used[:12]}, now "
            f"{panel.hash[:12]}): it cannot be resumed. Use the same --env, --split, "
            "--limit-per-split and data, or another --output."
        )
    old = row["settings"]
    changed = [key for key in sorted({*old, *settings}) if old.get(key) != settings.get(key)]
    if changed:
        pairs = "; ".join(f"{key} was {old.get(key)}, now {settings.get(key)}" for key in changed)
        raise ConfigError(
            f"{path} was begun with other settings: it cannot be resumed ({pairs}). "
            "Use the same ones, or another --output."
        )
