"""The run folder: its format is written and read here only, and its paths are known here only.

    config.json  environment.json  metrics.jsonl  ledger.jsonl  checkpoints.jsonl
    probe.json  spent.json
    trajectories/000007.jsonl.gz   checkpoints/step-000040/{state, sampler}
    checkpoints/teacher-000030/sampler   checkpoints/behind-000040/sampler

Steps count updates: step n is the n-th update, and checkpoint n holds the weights after it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turncredit.core.errors import AlignmentError, ConfigError, DataError
from turncredit.core.types import Credit, Group
from turncredit.record import atomic, fresh, layout, packed, rewind, spending
from turncredit.record.rows import Recorded


class RunFolder:
    """One run on disk. Create it once, or open an existing one; then write each step as it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = False

    # ── opening ──────────────────────────────────────────────────────────────────────────────

    @classmethod
    def create(
        cls, path: str | Path, *, overwrite: bool = False, remade: Collection[int] = ()
    ) -> RunFolder:
        """A fresh folder at `path`; see `begun`."""
        with cls.begun(path, overwrite=overwrite, remade=remade) as folder:
            return folder

    @classmethod
    @contextmanager
    def begun(
        cls, path: str | Path, *, overwrite: bool = False, remade: Collection[int] = ()
    ) -> Iterator[RunFolder]:
        """A fresh folder at `path`, held until the end of the block.

        A folder in which a start made nothing is taken as it is: what was spent there, and what a
        service was found to do, stays written down.

        Args:
            path: of the folder.
            overwrite: an existing run is removed first.
            remade: steps whose trajectories are removed: the caller makes them again.

        Raises:
            ConfigError: there is a run already, and `overwrite` is False; it is being written; or
                there are files that are no run's, which are never removed.
        """
        folder = cls(Path(path))
        fresh.check_free(folder.path, overwrite=overwrite, remade=remade)
        folder.path.mkdir(parents=True, exist_ok=True)
        with folder.locked():  # a live run is never removed, nor what it made since we looked
            fresh.check_free(folder.path, overwrite=overwrite, remade=remade)
            if overwrite:
                fresh.clear(folder.path)
            for step in remade:
                layout.trajectory_path(folder.path, step).unlink(missing_ok=True)
            yield folder

    @classmethod
    def check_free(
        cls, path: str | Path, *, overwrite: bool = False, remade: Collection[int] = ()
    ) -> None:
        """Refuse beforehand what `begun` would refuse; nothing is made or removed.

        Raises:
            ConfigError: as there.
        """
        folder = cls(Path(path))
        fresh.check_free(folder.path, overwrite=overwrite, remade=remade)
        if folder.path.exists():
            with folder.locked():  # nobody else holds it
                pass

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run.

        Raises:
            DataError: there is no run at `path`.
        """
        folder = cls(Path(path))
        if not (folder.path / "config.json").is_file():
            what = "it has no config.json" if folder.path.is_dir() else "there is no such folder"
            raise DataError(f"{path} is no run folder ({what}).{layout.meant(folder.path)}")
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run while writing it; a second writer is refused.

        Who holds it already goes on holding it.

        Raises:
            ConfigError: another process is writing this run.
        """
        if self._held:
            yield
            return
        with atomic.locked(self.path / "run.lock", f"run {self.path}"):
            self._held = True
            try:
                yield
            finally:
                self._held = False

    # ── whole files ──────────────────────────────────────────────────────────────────────────

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Save the resolved configuration."""
        atomic.write_json(self.path / "config.json", config)

    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run."""
        return self._read_json("config.json")

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Save what the run ran on (see `record.environment.describe`)."""
        atomic.write_json(self.path / "environment.json", environment)

    def environment(self) -> dict[str, Any]:
        """What the run ran on."""
        return self._read_json("environment.json")

    def write_spent(self, note: Mapping[str, Any]) -> None:
        """Save how much money may have been spent by now, lost work included."""
        spending.write(self.path / "spent.json", note)

    def spent(self) -> dict[str, Any] | None:
        """The last such note; None: nobody has counted.

        Raises:
            DataError: it is damaged.
        """
        return spending.read(self.path / "spent.json")

    def write_probes(self, probes: Sequence[Mapping[str, Any]]) -> None:
        """Save what the service was found to do, once for every time the run was begun."""
        atomic.write_json(self.path / "probe.json", {"probes": list(probes)})

    def probes(self) -> list[dict[str, Any]]:
        """What was found so far."""
        there = (self.path / "probe.json").exists()
        return list(self._read_json("probe.json").get("probes", [])) if there else []

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads((self.path / name).read_bytes())
        except FileNotFoundError as error:
            raise DataError(f"{self.path} has no {name}") from error
        except ValueError as error:
            raise DataError(
                f"{self.path / name} is not JSON ({error}): the file is damaged. Restore it"
            ) from error
        if not isinstance(value, dict):
            raise DataError(f"{self.path / name} holds no settings: restore it")
        return value

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step's scalars."""
        self._append("metrics.jsonl", step, metrics)

    def metrics(self) -> list[dict[str, Any]]:
        """All steps' scalars, each with its `step`."""
        return self._read_lines("metrics.jsonl")

    def append_ledger(self, step: int, record: Mapping[str, Any]) -> None:
        """Append what one step cost (see `record.ledger`)."""
        self._append("ledger.jsonl", step, record)

    def ledger(self) -> list[dict[str, Any]]:
        """What each step cost."""
        return self._read_lines("ledger.jsonl")

    def append_checkpoint(self, step: int, record: Mapping[str, Any]) -> None:
        """Announce a checkpoint. Call it after its files are complete: unannounced ones are void.

        Args:
            step: updates done.
            record: what resuming needs: `state` and `sampler` paths or URIs, the cursor.
        """
        self._append("checkpoints.jsonl", step, record)

    def checkpoints(self) -> list[dict[str, Any]]:
        """All announced checkpoints, in order, each with its `step`."""
        return self._read_lines("checkpoints.jsonl")

    def how_to_step_back(self) -> str:
        """What to do when the newest checkpoint cannot be read."""
        found = self.checkpoints()
        file = self.path / "checkpoints.jsonl"
        if len(found) < 2:
            return f"There is no earlier checkpoint: empty {file} to begin again from update 1"
        # What lies on a service has no folder here.
        folder = "" if "://" in str(found[-1].get("state")) else " and the folder it names"
        return f"Delete the last line of {file}{folder} to go on from {found[-2]['step']}"

    @property
    def checkpoint_dir(self) -> Path:
        """The folder all checkpoints lie in."""
        return self.path / "checkpoints"

    def checkpoint_path(self, step: int) -> Path:
        """Where the files of a checkpoint belong."""
        return self.checkpoint_dir / f"step-{step:06d}"

    def teacher_path(self, done: int) -> Path:
        """Where the weights of a stale teacher belong, taken for the update after `done` others."""
        return self.checkpoint_dir / f"teacher-{done:06d}"

    def relative(self, place: str) -> str:
        """A saved place as recorded: below this folder, so that a run can be moved; URIs as is."""
        if "://" in place or not Path(place).resolve().is_relative_to(self.path.resolve()):
            return place
        return Path(place).resolve().relative_to(self.path.resolve()).as_posix()

    def resolve(self, place: str) -> str:
        """The inverse of `relative`."""
        return place if "://" in place else str(self.path / place)

    def _append(self, name: str, step: int, record: Mapping[str, Any]) -> None:
        atomic.append_line(self.path / name, {"step": step, **record})

    def _read_lines(self, name: str) -> list[dict[str, Any]]:
        path = self.path / name
        if not path.exists():
            return []
        rows = layout.records(path, atomic.read_lines(path))
        return [{key: atomic.number(value) for key, value in row.items()} for row in rows]

    # ── trajectories ─────────────────────────────────────────────────────────────────────────

    def write_trajectories(
        self,
        step: int,
        groups: Sequence[Group],
        credits: Sequence[Credit] | None = None,
    ) -> Path:
        """Save all trajectories of a step, with their credit.

        Raises:
            AlignmentError: another number of credits than groups.
            ConfigError: the step is on disk already (see `truncate_after`).
        """
        path = layout.trajectory_path(self.path, step)
        if path.exists():
            raise ConfigError(f"{path} exists already: step {step} was written before")
        if credits is not None and len(credits) != len(groups):
            raise AlignmentError("credits of a step", expected=len(groups), got=len(credits))
        atomic.write_bytes(path, packed.pack(groups, credits))
        return path

    def read_trajectories(self, step: int) -> list[Recorded]:
        """The groups of a step exactly as they were written (but for `Task.payload`).

        Raises:
            DataError: the step is not on disk, or its file is damaged.
        """
        path = layout.trajectory_path(self.path, step)
        if not path.exists():
            raise DataError(
                f"{self.path} has no trajectories of step {step}; it has {self.trajectory_steps()}"
            )
        return packed.read(path)

    # ── a rollout under way ──────────────────────────────────────────────────────────────────

    def behind_path(self, step: int) -> Path:
        """Where the weights belong whose rollout is under way at checkpoint `step`."""
        return self.checkpoint_dir / f"behind-{step:06d}"

    def write_ahead(self, step: int, groups: Sequence[Group]) -> None:
        """Save the rollout of update `step + 1` beside checkpoint `step`."""
        atomic.write_bytes(self._ahead_path(step), packed.pack(groups))

    def read_ahead(self, step: int) -> list[Group]:
        """That rollout exactly as it was (but for `Task.payload`).

        Raises:
            DataError: it is not on disk, or its file is damaged.
        """
        path = self._ahead_path(step)
        if not path.exists():
            raise DataError(f"{path} is missing, which checkpoint {step} goes on with: restore it")
        return [recorded.group for recorded in packed.read(path)]

    def _ahead_path(self, step: int) -> Path:
        return self.checkpoint_path(step) / "ahead.jsonl.gz"

    def trajectory_steps(self) -> list[int]:
        """The steps whose trajectories are on disk, ascending."""
        return layout.trajectory_steps(self.path)

    # ── resuming ─────────────────────────────────────────────────────────────────────────────

    def truncate_after(self, step: int, *, discard_checkpoints: bool = False) -> None:
        """Make the folder what it was right after `step`, so that a resumed run has each step once.

        Torn last lines go, with a warning; so do records of later steps, and the files of
        checkpoints that were never announced (their writing was interrupted).

        Raises:
            ConfigError: announced checkpoints lie after `step` and may not be discarded.
            DataError: several checkpoints are not announced, which no interruption leaves.
        """
        rewind.truncate_after(self, step, discard_checkpoints=discard_checkpoints)
