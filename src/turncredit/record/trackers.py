"""Mirrors of the metrics at SwanLab, W&B, TensorBoard or trackio. The run folder is the record.

A mirror that fails is dropped with one warning; it never stops a run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turncredit.core.errors import ConfigError, did_you_mean
from turncredit.core.protocols import Tracker
from turncredit.core.registry import require


@dataclass(frozen=True, kw_only=True)
class About:
    """What a mirror is told of the run.

    Attributes:
        folder: where mirrors that write files may put them.
        mode: "online", "offline", "local" or "disabled"; what a service has no word for is
            translated (see each function).
    """

    project: str
    run_name: str
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "online"


class Mirrors:
    """All mirrors of a run as one tracker; none at all is fine."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)

    @property
    def names(self) -> tuple[str, ...]:
        """The mirrors that still work."""
        return tuple(self._trackers)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Mirror one step; values that are not finite are left out."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._each(lambda tracker: tracker.log(finite, step))

    def close(self) -> None:
        """Flush and finish all."""
        self._each(lambda tracker: tracker.close())
        self._trackers.clear()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            # A service's client may raise anything; losing a mirror must not lose the run.
            try:
                call(tracker)
            except Exception as error:  # noqa: BLE001
                del self._trackers[name]
                warnings.warn(
                    f"the {name} mirror failed and is dropped ({type(error).__name__}: {error}); "
                    "the run goes on, its metrics are in metrics.jsonl",
                    stacklevel=3,
                )


def open_trackers(names: Sequence[str], about: About) -> Mirrors:
    """Open the mirrors called `names`.

    With mode "disabled" there are none, and nothing is imported.

    Raises:
        ConfigError: an unknown name.
        MissingExtra: its package is not installed.
    """
    modules = check_trackers(names if about.mode != "disabled" else ())
    opened: dict[str, Tracker] = {}
    for name, module in modules.items():
        # Signing in or reaching the service may fail in any way.
        try:
            opened[name] = OPENERS[name](module, about)
        except Exception as error:  # noqa: BLE001
            warnings.warn(
                f"the {name} mirror did not start ({type(error).__name__}: {error}); the run goes "
                "on without it",
                stacklevel=2,
            )
    return Mirrors(opened)


def check_trackers(names: Sequence[str]) -> dict[str, Any]:
    """The imported module of each mirror: asked for before anything is spent.

    Raises:
        ConfigError: unknown name.
        MissingExtra: its package is not installed.
    """
    for name in names:
        if name not in OPENERS:
            raise ConfigError(
                f'no tracker "{name}".{did_you_mean(name, OPENERS)} (known: {", ".join(OPENERS)})'
            )
    return {name: require(MODULES[name], f'tracker "{name}"', name) for name in names}


@dataclass(frozen=True)
class _Calls:
    """A tracker made of two calls."""

    write: Callable[[dict[str, float], int], object]
    finish: Callable[[], object]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.write(dict(metrics), step)

    def close(self) -> None:
        self.finish()


def _swanlab(module: Any, about: About) -> Tracker:
    """SwanLab's modes are our words: `online`, `local`, `offline`."""
    module.init(
        project=about.project,
        experiment_name=about.run_name,
        config=dict(about.config),
        mode=about.mode,
        logdir=str(_folder(about, "swanlab")),
    )
    return _Calls(lambda metrics, step: module.log(metrics, step=step), module.finish)


def _wandb(module: Any, about: About) -> Tracker:
    """W&B knows `online` and `offline`; `local` is offline."""
    run = module.init(
        project=about.project,
        name=about.run_name,
        config=dict(about.config),
        mode="online" if about.mode == "online" else "offline",
        dir=str(_folder(about, "wandb")),
    )
    return _Calls(lambda metrics, step: run.log(metrics, step=step), run.finish)


def _tensorboard(module: Any, about: About) -> Tracker:
    """Event files, written without TensorFlow or PyTorch."""
    writer = module.Writer(str(_folder(about, "tensorboard")))

    def write(metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return _Calls(write, writer.close)


def _trackio(module: Any, about: About) -> Tracker:
    """Trackio stores locally whatever the mode."""
    run = module.init(project=about.project, name=about.run_name, config=dict(about.config))
    return _Calls(lambda metrics, step: run.log(metrics, step=step), run.finish)


def _folder(about: About, name: str) -> Path:
    folder = about.folder / "mirrors" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


OPENERS: Mapping[str, Callable[[Any, About], Tracker]] = {
    "swanlab": _swanlab,
    "wandb": _wandb,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
}
MODULES: Mapping[str, str] = {
    "swanlab": "swanlab",
    "wandb": "wandb",
    "tensorboard": "tensorboard.summary",
    "trackio": "trackio",
}
