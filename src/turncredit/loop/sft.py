"""The supervised stage: cross-entropy on the action tokens of demonstrations.

Demonstrations are gathered once and written to the run folder before the first update (as the
trajectories of step 0), so a run killed anywhere goes on exactly, whatever became of its sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from turncredit.core.calls import AdamParams
from turncredit.core.clients import RemoteBackend, TrainingClient
from turncredit.core.datum import Datum
from turncredit.core.errors import ConfigError
from turncredit.core.protocols import Tracker
from turncredit.core.types import Group, Trajectory, Usage
from turncredit.loop import ending, metrics
from turncredit.loop.accounting import Accounts
from turncredit.loop.demonstrations import STORED, stored
from turncredit.loop.listener import Listener
from turncredit.loop.origins import check_origins, stepping_back
from turncredit.loop.probing import tried
from turncredit.loop.sft_parts import LOSS, Parts
from turncredit.loop.sft_rows import Order, hold_out, mean_loss, scaled, to_row
from turncredit.loop.sft_settings import Settings
from turncredit.loop.standing import Standing
from turncredit.loop.watching import training as trained
from turncredit.loop.weights import sampler_weights
from turncredit.record import ledger as ledgers
from turncredit.record.prices import read_prices
from turncredit.record.runlog import RunFolder

_PROBED = "importance_sampling"


class Supervised:
    """One supervised run over one folder; `await run()` makes the updates still missing.

    Args:
        settings: of the run.
        parts: its opened components.
        folder: holds its demonstrations (see `keep`), or none yet.
        tracker: mirrors the metrics.
        listener: hears of progress.
    """

    def __init__(
        self,
        settings: Settings,
        parts: Parts,
        folder: RunFolder,
        *,
        tracker: Tracker,
        listener: Listener,
    ) -> None:
        model = getattr(settings.backend.config, "base_model", "")
        prices, limit = read_prices(settings.log.prices), settings.log.max_cost
        self._accounts = Accounts(parts.backend, prices, model=model, limit=limit)
        self._parts = replace(parts, backend=self._accounts.backend)
        self._settings, self._folder = settings, folder
        self._tracker, self._listener = tracker, listener
        learn, aside = hold_out(
            demonstrations(folder), settings.sft.held_out, settings.schedule.seed
        )
        self._rows, self._aside = [to_row(t) for t in learn], [to_row(t) for t in aside]
        self._order = Order(len(learn), seed=settings.schedule.seed, batch=settings.sft.batch)
        self.steps = settings.steps(len(learn))
        self._before: dict[str, float] = {}  # measured at the start, logged with update 1
        self._at = Standing()

    def plan(self) -> str:
        """What lies ahead, in words."""
        batch = min(self._settings.sft.batch, len(self._rows))
        aside = f", {len(self._aside)} kept aside" if self._aside else ""
        return f"{self.steps} updates of {batch} of {len(self._rows)} demonstrations{aside}"

    async def run(self) -> None:
        """Learn from the last committed checkpoint (or the start) to the last update.

        Ends before that, saved, where the next call could pass the budget.

        Raises:
            BackendError: the backend failed.
            ConfigError: the service does not have the loss.
            DataError: the checkpoint to resume from cannot be read.
        """
        try:
            done, training = await self._begin()
            if done >= self.steps:
                self._listener.note(f"all {done} updates are made; a larger --max-steps makes more")

            async def save(step: int) -> None:
                await self._save(step, training)

            async with ending.rescued(self._at, save, self._listener, self._folder.path):
                await self._updates(done, training)
        finally:
            ending.say_costs(self._accounts, self._listener)

    async def _updates(self, done: int, training: TrainingClient) -> None:
        for step in range(done + 1, self.steps + 1):
            self._accounts.foresee(step)
            is_saved = step % self._settings.schedule.save_every == 0 or step == self.steps
            # Paid together beforehand: an update is made and measured whole, or not at all.
            rows = scaled([self._rows[i] for i in self._order.take(step - 1)])
            most = trained(rows) + (self._measuring() if is_saved else Usage())
            async with self._accounts.budget.paid(most, f"update {step}", whole=True):
                await self._step(step, training, rows, measured=is_saved)
            if is_saved:
                await self._save(step, training)

    def _measuring(self) -> Usage:
        """What the held-out loss costs at most: services sample a token with each scoring."""
        read = sum(len(row.tokens) for row in self._aside)
        return Usage(prefill=read, sampled=len(self._aside), requests=len(self._aside))

    async def _begin(self) -> tuple[int, TrainingClient]:
        found = self._folder.checkpoints()
        last = found[-1] if found else None
        done = int(last["step"]) if last else 0
        self._folder.truncate_after(done)
        self._at = Standing(made=done, saved=done)
        self._accounts.resume(self._folder.ledger())
        if remark := self._accounts.keep_spending(self._folder):
            self._listener.note(remark)
        first = None if last else self._first_weights()
        await check_origins(self._parts.backend, self._folder, last, first=first)
        await self._probe(done)
        with self._phase(done + 1, "start"), stepping_back(self._folder, last):
            training = await self._parts.backend.create_training_client(
                seed=self._settings.schedule.seed,
                save_dir=str(self._folder.checkpoint_dir),
                from_state=self._folder.resolve(last["state"]) if last else None,
                from_weights=first,
            )
        if last is None and self._aside:
            self._before = {"sft/held_out_loss_before": await self._held_out(1, training)}
        return done, training

    async def _probe(self, done: int) -> None:
        """Find out what a service does, as for any training: rows are scaled for it."""
        backend = self._parts.backend
        if not isinstance(backend, RemoteBackend) or done >= self.steps:
            return
        backend.listen(self._listener.note)
        with self._phase(done + 1, "probe"):
            await backend.reach()
            self._check_lengths(backend.capabilities().max_seq_len)
            # By a loss that tells all reductions apart; cross-entropy follows from what is found.
            _, said = await tried(self._settings, _PROBED, backend, self._folder, done)
        if LOSS not in backend.capabilities().losses:
            raise ConfigError(
                f"this service divides the loss of a row by its weights: {LOSS} cannot be "
                "computed there. Use another backend for the supervised stage"
            )
        for text in said:
            self._listener.note(text)

    def _check_lengths(self, limit: int | None) -> None:
        """Refuse demonstrations that the service would refuse later.

        Those kept aside are scored: the service samples a token more.
        """
        learnt = max(len(row.tokens) for row in self._rows)
        scored = max((len(row.tokens) + 1 for row in self._aside), default=0)
        if limit is not None and max(learnt, scored) > limit:
            fits = limit - 1 if self._aside else limit
            raise ConfigError(
                f"a demonstration needs {max(learnt, scored)} tokens, but the model reads {limit} "
                f"at most: --max-trajectory-tokens {fits} leaves longer ones out, in a new run"
            )

    def _first_weights(self) -> str | None:
        place = self._settings.schedule.init_from
        return sampler_weights(place) if place else None

    async def _step(
        self, step: int, training: TrainingClient, rows: Sequence[Datum], *, measured: bool
    ) -> None:
        with self._phase(step, "update"):
            self._at.begin_step()
            output = await training.forward_backward(rows, loss_fn=LOSS)
            stepped = await training.optim_step(self._adam())
        pairs = zip(rows, output.logprobs, strict=True)
        loss = -math.fsum(float((row.advantages * new)[row.mask].sum()) for row, new in pairs)
        norm, remote = stepped.get("grad_norm", 0.0), isinstance(self._parts.backend, RemoteBackend)
        # A service may leave its norm unsaid.
        if not math.isfinite(loss) or not (math.isfinite(norm) or remote):
            self._listener.note(f"update {step} changed nothing: loss {loss:g} or its gradient")
        row = {"sft/loss": loss, "sft/epoch": self._order.epochs(step)}
        row |= self._before if step == 1 else {}
        if measured and self._aside:
            row["sft/held_out_loss"] = await self._held_out(step, training)
        self._record(step, row | self._counts(rows) | metrics.prefixed("train", stepped))

    async def _held_out(self, step: int, training: TrainingClient) -> float:
        with self._phase(step, "held_out"):
            client = await training.save_weights_and_get_sampling_client()
            try:
                return await mean_loss(self._aside, client)
            finally:
                await client.close()

    def _counts(self, rows: Sequence[Datum]) -> dict[str, float]:
        return {
            "sft/demonstrations": len(rows),
            "sft/action_tokens": sum(int(row.mask.sum()) for row in rows),
            "sft/context_tokens": sum(int((~row.mask).sum()) for row in rows),
        }

    def _adam(self) -> AdamParams:
        optim = self._settings.optim
        return AdamParams(
            learning_rate=optim.learning_rate,
            beta1=optim.adam_beta1,
            beta2=optim.adam_beta2,
            weight_decay=optim.weight_decay,
            grad_clip_norm=optim.grad_clip_norm,
        )

    def _record(self, step: int, figures: Mapping[str, float]) -> None:
        cost = self._accounts.close(step)
        row = {name: float(v) for name, v in {**figures, **ledgers.metrics(cost)}.items()}
        self._folder.append_ledger(step, cost)
        self._folder.append_metrics(step, row)
        self._at.end_update(step)
        self._tracker.log(row, step)
        self._listener.step(step, row)

    async def _save(self, step: int, training: TrainingClient) -> None:
        with self._phase(step, "save"):
            name = self._folder.checkpoint_path(step).name
            state = await training.save_state(name)
            sampler = await training.save_weights_for_sampler(name)
        record = {"state": self._folder.relative(state), "sampler": self._folder.relative(sampler)}
        self._folder.append_checkpoint(step, record)
        self._at.saved = step
        self._listener.saved(step, {**record, "state": state, "sampler": sampler})

    @contextmanager
    def _phase(self, step: int, name: str) -> Iterator[None]:
        self._listener.phase(step, name)
        with self._accounts.phase(step, name):
            yield


def keep(folder: RunFolder, found: Sequence[Trajectory]) -> None:
    """Write the demonstrations of a run, all at once."""
    # A group each: recorded ones of one task may come from several snapshots.
    folder.write_trajectories(STORED, [Group(t.task, (t,)) for t in found])


def has_demonstrations(folder: RunFolder) -> bool:
    """Whether `keep` was done."""
    return STORED in folder.trajectory_steps()


def demonstrations(folder: RunFolder) -> list[Trajectory]:
    """What `keep` wrote.

    Raises:
        DataError: it is not there, or damaged.
    """
    return [t for group in stored(folder, STORED) for t in group.trajectories]


def describe(settings: Settings) -> dict[str, Any]:
    """What `config.json` holds: the resolved settings and their digest."""
    return {**settings.to_dict(), "digest": settings.digest()}
