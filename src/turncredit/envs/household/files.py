"""Official game files (`game.tw-pddl`): where they are, which count, and how one is read.

Layout of a data root, as `alfworld-download` leaves it:
`[json_2.1.1/]SPLIT/TASK_TYPE-…/trial_…/game.tw-pddl`, with or without `traj_data.json` beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.core.errors import DataError, did_you_mean
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.engine import Game

SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
FILE_NAME = "game.tw-pddl"
OLD_WORDING = "old wording (put … in/on instead of move … to)"

_MOVE = "move {o} to {r}"
_PUT_RULE = re.compile(r'action\s+PutObject\s*\{\s*template\s*::\s*"([^"]*)"')
_TASK_RULE = re.compile(r'"Your task is to: ((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class GameFile:
    """A game on disk.

    Attributes:
        id: path below the data root, with forward slashes: the same on every machine.
        sha256: of the file's bytes, in hex.
        task_line, walkthrough: as in `LoadedGame`.
    """

    path: Path
    id: str
    split: str
    task_type: str
    sha256: str
    task_line: str
    walkthrough: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Discovery:
    """The games of a split, sorted by id, and how many were left out for which reason."""

    games: tuple[GameFile, ...]
    excluded: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LoadedGame:
    """One game read: the engine's form, and what the file says.

    Attributes:
        walkthrough: commands that win, or empty when the file has none.
        problem: the PDDL problem as written.
        task_line: the task without "Your task is to: ".
    """

    game: Game
    walkthrough: tuple[str, ...]
    problem: str
    task_line: str


def resolve_root(data_root: str | Path | None = None) -> Path:
    """The folder that holds the splits (or is one).

    Looked for in `data_root`, else in the environment variables ALFWORLD_DATA, then
    TURNCREDIT_DATA (there in `alfworld/`). The cache root above `json_2.1.1` is fine too.

    Raises:
        DataError: nothing there; says how to get the games.
    """
    for source, folder in _candidates(data_root):
        inner = folder / "json_2.1.1"
        root = (inner if inner.is_dir() else folder).resolve()
        if _holds_games(root):
            return root
        archive = folder / "games.tar.zst"
        if archive.is_file():
            raise DataError(
                f"{source}: {archive} is still packed.   mkdir -p games && "
                f"tar --zstd -xf {archive} -C games   then give --data-root games"
            )
        if source != "TURNCREDIT_DATA":
            where = "does not exist" if not folder.exists() else "holds no split folder"
            raise DataError(
                f"{source}: {folder} {where} ({', '.join(SPLITS)}). "
                f"It should be what alfworld-download made, or its json_2.1.1."
            )
    raise DataError(
        "no ALFWorld games: give --data-root DIR or set ALFWORLD_DATA. To get them:   "
        "pip install alfworld && alfworld-download   then --data-root ~/.cache/alfworld "
        "(or play the embedded games: --env household)"
    )


def _candidates(data_root: str | Path | None) -> Iterator[tuple[str, Path]]:
    if data_root:
        yield "--data-root", Path(data_root).expanduser()
        return
    if given := os.environ.get("ALFWORLD_DATA"):
        yield "ALFWORLD_DATA", Path(given).expanduser()
        return
    if given := os.environ.get("TURNCREDIT_DATA"):
        yield "TURNCREDIT_DATA", Path(given).expanduser() / "alfworld"


def _holds_games(root: Path) -> bool:
    return root.name in SPLITS or any((root / split).is_dir() for split in SPLITS)


def splits_in(root: Path) -> tuple[str, ...]:
    """Names of the splits of a root that `resolve_root` returned."""
    return tuple(s for s in SPLITS if (root / s).is_dir()) or (root.name,)


def split_folder(root: Path, split: str) -> Path:
    """The folder of `split` below `root`, or `root` itself when it is that split.

    Raises:
        DataError: no such split there.
    """
    if (root / split).is_dir():
        return root / split
    if root.name == split and root.is_dir():
        return root
    present = splits_in(root)
    raise DataError(
        f'no split "{split}" in {root}.{did_you_mean(split, present)} There: {", ".join(present)}'
    )


def discover(root: Path, split: str, task_types: tuple[str, ...] = TASK_TYPES) -> Discovery:
    """All playable games of a split, in an order that does not depend on the file system.

    Args:
        root: what `resolve_root` returned.
        split: name of the split.
        task_types: the task types wanted; others are counted as excluded.

    Raises:
        DataError: no such split, an unreadable or torn file, or no game left (with the counts).
    """
    if unknown := sorted(set(task_types) - set(TASK_TYPES)):
        raise DataError(
            f'no task type "{unknown[0]}".{did_you_mean(unknown[0], TASK_TYPES)} '
            f"There: {', '.join(TASK_TYPES)}"
        )
    folder = split_folder(root, split)
    games: list[GameFile] = []
    excluded: Counter[str] = Counter()
    for trial in sorted(_trials(folder)):
        path = trial / FILE_NAME
        name = f"{split}/{path.relative_to(folder).as_posix()}"
        task_type = _task_type(trial, name)
        if reason := _unwanted(name, path, task_type, task_types):
            excluded[reason] += 1
            continue
        data, digest = _parsed(path)
        if reason := _unplayable(data):
            excluded[reason] += 1
            continue
        line, walkthrough = _described(path, data)
        games.append(GameFile(path, name, split, task_type, digest, line, walkthrough))
    games.sort(key=lambda game: game.id)
    counts = dict(sorted(excluded.items()))
    if not games:
        left_out = "; ".join(f"{count} × {reason}" for reason, count in counts.items())
        raise DataError(f"no playable game in {folder}" + (f": {left_out}" if left_out else ""))
    return Discovery(tuple(games), counts)


def _trials(folder: Path) -> Iterator[Path]:
    for current, _, names in os.walk(folder, followlinks=True):
        if FILE_NAME in names or "traj_data.json" in names:
            yield Path(current)


def _task_type(trial: Path, name: str) -> str:
    """From `traj_data.json` when it is there, else from the folder's name."""
    described = trial / "traj_data.json"
    if described.is_file():
        try:
            return str(json.loads(described.read_text(encoding="utf-8"))["task_type"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{described}: no task_type in it ({error}); is it torn?") from error
    parts = name.split("/")[1:-1]
    return next((t for t in TASK_TYPES for part in parts if part.startswith(t)), "unknown")


def _unwanted(name: str, path: Path, task_type: str, wanted: tuple[str, ...]) -> str | None:
    if "movable" in name or task_type == "pick_and_place_with_movable_recep":
        return "movable receptacle (not supported by the games)"
    if "Sliced" in name:
        return "sliced object (not supported by the games)"
    if not path.is_file():
        return f"no {FILE_NAME} beside traj_data.json"
    if task_type not in TASK_TYPES:
        return "unknown task type"
    return None if task_type in wanted else "other task type (filtered)"


def _unplayable(data: Mapping[str, Any]) -> str | None:
    if not data.get("solvable"):
        return "unsolvable" if "solvable" in data else "no solvable mark (never checked)"
    template = _PUT_RULE.search(str(data.get("grammar", "")))
    return OLD_WORDING if template and template[1] != _MOVE else None


def path_of(root: Path, game_id: str) -> Path:
    """The file of a game id below `root` (also when `root` is the split folder itself).

    Raises:
        DataError: no such file.
    """
    split, _, rest = game_id.partition("/")
    path = root / game_id
    if not path.is_file() and root.name == split:
        path = root / rest
    if ".." in path.parts or not path.is_relative_to(root) or not path.is_file():
        raise DataError(f'no game "{game_id}" in {root}; an id is the file\'s path below it')
    return path


def read(path: str | Path, *, sha256: str | None = None) -> LoadedGame:
    """Read one game file.

    Raises:
        DataError: unreadable, torn, not a game, of the old `put` wording, or (with `sha256`)
            another file than was listed; says which.
    """
    path = Path(path)
    data, digest = _parsed(path)
    if sha256 is not None and digest != sha256:
        raise DataError(f"{path}: changed since it was listed (sha256 {digest}, not {sha256})")
    if _unplayable(data) == OLD_WORDING:
        raise DataError(
            f"{path}: {OLD_WORDING}, made by alfworld before 0.4.   alfworld-download   of "
            f"alfworld 0.4.2 fetches today's"
        )
    task_line, walkthrough = _described(path, data)
    try:
        game = Game.from_pddl(data["pddl_problem"], task_line)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return LoadedGame(game, walkthrough, data["pddl_problem"], task_line)


def _parsed(path: Path) -> tuple[Mapping[str, Any], str]:
    """The JSON of a game file and the sha256 of its bytes."""
    try:
        content = path.read_bytes()
        data = json.loads(content)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    except ValueError as error:
        raise DataError(f"{path}: not a game file, or torn ({error}). Fetch it again") from error
    texts = ("pddl_problem", "grammar")
    if not isinstance(data, dict) or not all(isinstance(data.get(key), str) for key in texts):
        raise DataError(f"{path}: not a game file: it needs the texts {' and '.join(texts)}")
    return data, hashlib.sha256(content).hexdigest()


def _described(path: Path, data: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Task line and walkthrough."""
    task = _TASK_RULE.search(data["grammar"])
    if task is None:
        raise DataError(f'{path}: the grammar has no "Your task is to: …" line')
    walkthrough = data.get("walkthrough") or ()
    if not isinstance(walkthrough, list | tuple) or not all(
        isinstance(command, str) for command in walkthrough
    ):
        raise DataError(f"{path}: walkthrough must be a list of commands")
    return str(json.loads(f'"{task[1]}"')), tuple(walkthrough)
