"""Who rescores: the snapshot that sampled, or one that stays behind, or another policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turncredit.config import Run
from turncredit.core.clients import AveragingClient, Backend, SamplingClient, TrainingClient
from turncredit.core.errors import ConfigError, DataError
from turncredit.credit.schedule import factor
from turncredit.loop.weights import sampler_weights
from turncredit.record.runlog import RunFolder


@dataclass(frozen=True, slots=True)
class Source:
    """The weights a rollout samples from: those in training at this moment, or saved ones.

    Attributes:
        backend: opens saved ones.
        training: the weights of the run. They move on: take what is needed before their next step.
        path: where the weights lie, when they are no longer those in training.
    """

    backend: Backend
    training: TrainingClient
    path: str = ""

    async def client(self) -> SamplingClient:
        """A client of a frozen copy."""
        if self.path:
            return await self.backend.create_sampling_client(model_path=self.path)
        return await self.training.save_weights_and_get_sampling_client()

    async def saved(self, name: str) -> str:
        """Where they lie; saved as `name` when they lie nowhere yet."""
        return self.path or await self.training.save_weights_for_sampler(name)


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

    The rule is `run.needs.snapshot`: "current"; "stale": a copy of what samples, taken every
    `refresh_every` updates, and at the first one with a teacher; "initial": the weights training
    began with; "average": of the weights so far; "trained": those of another run.

    An update's teacher is lent when its rollout begins. With `async_level` 1 that is while the
    update before it is still being made: a teacher that was replaced then serves it to its end.
    """

    def __init__(self, run: Run, backend: Backend, folder: RunFolder) -> None:
        self._run, self._backend, self._folder = run, backend, folder
        self.rule = run.needs.snapshot
        self._kept: SamplingClient | None = None  # outlives an update
        self._replaced: SamplingClient | None = None  # may serve the update before the next
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
        if path := self.kept(last):
            self._stale_path, self._kept = path, await self._open(path)

    def kept(self, last: Mapping[str, Any] | None) -> str:
        """Where the stale teacher lies that a run goes on with; "" : it needs none.

        Raises:
            DataError: the checkpoint does not say.
        """
        if self.rule != "stale" or not last or not self._outlives(last["step"]):
            return ""
        if not last.get("teacher"):
            raise DataError(f"checkpoint {last['step']} does not name its stale teacher")
        return self._folder.resolve(last["teacher"])

    def given(self) -> str | None:
        """Saved weights of another run that teach in this one; None: of none."""
        if self.rule == "trained":
            return sampler_weights(self._run.teacher.teacher_run)
        return self.first if self.rule == "initial" else None

    @property
    def first(self) -> str | None:
        """Saved weights that training began with; None: the base model's."""
        return started_from(self._run).get("from_weights")

    async def of(self, step: int, student: SamplingClient, source: Source) -> Lent:
        """The teacher of update `step`, whose rollout begins.

        Args:
            step: the update.
            student: bound to the snapshot that samples.
            source: the weights of that snapshot.
        """
        await self._free_replaced()
        if self.rule == "current":
            return Lent(student, own=True)
        if self.rule == "average":
            assert isinstance(source.training, AveragingClient)  # checked by `begin`
            return Lent(await source.training.average_sampling_client(), ends=True)
        if self.rule == "stale" and (self._kept is None or self._is_due(step)):
            await self._renew(step, source)
        if self._kept is None:
            self._kept = await self._open(self.given())
        return Lent(self._kept)

    async def initial(self) -> SamplingClient:
        """A new client of the weights training began with: what a KL penalty holds on to."""
        return await self._open(self.first)

    def record(self) -> dict[str, Any]:
        """What a checkpoint must say for `begin`."""
        return {"teacher": self._folder.relative(self._stale_path)} if self._stale_path else {}

    async def close(self) -> None:
        """Free the teachers that were kept."""
        await self._free_replaced()
        if self._kept is not None:
            await self._kept.close()

    async def _free_replaced(self) -> None:
        replaced, self._replaced = self._replaced, None
        if replaced is not None:
            await replaced.close()

    def _is_due(self, step: int) -> bool:
        return (step - 1) % self._run.teacher.refresh_every == 0

    def _outlives(self, done: int) -> bool:
        """A copy was taken in the first `done` updates, and the next one needs it."""
        start = self._run.teacher.teacher_start
        used = done >= start and factor(start, decay_steps=self._run.needs.decay_steps, start=start)
        return bool(used) and not self._is_due(done + 1)

    async def _renew(self, step: int, source: Source) -> None:
        self._replaced, self._kept = self._kept, None
        if not self._run.schedule.async_level:  # nobody else still needs it
            await self._free_replaced()
        name = self._folder.teacher_path(step - 1).name
        self._stale_path = await source.saved(name)
        self._kept = await self._open(self._stale_path)

    async def _open(self, path: str | None) -> SamplingClient:
        return await self._backend.create_sampling_client(model_path=path)


def started_from(run: Run) -> dict[str, str]:
    """What `create_training_client` takes for the weights a run begins with: {} for the base's."""
    place = run.schedule.init_from
    return {"from_weights": sampler_weights(place)} if place else {}
