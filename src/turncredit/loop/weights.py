"""Weights another command saved: found by the run folder they lie in, or by their own path."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from turncredit.config import Run
from turncredit.core.errors import DataError, did_you_mean
from turncredit.record.runlog import RunFolder

_STEP = re.compile(r"step-(\d{6,})")
_LAST = 5  # updates whose success rates are averaged


def sampler_weights(path: str | Path) -> str:
    """The sampler weights that `path` names.

    Args:
        path: a run folder (its newest checkpoint is taken), the folder of one checkpoint, or
            saved sampler weights; a URI is handed back as it is.

    Raises:
        DataError: there are none, with what to name instead.
    """
    if "://" in str(path):
        return str(path)
    place = Path(path).expanduser()
    if not place.exists() and place.with_name(f"{place.name}.npz").exists():
        place = place.with_name(f"{place.name}.npz")
    if not place.exists():
        raise DataError(f"no weights at {path}: there is no such folder or file.{_near(place)}")
    if _is_run(place):
        return _newest(RunFolder.open(place))
    if place.stem == "state":
        raise DataError(
            f"{path} is a training state, with its optimizer; give {place.with_stem('sampler')}"
        )
    inside = [found for name in ("sampler", "sampler.npz") if (found := place / name).exists()]
    return str(inside[0] if inside else place)


def pinned(run: Run) -> Run:
    """`run`, naming weights where it named run folders: these may be trained further meanwhile.

    Raises:
        DataError: there are no weights at a place it names.
    """
    first, teacher = run.schedule.init_from, run.teacher.teacher_run
    return replace(
        run,
        schedule=replace(run.schedule, init_from=sampler_weights(first) if first else ""),
        teacher=replace(run.teacher, teacher_run=sampler_weights(teacher) if teacher else ""),
    )


def recorded_success(path: str | Path) -> float | None:
    """How well the weights that `path` names did while they were trained.

    Args:
        path: as for `sampler_weights`.

    Returns:
        Mean success rate of the last five updates up to the checkpoint; None where no training
        run recorded any (weights from elsewhere, a supervised run).

    Raises:
        DataError: the run's records are damaged.
    """
    if (run := _run_around(path)) is None:
        return None
    weights = Path(sampler_weights(path)).parts
    steps = [int(found[1]) for part in weights if (found := _STEP.fullmatch(part))]
    rows = RunFolder.open(run).metrics()
    rates = [
        row["reward/success_rate"]
        for row in rows
        if "reward/success_rate" in row and (not steps or row["step"] <= steps[-1])
    ]
    return float(np.mean(rates[-_LAST:])) if rates else None


def _run_around(path: str | Path) -> Path | None:
    """The run folder that `path` is, or lies in at most three levels below."""
    if "://" in str(path):
        return None
    place = Path(path).expanduser().resolve()
    return next((p for p in (place, *list(place.parents)[:3]) if _is_run(p)), None)


def _is_run(place: Path) -> bool:
    """Whether a run was written here; the folder of a model holds a config.json, too."""
    return (place / "config.json").is_file() and (place / "environment.json").is_file()


def _newest(run: RunFolder) -> str:
    found = run.checkpoints()
    if not found:
        raise DataError(
            f"{run.path} has no checkpoint yet: wait for its first (every save_every updates), or "
            "name saved weights"
        )
    place = found[-1].get("sampler")
    if not isinstance(place, str):
        raise DataError(
            f"the last line of {run.path}/checkpoints.jsonl names no sampler: the file is damaged. "
            f"{run.how_to_step_back()}"
        )
    weights = run.resolve(place)
    if "://" not in weights and not Path(weights).exists():
        raise DataError(
            f"{run.path}/checkpoints.jsonl names {weights}, which is gone. {run.how_to_step_back()}"
        )
    return weights


def _near(place: Path) -> str:
    around = place.parent
    names = [found.name for found in around.iterdir()] if around.is_dir() else []
    return did_you_mean(place.name, names)
