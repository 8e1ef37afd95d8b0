"""Who rescores: the snapshot that sampled, or one that stays behind, or another policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turncredit.config import Run
from turncredit.core.errors import ConfigError, DataError
from turncredit.core.protocols import AveragingClient, Backend, SamplingClient, TrainingClient
from turncredit.credit.schedule import factor
from turncredit.loop.weights import sampler_weights
from turncredit.record.runlog import RunFolder


@dataclass(frozen=True, slots=True)
class Lent:
    """The teacher of one update.

    Attributes:
        client: bound to its snapshot.
        own: it is the very client that sampled.
        ends: it was made for this update alone.
    """

    client: SamplingClient
    own: bool = False
    ends: bool = False

    async def give_back(self) -> None:
        """Close it, if nobody else has use for it."""
        if self.ends:
            await self.client.close()


class Teachers:
    """Gives the teacher of every update, and brings it back after an interruption.

    The rule is `run.needs.snapshot`: "current"; "stale": a copy taken every `refresh_every`
    updates, and at the first one with a teacher; "initial": the weights training began with;
    "average": of the weights so far; "trained": those of another run.
    """

    def __init__(self, run: Run, backend: Backend, folder: RunFolder) -> None:
        self._run, self._backend, self._folder = run, backend, folder
        self.rule = run.needs.snapshot
        self._kept: SamplingClient | None = None  # outlives an update
        self._stale_path = ""

    async def begin(self, training: TrainingClient, last: Mapping[str, Any] | None) -> None:
        """Once, before the first update.

        Args:
            training: the weights of the run.
            last: the checkpoint the run continues from.

        Raises:
            DataError: the checkpoint does not say where its stale teacher lies.
        """
        if self.rule == "average":
            if not isinstance(training, AveragingClient):
                raise ConfigError(f"backend {self._run.backend.name} keeps no average of weights")
            training.track_average(self._run.teacher.average_decay)
        if self.rule == "stale" and last and self._outlives(last["step"]):
            if not last.get("teacher"):
                raise DataError(f"checkpoint {last['step']} does not name its stale teacher")
            self._stale_path = self._folder.resolve(last["teacher"])
            self._kept = await self._open(self._stale_path)

    async def of(self, step: int, student: SamplingClient, training: TrainingClient) -> Lent:
        """The teacher of update `step`."""
        if self.rule == "current":
            return Lent(student, own=True)
        if self.rule == "average":
            assert isinstance(training, AveragingClient)  # checked by `begin`
            return Lent(await training.average_sampling_client(), ends=True)
        if self.rule == "stale" and (self._kept is None or self._is_due(step)):
            await self._renew(step, training)
        if self._kept is None:
            self._kept = await self._open(self._path())
        return Lent(self._kept)

    async def initial(self) -> SamplingClient:
        """A new client of the weights training began with: what a KL penalty holds on to."""
        return await self._open(started_from(self._run).get("from_weights"))

    def record(self) -> dict[str, Any]:
        """What a checkpoint must say for `begin`."""
        return {"teacher": self._folder.relative(self._stale_path)} if self._stale_path else {}

    async def close(self) -> None:
        """Free the teacher that was kept."""
        if self._kept is not None:
            await self._kept.close()

    def _is_due(self, step: int) -> bool:
        return (step - 1) % self._run.teacher.refresh_every == 0

    def _outlives(self, done: int) -> bool:
        """A copy was taken in the first `done` updates, and the next one needs it."""
        start = self._run.teacher.teacher_start
        used = done >= start and factor(start, decay_steps=self._run.needs.decay_steps, start=start)
        return bool(used) and not self._is_due(done + 1)

    async def _renew(self, step: int, training: TrainingClient) -> None:
        await self.close()
        name = self._folder.teacher_path(step - 1).name
        self._stale_path = await training.save_weights_for_sampler(name)
        self._kept = await self._open(self._stale_path)

    def _path(self) -> str | None:
        if self.rule == "trained":
            return sampler_weights(self._run.teacher.teacher_run)
        return started_from(self._run).get("from_weights")

    async def _open(self, path: str | None) -> SamplingClient:
        return await self._backend.create_sampling_client(model_path=path)


def started_from(run: Run) -> dict[str, str]:
    """What `create_training_client` takes for the weights a run begins with: {} for the base's."""
    place = run.schedule.init_from
    return {"from_weights": sampler_weights(place)} if place else {}
