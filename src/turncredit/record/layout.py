"""Which names a run folder holds: what is a run's own, what is left over, what is foreign."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from turncredit.core.errors import DataError, nearest
from turncredit.record.atomic import Lines

LINES = ("metrics.jsonl", "ledger.jsonl", "checkpoints.jsonl")
_OURS = ("config.json", "environment.json", *LINES, "trajectories", "checkpoints")
# What a start leaves behind that made nothing: it is written again, or goes on counting.
_NOTES = ("probe.json", "spent.json", "mirrors", "run.lock")
_OURS_LATER = (*_NOTES, "audit.json", "report.html")
_CHECKPOINT = re.compile(r"step-(\d{6,})")
_TEACHER = re.compile(r"teacher-(\d{6,})")
_BEHIND = re.compile(r"behind-(\d{6,})")
_TRAJECTORIES = re.compile(r"\d{6,}\.jsonl\.gz")
_TEMPORARY = re.compile(r"\..*\.tmp")


def meant(place: Path) -> str:
    """What a path that is no run may have meant: a run in it, beside it, or below `runs`."""
    if inside := sorted(found.parent for found in place.glob("*/config.json")):
        return f" It holds runs: name one, such as {inside[-1]}"
    around = [*place.parent.glob("*/config.json"), *(place.parent / "runs").glob("*/config.json")]
    runs = {found.parent.name: found.parent for found in reversed(around)}
    name = nearest(place.name, runs)
    return f' Did you mean "{runs[name]}"?' if name else ""


def foreign(run: Path) -> Iterator[str]:
    """What lies in the folder and no run wrote, as paths below it."""
    for place in run.glob("*"):
        if place.name not in (*_OURS, *_OURS_LATER) and not _TEMPORARY.fullmatch(place.name):
            yield place.name
    ours = {"trajectories": (_TRAJECTORIES,), "checkpoints": (_CHECKPOINT, _TEACHER, _BEHIND)}
    for folder, patterns in ours.items():
        for place in (run / folder).glob("*"):
            if not any(p.fullmatch(place.name) for p in (*patterns, _TEMPORARY)):
                yield f"{folder}/{place.name}"


def made(run: Path, *, but: Collection[int] = ()) -> Iterator[str]:
    """What a run has in its folder beside its settings and notes; nothing after a failed start.

    Args:
        run: the folder.
        but: trajectories of these steps do not count.
    """
    begun = (run / "environment.json").is_file()  # else its config.json may be anybody's
    settings = ("environment.json", "config.json") if begun else ()
    spared = {trajectory_path(run, step) for step in but}
    for place in sorted(run.glob("*")):
        if place.name in (*_NOTES, *settings) or _TEMPORARY.fullmatch(place.name):
            continue
        if place.is_dir():
            filled = any(found not in spared for found in place.iterdir())
        else:
            filled = place.name not in LINES or place.stat().st_size > 0
        if filled:
            yield place.name


def trajectory_steps(run: Path) -> list[int]:
    """The steps whose trajectories are there, ascending."""
    names = [file.name for file in (run / "trajectories").glob("*")]
    return sorted(int(n.partition(".")[0]) for n in names if _TRAJECTORIES.fullmatch(n))


def trajectory_path(run: Path, step: int) -> Path:
    """Where the trajectories of a step belong."""
    return run / "trajectories" / f"{step:06d}.jsonl.gz"


def checkpoint_folders(run: Path) -> list[tuple[int, Path]]:
    """The folders of all checkpoints, announced or not, with their step, ascending."""
    return _numbered(run, _CHECKPOINT)


def teacher_folders(run: Path) -> list[tuple[int, Path]]:
    """The folders of all stale teachers, with the updates before the one they serve, ascending."""
    return _numbered(run, _TEACHER)


def behind_folders(run: Path) -> list[tuple[int, Path]]:
    """The folders of weights a rollout under way came from, with their checkpoint, ascending."""
    return _numbered(run, _BEHIND)


def _numbered(run: Path, form: re.Pattern[str]) -> list[tuple[int, Path]]:
    found = [(form.fullmatch(p.name), p) for p in sorted((run / "checkpoints").glob("*"))]
    return [(int(match[1]), p) for match, p in found if match and p.is_dir()]


def remove_leftovers(run: Path) -> None:
    """Remove the half-written files of an interrupted run."""
    for place in (run, run / "trajectories"):
        for file in place.glob(".*"):
            if file.is_file() and _TEMPORARY.fullmatch(file.name):
                file.unlink()


def records(path: Path, lines: Lines) -> tuple[dict[str, Any], ...]:
    """The lines of a file of a run, each of which names its step.

    Raises:
        DataError: one does not; names it.
    """
    for number, row in enumerate(lines.records, start=1):
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            raise DataError(
                f"{path}, line {number} is no record of a step: the file is damaged. Restore it, "
                "or remove that line"
            )
    return lines.records
