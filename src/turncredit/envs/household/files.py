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

from turncredit.core.errors import DataError, did_you_mean
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.engine import Game

SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
FILE_NAME = "game.tw-pddl"
OLD_WORDING = "old wording (put … in/on instead of move … to)"

_MOVE = "move {o} to {r}"
_PUT_RULE = re.compile(r'action\s+PutObject\s*\{\s*template\s*::\s*"([^"]*)"')
_TASK_RULE = re.compile(r'"Your task is to: ((?:[^"\\]|\\.)*)"')
# The same, and the solvable mark, in the file's bytes: a scan of 3,553 games need not parse them.
_PUT_BYTES = re.compile(rb'action PutObject \{(?:\\n|\\r|\\t|\s)*template :: \\"([^"\\]*)\\"')
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*(true|false)')


@dataclass(frozen=True, slots=True)
class GameFile:
    """A game on disk. `id` is its path below the data root, the same on every machine."""

    path: Path
    id: str
    split: str
    task_type: str
    sha256: str


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
        "pip install 'turncredit[textworld]' && alfworld-download   "
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


def split_folder(root: Path, split: str) -> Path:
    """The folder of `split` below `root`, or `root` itself when it is that split.

    Raises:
        DataError: no such split there.
    """
    if (root / split).is_dir():
        return root / split
    if root.name == split and root.is_dir():
        return root
    present = sorted(s for s in SPLITS if (root / s).is_dir()) or [root.name]
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
        content = _content(path)
        if reason := _unplayable(path, content):
            excluded[reason] += 1
            continue
        digest = hashlib.sha256(content).hexdigest()
        games.append(GameFile(path, name, split, task_type, digest))
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


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if b'"pddl_problem"' not in content or not content.rstrip().endswith(b"}"):
        raise DataError(f"{path}: not a game file, or torn. Delete it, or fetch it again")
    return content


def _unplayable(path: Path, content: bytes) -> str | None:
    mark = _SOLVABLE.search(content)
    if mark is None:
        return "no solvable mark (never checked)"
    if mark[1] == b"false":
        return "unsolvable"
    template = _PUT_BYTES.search(content)
    if template and template[1].decode(errors="replace") != _MOVE:
        return OLD_WORDING
    return None


def read(path: str | Path) -> LoadedGame:
    """Read one game file.

    Raises:
        DataError: unreadable, torn, not a game, or of the old `put` wording; says which.
    """
    path = Path(path)
    try:
        data = json.loads(_content(path))
    except ValueError as error:
        raise DataError(f"{path}: not a game file, or torn ({error})") from error
    if not isinstance(data, dict):
        raise DataError(f"{path}: not a game file: the top of it is not an object")
    try:
        return from_data(data)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def from_data(data: Mapping[str, object]) -> LoadedGame:
    """The same from a game file's parsed JSON.

    Raises:
        DataError: a key is missing or not what it should be, or the wording is the old one.
    """
    problem, grammar = data.get("pddl_problem"), data.get("grammar")
    if not isinstance(problem, str) or not isinstance(grammar, str):
        raise DataError("a game needs the texts pddl_problem and grammar")
    template = _PUT_RULE.search(grammar)
    if template and template[1] != _MOVE:
        raise DataError(
            f"{OLD_WORDING}: made by alfworld before 0.4. Fetch the games again with "
            f"alfworld-download of 0.4.2 or later"
        )
    task = _TASK_RULE.search(grammar)
    if task is None:
        raise DataError('the grammar has no "Your task is to: …" line')
    walkthrough = data.get("walkthrough") or ()
    if not isinstance(walkthrough, list | tuple) or not all(
        isinstance(command, str) for command in walkthrough
    ):
        raise DataError("walkthrough must be a list of commands")
    task_line = str(json.loads(f'"{task[1]}"'))
    return LoadedGame(Game.from_pddl(problem, task_line), tuple(walkthrough), problem, task_line)
