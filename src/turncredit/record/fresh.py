"""Makes room for a new run: where one may begin, and what is removed first."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from turncredit.core.errors import ConfigError
from turncredit.record import layout


def check_free(path: Path, *, overwrite: bool, remade: Collection[int]) -> None:
    """Refuse a place where something would be lost. Nothing is touched.

    Args:
        path: of the run folder to be.
        overwrite: a run may be removed.
        remade: steps whose trajectories may be removed.

    Raises:
        ConfigError: there is a run, or something that is none.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, not a run folder. Choose another --run-name.")
    made = list(layout.made(path, but=remade))
    if made and not overwrite:
        raise ConfigError(
            f"{path} exists already, with {', '.join(made[:3])} in it. Continue it with "
            f"--resume {path}, choose another --run-name, or replace it with --overwrite."
        )
    if foreign := sorted(layout.foreign(path)):
        raise ConfigError(
            f"{path} holds {', '.join(foreign[:3])}, which no run wrote: not replaced. "
            "Choose another --run-name."
        )


def clear(path: Path) -> None:
    """Remove a run from its folder; who holds it goes on holding it."""
    for place in path.iterdir():
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        elif place.name != "run.lock":
            place.unlink()
