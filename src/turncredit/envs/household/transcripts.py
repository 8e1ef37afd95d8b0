"""Recorded plays: reading them, and replaying them on our engine."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.core.errors import DataError
from turncredit.envs.household.episode import Frame
from turncredit.envs.household.files import LoadedGame
from turncredit.envs.household.verify import Difference, difference

_FORM = "{game, steps: [{command, observation, admissible, won}, …]}, the first command null"


@dataclass(frozen=True, slots=True)
class Transcript:
    """One recorded play: the game's path below the data root, then (command, frame) pairs.

    The first pair is the opening; its command is None.
    """

    game: str
    steps: tuple[tuple[str | None, Frame], ...]


def read(path: str | Path) -> Iterator[Transcript]:
    """Read a transcript file: JSON lines, plain or gzip.

    Raises:
        DataError: unreadable, torn, empty, or a line that is not a transcript; names the line.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        lines = content.decode("utf-8").split("\n")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read, or torn ({error})") from error
    if not any(line.strip() for line in lines):
        raise DataError(f"{path}: no transcripts in it. Expected lines of {_FORM}")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _transcript(line, f"{path}, line {number}")


def _transcript(line: str, where: str) -> Transcript:
    try:
        data = json.loads(line)
        steps = tuple(_step(step) for step in data["steps"])
        game = data["game"]
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{where}: not a transcript ({reason}). Expected {_FORM}") from error
    commands = [command for command, _ in steps]
    rest_named = all(isinstance(command, str) for command in commands[1:])
    if not isinstance(game, str) or not steps or commands[0] is not None or not rest_named:
        raise DataError(f"{where}: not a transcript. Expected {_FORM}")
    return Transcript(game, steps)


def _step(step: Any) -> tuple[str | None, Frame]:
    text, admissible, won = step["observation"], step["admissible"], step["won"]
    if not isinstance(text, str) or not isinstance(admissible, list) or not isinstance(won, bool):
        raise TypeError("observation must be text, admissible a list, won true or false")
    return step["command"], Frame(text, tuple(admissible), won, "")


def replay(transcript: Transcript, loaded: LoadedGame) -> Difference | None:
    """Run a recorded play on our engine; the first difference, or None."""
    play = loaded.game.play()
    for number, (command, frame) in enumerate(transcript.steps):
        if command is not None:
            play.act(command)
        if found := difference(transcript.game, number, command, play, frame):
            return found
    return None
