"""Evaluation files: a row a game in panel order, then one summary row. Read and checked here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from turncredit.core.errors import DataError
from turncredit.core.types import StopReason, Trajectory
from turncredit.proof.panel import panel_hash
from turncredit.record import atomic

FORMAT = "turncredit.eval/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """What counts of one evaluated game.

    Attributes:
        env_error: the environment broke; the game is in no rate and no mean.
        invalid_format: turns whose output held no valid call.
        inadmissible: turns whose command the environment did not accept.
    """

    id: str
    digest: str
    split: str
    task_type: str
    success: bool
    stop: str
    truncated: bool
    env_error: bool
    turns: int
    invalid_format: int
    inadmissible: int

    @property
    def invalid_actions(self) -> int:
        """Turns that did nothing, of either kind."""
        return self.invalid_format + self.inadmissible


def game_row(
    index: int, trajectory: Trajectory, *, panel: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """One full game as a row: outcome, counts, and every turn's texts.

    No time and no batch size is in it: equal games give equal rows however they were run.
    """
    task, turns = trajectory.task, trajectory.turns
    sampled = sum(len(turn.logprob_N) for turn in turns)
    return {
        "kind": "game",
        "index": index,
        "id": task.id,
        "env": task.env,
        "split": task.split,
        "task_type": task.task_type,
        "digest": task.digest,
        "goal": task.payload.get("goal", ""),
        "seed": trajectory.seed,
        "success": trajectory.success,
        "reward": trajectory.reward,
        "stop": str(trajectory.stop),
        "truncated": trajectory.stop.truncated,
        "env_error": trajectory.stop is StopReason.ENV_ERROR,
        "turns": len(turns),
        "invalid_format": sum(turn.action is None for turn in turns),
        "inadmissible": sum(turn.action is not None and not turn.admissible for turn in turns),
        "tokens": {
            "prompt": trajectory.prompt_length,
            "sampled": sampled,
            "total": len(trajectory.tokens),
        },
        "steps": [
            {
                "observation": turn.observation,
                "text": turn.text,
                "action": turn.action,
                "admissible": turn.admissible,
                "reward": turn.reward,
            }
            for turn in turns
        ],
        "final_observation": trajectory.final_observation,
        "error": trajectory.error,
        "panel": panel,
        "settings": dict(settings),
    }


def game_from_row(row: Mapping[str, Any]) -> Game:
    """The counting part of a row.

    Raises:
        KeyError, TypeError: a field is missing, or of another type.
    """
    kinds = get_type_hints(Game)
    for name in Game.__slots__:
        if type(row[name]) is not kinds[name]:
            raise TypeError(f"{name} is {row[name]!r}")
    return Game(**{name: row[name] for name in Game.__slots__})


@contextmanager
def damage(path: Path, index: int) -> Iterator[None]:
    """What is wrong inside row `index` of a file, said as a `DataError`."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path}, line {index + 1} is damaged: {reason}. Evaluate again under another name"
        ) from error


def student_hint(settings: Mapping[str, Any]) -> str:
    """Name of the hint that an evaluation of these settings showed to the policy; "" for none."""
    return str(settings.get("environment", {}).get("student_hint", {}).get("name", ""))


def figures(games: Sequence[Game]) -> dict[str, Any]:
    """Counts, rates and means over `games`; NaN-free: a mean over nothing is None."""
    played = [game for game in games if not game.env_error]
    successes = sum(game.success for game in played)

    def mean(value: Callable[[Game], float]) -> float | None:
        return math.fsum(map(value, played)) / len(played) if played else None

    return {
        "games": len(games),
        "played": len(played),
        "env_errors": len(games) - len(played),
        "successes": successes,
        "success_rate": successes / len(played) if played else None,
        "truncated": sum(game.truncated for game in played),
        "mean_invalid_actions": mean(lambda game: game.invalid_actions),
        "mean_invalid_format": mean(lambda game: game.invalid_format),
        "mean_inadmissible": mean(lambda game: game.inadmissible),
        "mean_turns": mean(lambda game: game.turns),
        "stops": dict(sorted(Counter(game.stop for game in games).items())),
    }


def summarize(games: Sequence[Game]) -> dict[str, Any]:
    """`figures` of all games, of each split, of each task type, and of each pair of these."""
    return {
        "overall": figures(games),
        "per_split": _by(games, lambda game: game.split),
        "per_type": _by(games, lambda game: game.task_type),
        "per_split_and_type": _by(games, lambda game: f"{game.split}/{game.task_type}"),
    }


def _by(games: Sequence[Game], key: Callable[[Game], str]) -> dict[str, Any]:
    """Figures of each class, in order of first appearance."""
    classes = dict.fromkeys(map(key, games))
    return {name: figures([g for g in games if key(g) == name]) for name in classes}


@dataclass(frozen=True, slots=True)
class Results:
    """A complete evaluation."""

    path: Path
    label: str
    games: tuple[Game, ...]
    summary: Mapping[str, Any]

    @property
    def environment(self) -> str:
        """Name of the environment: "household", or "household+skillbank" with that hint shown."""
        return str(self.summary["settings"].get("environment", {}).get("name", ""))

    @property
    def student_hint(self) -> str:
        """Name of the hint the policy saw; "" for none."""
        return student_hint(self.summary["settings"])

    @property
    def panel_hash(self) -> str:
        """Hash of the panel, recomputed from the rows."""
        return panel_hash((game.id, game.digest) for game in self.games)


def read(path: str | Path, label: str | None = None) -> Results:
    """Read a complete evaluation and check that its rows are what its summary says.

    Raises:
        DataError: unreadable, unfinished, not an evaluation, or its rows were changed.
    """
    path = Path(path)
    lines = atomic.read_lines(path)
    rows = lines.records
    if lines.torn_bytes or not rows or _kind(rows[-1]) != "summary":
        if rows and _kind(rows[0]) not in ("game", "summary"):
            raise DataError(f"{path} is not a file that turncredit eval wrote")
        raise DataError(
            f"{path} is unfinished: {sum(_kind(row) == 'game' for row in rows)} games and no "
            "summary. Run its turncredit eval command again with --resume."
        )
    summary = rows[-1]
    if summary.get("format") != FORMAT:
        raise DataError(f"{path} has format {summary.get('format')!r}, not {FORMAT!r}")
    games = tuple(_games(path, rows[:-1]))
    results = Results(path, label or path.stem, games, summary)
    with damage(path, len(games)):
        manifest, _ = summary["panel"], (results.environment, results.student_hint)
        if results.panel_hash != manifest["hash"] or len(games) != manifest["count"]:
            raise DataError(
                f"{path}: its {len(games)} games are not the panel of its summary "
                f"({manifest['count']} games). Evaluate again under another name."
            )
        if any(summary[name] != figures for name, figures in summarize(games).items()):
            raise DataError(
                f"{path}: its rows do not give the figures of its summary: it was changed. "
                "Evaluate again under another name"
            )
    return results


def _kind(row: Any) -> str:
    return str(row.get("kind", "")) if isinstance(row, dict) else ""


def _games(path: Path, rows: Iterable[Any]) -> Iterable[Game]:
    for index, row in enumerate(rows):
        with damage(path, index):
            if _kind(row) != "game" or row["index"] != index:
                raise DataError(f"{path}, line {index + 1}: expected game {index} of the panel")
            game = game_from_row(row)
        yield game
