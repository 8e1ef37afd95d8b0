"""The rollout of every update: begun when its update begins, or one update earlier.

Level 0, strictly on-policy: a rollout begins when the update before it is made.

    rollout 1 │ teacher, credit, update 1 │ rollout 2 │ teacher, credit, update 2 │ ...

Level 1: while an update is made, the next rollout runs on the weights that update starts from. So
every update but the first learns from trajectories that are one update behind, and its loss has
their ratio.

    rollout 1 │ teacher, credit, update 1 │ teacher, credit, update 2 │ ...
              │ rollout 2                 │ rollout 3                 │ ...

What was sampled and what looks at it are of one snapshot at both levels. A checkpoint of level 1
holds the rollout that is under way, whole, and the weights it comes from: a resumed run goes on
with the very same trajectories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from turncredit.config import Run
from turncredit.core.clients import SamplingClient, TrainingClient
from turncredit.core.errors import DataError
from turncredit.core.types import Usage
from turncredit.loop.accounting import Accounts
from turncredit.loop.looking import Looking
from turncredit.loop.sampler import Batch, Progress, Sampler
from turncredit.loop.teachers import Lent, Source
from turncredit.loop.views import Early, Rolled
from turncredit.record.runlog import RunFolder


@dataclass(slots=True)
class Underway:
    """A rollout while it runs.

    Attributes:
        step: its update.
        client: of its snapshot, for whoever looks at it later.
        lent: its teacher, or None.
        early: looks at finished groups, or None.
        task: the rollout itself.
        held: frees all of it.
    """

    step: int
    client: SamplingClient
    lent: Lent | None
    early: Early | None
    task: asyncio.Future[Batch]
    held: AsyncExitStack

    async def close(self) -> None:
        """End it if it still runs, and free its snapshot and teacher."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.held.aclose()


class Rollouts:
    """Gives every update its rollout, and keeps what a resumed run needs of them."""

    def __init__(
        self,
        run: Run,
        accounts: Accounts,
        sampler: Sampler,
        looking: Looking,
        folder: RunFolder,
        progress: Progress,
    ) -> None:
        self._level, self._last_step = run.schedule.async_level, run.schedule.max_steps
        self._accounts, self._sampler, self._looking = accounts, sampler, looking
        self._folder, self._progress = folder, progress
        self._now: Underway | None = None  # of the update that is being made
        self._next: Underway | None = None
        self._behind = ""  # where the weights of the next rollout lie
        self._awaited = False

    async def begin(self, training: TrainingClient, last: Mapping[str, Any] | None) -> None:
        """Once, before the first update; `last` is the checkpoint the run continues from.

        Raises:
            DataError: the checkpoint does not say where the weights behind lie.
        """
        if last is None or not (behind := self.kept(last)):
            return
        done, (self._behind,) = last["step"], behind
        if kept := last.get("ahead"):
            played = self._sampler.with_payloads(done + 1, self._folder.read_ahead(done))
            self._accounts.rebook(done + 1, Usage(**kept["usage"]), played)
            count = kept["groups"]
            batch = Batch(played[:count], kept["metrics"], played[count:])
            self._next = await self._start(done + 1, self._source(training), batch)

    def kept(self, last: Mapping[str, Any] | None) -> list[str]:
        """Saved weights of the checkpoint that `begin` goes on with.

        Raises:
            DataError: the checkpoint does not say where they lie.
        """
        if not self._level or last is None:
            return []
        if not last.get("behind"):
            raise DataError(f"checkpoint {last['step']} does not name the weights of its rollout")
        return [self._folder.resolve(last["behind"])]

    async def of(self, step: int, training: TrainingClient, *, saves: bool) -> Rolled:
        """The rollout of update `step`, finished; at level 1 the next one begins.

        Args:
            step: the update.
            training: the weights in training, before this update.
            saves: a checkpoint follows this update.

        Raises:
            BackendError, AlignmentError, ConfigError: from the policy's side.
        """
        now, self._next = self._next, None
        self._now = now or await self._start(step, self._source(training))
        self._behind = ""
        batch = _seen_by(await self._waited(step, self._now), self._now.client)
        metrics = dict(batch.metrics)
        if self._level:
            metrics["async/staleness"] = float(step > 1)
            if step < self._last_step:
                self._next = await self._start(step + 1, self._source(training))
            if saves:
                name = self._folder.behind_path(step).name
                self._behind = await training.save_weights_for_sampler(name)
        return Rolled(batch.groups, self._now.client, self._now.lent, self._now.early, metrics)

    async def done(self) -> None:
        """The update that was being made is made: free its snapshot and its teacher."""
        now, self._now = self._now, None
        if now is not None:
            await now.close()

    async def record(self, step: int, *, fallback: str = "") -> dict[str, Any]:
        """What checkpoint `step` must say for `begin`. Waits for the rollout that is under way.

        Args:
            step: the checkpoint.
            fallback: weights of a checkpoint nobody had planned, so that those of the rollout
                under way are gone: the next one comes from these, and is for once on-policy.
        """
        if not self._level:
            return {}
        if fallback:
            return {"behind": self._folder.relative(fallback)}
        record: dict[str, Any] = {"behind": self._folder.relative(self._behind)}
        if self._next is not None:
            batch = await self._next.task
            self._folder.write_ahead(step, [*batch.groups, *batch.dropped])
            record["ahead"] = {
                "groups": len(batch.groups),
                "metrics": dict(batch.metrics),
                "usage": asdict(self._accounts.rolled(step + 1)),
            }
        return record

    async def close(self) -> None:
        """End whatever runs."""
        underway = [one for one in (self._now, self._next) if one is not None]
        self._now = self._next = None
        for one in underway:
            await one.close()

    def _source(self, training: TrainingClient) -> Source:
        """The weights the next rollout samples from."""
        return Source(self._accounts.backend, training, self._behind)

    async def _start(self, step: int, source: Source, batch: Batch | None = None) -> Underway:
        """Begin the rollout of update `step`, or take `batch` for it."""
        async with AsyncExitStack() as held:
            client = await source.client()
            held.push_async_callback(client.close)
            lent = await self._looking.lend(step, client, source)
            if lent is not None:
                held.push_async_callback(lent.give_back)
            early = self._looking.early(step, client, lent, self._as_teacher)
            if early is not None:
                held.push_async_callback(early.close)
            if batch is not None:
                task = asyncio.get_running_loop().create_future()
                task.set_result(batch)
            else:
                # At level 1 what samples is closed with its rollout: a resumed run reads the
                # rollout, and when the next one begins the backend must be in the same state.
                sampling = await source.client() if self._level else client
                task = asyncio.ensure_future(self._sample(step, sampling, early))
                if self._level:
                    task.add_done_callback(_seen)
            return Underway(step, client, lent, early, task, held.pop_all())

    async def _sample(self, step: int, sampling: SamplingClient, early: Early | None) -> Batch:
        try:
            with self._accounts.phase(step, "rollout"):
                return await self._sampler.sample(step, sampling, self._show, early)
        finally:
            if self._level:
                await sampling.close()

    async def _waited(self, step: int, now: Underway) -> Batch:
        # At level 0 all of the rollout is waited for.
        phase = self._accounts.phase(step, "waiting") if self._level else nullcontext()
        self._awaited = True
        try:
            with phase:
                return await now.task
        finally:
            self._awaited = False

    def _as_teacher(self, step: int) -> AbstractContextManager[None]:
        return self._accounts.phase(step, "teacher", teacher=True)

    def _show(self, done: int, of: int) -> None:
        """A rollout beside an update has no line of its own."""
        if self._awaited:
            self._progress(done, of)


def _seen_by(batch: Batch, client: SamplingClient) -> Batch:
    """A rollout as one of the client that looks at it.

    At level 1 another client of the same weights has sampled, perhaps in another process, and some
    services name each client apart.
    """
    name = client.snapshot_id
    if all(t.snapshot_id == name for group in batch.groups for t in group.trajectories):
        return batch
    renamed = [
        replace(g, trajectories=tuple(replace(t, snapshot_id=name) for t in g.trajectories))
        for g in batch.groups
    ]
    return replace(batch, groups=renamed)


def _seen(task: asyncio.Future[Batch]) -> None:
    """An error of a rollout beside an update is raised where it is awaited, not twice."""
    if not task.cancelled():
        task.exception()
