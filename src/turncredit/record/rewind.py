"""Takes a run folder back to what it was right after one of its steps, so that a run can go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from turncredit.core.errors import ConfigError, DataError
from turncredit.record import atomic, layout

if TYPE_CHECKING:
    from turncredit.record.runlog import RunFolder


def truncate_after(folder: RunFolder, step: int, *, discard_checkpoints: bool) -> None:
    """See `RunFolder.truncate_after`."""
    _check_announced(folder)
    later = [row["step"] for row in folder.checkpoints() if row["step"] > step]
    if later and not discard_checkpoints:
        raise ConfigError(
            f"resuming {folder.path} after step {step} would discard the checkpoints of steps "
            f"{later}. Resume from step {later[-1]}, or pass --overwrite."
        )
    for name in layout.LINES:
        _truncate_lines(folder.path / name, step)
    for found in folder.trajectory_steps():
        if found > step:
            layout.trajectory_path(folder.path, found).unlink()
    _remove_weights_after(folder, step)
    layout.remove_leftovers(folder.path)


def _remove_weights_after(folder: RunFolder, step: int) -> None:
    announced = {row["step"] for row in folder.checkpoints()}
    for found, place in layout.checkpoint_folders(folder.path):
        if found not in announced:
            shutil.rmtree(place)
    for found, place in layout.behind_folders(folder.path):
        if found not in announced:
            shutil.rmtree(place)
    for done, place in layout.teacher_folders(folder.path):
        if done >= step:  # taken again by the next update, from the same weights
            shutil.rmtree(place)


def _check_announced(folder: RunFolder) -> None:
    """An interrupted save leaves one checkpoint unannounced; more, and the list was lost."""
    announced = {row["step"] for row in folder.checkpoints()}
    lost = [p.name for n, p in layout.checkpoint_folders(folder.path) if n not in announced]
    if len(lost) > 1:
        raise DataError(
            f"{folder.path / 'checkpoints.jsonl'} does not name {', '.join(lost[:3])}, and "
            "resuming would remove them: the file is damaged. Restore it, or move them away"
        )


def _truncate_lines(path: Path, step: int) -> None:
    if not path.exists():
        return
    rows = layout.records(path, atomic.repair(path))
    kept = [row for row in rows if row["step"] <= step]
    if len(kept) < len(rows):
        atomic.write_bytes(path, b"".join(atomic.dump_line(row) for row in kept))
