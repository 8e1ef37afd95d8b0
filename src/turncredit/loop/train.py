"""The wheel: snapshot → rollout → teacher → credit → loss → update → record.

No method, environment or backend is named here. Whatever decides a number is a function of
(settings, seed, step), so a run killed anywhere continues exactly from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from turncredit.backends import selfcheck
from turncredit.config import Run
from turncredit.core.calls import AdamParams
from turncredit.core.clients import RemoteBackend, TrainingClient
from turncredit.core.datum import Datum
from turncredit.core.protocols import Tracker
from turncredit.core.types import Credit
from turncredit.loop import ending, metrics
from turncredit.loop.accounting import Accounts
from turncredit.loop.ahead import Rollouts
from turncredit.loop.chat import Chat
from turncredit.loop.data import (
    Rows,
    batches,
    beside_term,
    build_rows,
    folded,
    reduced,
    unpenalised,
)
from turncredit.loop.listener import Listener
from turncredit.loop.looking import Looked, Looking
from turncredit.loop.origins import check_origins, stepping_back
from turncredit.loop.parts import Parts, check_backend
from turncredit.loop.probing import probed
from turncredit.loop.remarks import refuse_hopeless, remarks
from turncredit.loop.sampler import Sampler, limits_of
from turncredit.loop.standing import Standing
from turncredit.loop.teachers import started_from
from turncredit.loop.updating import updated
from turncredit.loop.watching import training as trained
from turncredit.record import ledger as ledgers
from turncredit.record.prices import read_prices
from turncredit.record.runlog import RunFolder


class Trainer:
    """One run over one folder; `await run()` makes the updates that are still missing."""

    def __init__(
        self, run: Run, parts: Parts, folder: RunFolder, *, tracker: Tracker, listener: Listener
    ) -> None:
        prices, model = read_prices(run.log.prices), getattr(run.backend.config, "base_model", "")
        self._accounts = Accounts(parts.backend, prices, model=model, limit=run.log.max_cost)
        parts = replace(parts, backend=self._accounts.backend)
        self._run, self._parts, self._folder = run, parts, folder
        self._tracker, self._listener = tracker, listener
        self._at = Standing()
        self._mismatch: dict[str, float] = {}  # measured at the start, logged with update 1
        self._chat = Chat(
            parts.backend.get_tokenizer(),
            parts.environment,
            max_turns=run.rollout.max_turns,
            include_admissible_actions=run.rollout.include_admissible_actions,
        )
        self._limits = limits_of(run)
        self._looking = Looking(run, parts, self._chat, folder)
        self._rollouts = Rollouts(
            run,
            self._accounts,
            Sampler(run, parts, self._chat, self._limits),
            self._looking,
            folder,
            listener.progress,
        )
        self._adam = AdamParams(
            learning_rate=run.optim.learning_rate,
            beta1=run.optim.adam_beta1,
            beta2=run.optim.adam_beta2,
            weight_decay=run.optim.weight_decay,
            grad_clip_norm=run.optim.grad_clip_norm,
        )

    async def run(self) -> None:
        """Train from the last committed checkpoint (or the start) to `max_steps`.

        Ends before that, saved, where the next call could pass the budget. A fault and Ctrl-C
        save the last whole update, too, when the weights are known to be its.

        Raises:
            BackendError: the backend failed, or its log-probs contradict each other.
            DataError: the checkpoint to resume from cannot be read.
        """
        try:
            done, training = await self._begin()
            schedule = self._run.schedule
            if done >= schedule.max_steps:
                self._listener.note(f"all {done} updates are made; a larger --max-steps makes more")

            async def save(step: int) -> None:
                await self._rollouts.close()
                await self._save(step, training, planned=False)

            async with ending.rescued(self._at, save, self._listener, self._folder.path):
                await self._updates(done, training)
        finally:
            await self._rollouts.close()
            await self._looking.close()
            ending.say_costs(self._accounts, self._listener)

    async def _updates(self, done: int, training: TrainingClient) -> None:
        schedule = self._run.schedule
        for step in range(done + 1, schedule.max_steps + 1):
            self._accounts.foresee(step)
            saves = step % schedule.save_every == 0 or step == schedule.max_steps
            await self._step(step, training, saves=saves)
            if saves:
                await self._save(step, training)

    # ── starting ─────────────────────────────────────────────────────────────────────────────

    async def _begin(self) -> tuple[int, TrainingClient]:
        found = self._folder.checkpoints()
        last = found[-1] if found else None
        done = int(last["step"]) if last else 0
        self._folder.truncate_after(done)
        self._at = Standing(made=done, saved=done)
        self._accounts.resume(self._folder.ledger())
        if remark := self._accounts.keep_spending(self._folder):
            self._listener.note(remark)
        if lost := set(range(1, done + 1)) - {row["step"] for row in self._folder.metrics()}:
            self._listener.note(f"metrics.jsonl lacks updates {sorted(lost)}; they stay lost")
        await self._check_origins(last)
        await self._probe(done)
        with self._phase(done + 1, "start"):
            with stepping_back(self._folder, last):
                training = await self._parts.backend.create_training_client(
                    seed=self._run.schedule.seed,
                    save_dir=str(self._folder.checkpoint_dir),
                    from_state=self._folder.resolve(last["state"]) if last else None,
                    **({} if last else started_from(self._run)),
                )
            await self._looking.begin(training, last)
            await self._rollouts.begin(training, last)
            if last is None:
                await self._check_logprobs(training)
        return done, training

    async def _check_origins(self, last: Mapping[str, Any] | None) -> None:
        await check_origins(
            self._parts.backend,
            self._folder,
            last,
            first=started_from(self._run).get("from_weights"),
            kept=[*self._looking.kept(last), *self._rollouts.kept(last)],
            read=self._looking.read(),
        )

    async def _probe(self, done: int) -> None:
        """Find out what a service does, on a run of its own that is thrown away."""
        backend = self._parts.backend
        if not isinstance(backend, RemoteBackend) or done >= self._run.schedule.max_steps:
            return
        backend.listen(self._listener.note)
        with self._phase(done + 1, "probe"):
            await backend.reach()
            teacher = self._parts.method.NEEDS_TEACHER
            check_backend(self._run, backend.capabilities(), teacher=teacher)
            found = await probed(self._run, self._parts.loss.name, backend, self._folder, done)
        for text in found:
            self._listener.note(text)

    async def _check_logprobs(self, training: TrainingClient) -> None:
        """Do sampler, scorer and trainer agree? Decides where the student's log-probs come from."""
        client = await training.save_weights_and_get_sampling_client()
        try:
            report = await selfcheck.measure(training, client, self._parts.backend.get_tokenizer())
        finally:
            await client.close()
        self._mismatch = report.metrics()
        student = self._run.teacher.student_logprobs
        for warning in report.judge(student):
            self._listener.note(warning)
        if student == "auto":
            self._looking.viewer.rescores = report.prefers_rescoring

    # ── one update ───────────────────────────────────────────────────────────────────────────

    async def _step(self, step: int, training: TrainingClient, *, saves: bool) -> None:
        self._listener.phase(step, "rollout")
        rolled = await self._rollouts.of(step, training, saves=saves)
        refuse_hopeless(rolled.groups, self._limits)
        with self._phase(step, "teacher", teacher=True):
            looked = await self._looking.look(step, rolled)
        await self._rollouts.done()
        with self._phase(step, "credit"):
            method, loss = self._parts.method, self._parts.loss
            credits = [method.credit(group, looked.config) for group in looked.groups]
            weights = credits
            if loss.folded:
                weights = folded(looked.groups, credits, loss.folded, loss.term_settings)
            rows = build_rows(looked.groups, weights, looked.distributions)
        with self._phase(step, "update"):
            update = await self._update(step, training, rows, looked.extra)
        self._record(step, looked, credits, rows, update)

    async def _update(
        self, step: int, training: TrainingClient, rows: Rows, extra: Sequence[Datum]
    ) -> dict[str, float]:
        """The optimizer steps of an update; `extra` rows take part in the first."""
        optim, loss = self._run.optim, self._parts.loss
        aggregation, longest = self._run.needs.aggregation, self._run.rollout.max_trajectory_tokens
        given = beside_term(rows.data) if loss.has_term else rows.data
        parts = list(
            batches(
                given,
                epochs=optim.epochs,
                minibatches=optim.minibatches,
                seed=f"{self._run.schedule.seed}/{step}",
            )
        )
        if not parts:
            return {"skipped": 1.0}
        seen: list[dict[str, float]] = []
        # All of an update is paid beforehand: it is made whole or not at all.
        most = trained([row for data in (*parts, extra) for row in data])
        async with self._accounts.budget.paid(most, f"update {step}", whole=True):
            for data in parts:
                sent = [
                    *reduced(data, aggregation, longest=longest),
                    *unpenalised(reduced(() if seen else extra, aggregation, longest=longest)),
                ]
                self._at.begin_step()
                output, stepped = await updated(
                    training,
                    sent,
                    loss_fn=loss.name,
                    loss_fn_config=loss.settings,
                    params=self._adam,
                )
                seen.append({**output.metrics, **stepped})
        means = {name: sum(row.get(name, 0.0) for row in seen) / len(seen) for name in seen[0]}
        return {"skipped": 0.0, "optimizer_steps": float(len(seen)), **means}

    # ── recording ────────────────────────────────────────────────────────────────────────────

    def _record(
        self,
        step: int,
        looked: Looked,
        credits: Sequence[Credit],
        rows: Rows,
        update: Mapping[str, float],
    ) -> None:
        with self._phase(step, "record"):
            self._folder.write_trajectories(step, looked.groups, credits)
        cost = self._accounts.close(step, looked.groups)
        sampled = metrics.rollout_metrics(looked.groups)
        row = {
            **sampled,
            **metrics.credit_metrics(credits),
            **looked.metrics,
            **self._looking.observe(looked, sampled.get("reward/success_rate", 0.0)),
            **(self._mismatch if step == 1 else {}),
            **metrics.prefixed("train", {**rows.counts, **update}),
            **ledgers.metrics(cost),
        }
        row = {name: float(value) for name, value in row.items()}
        self._folder.append_ledger(step, cost)
        self._folder.append_metrics(step, row)
        self._at.end_update(step)
        self._tracker.log(row, step)
        for remark in remarks(row):
            self._listener.note(remark)
        self._listener.step(step, row)

    async def _save(self, step: int, training: TrainingClient, *, planned: bool = True) -> None:
        with self._phase(step, "save"):
            name = self._folder.checkpoint_path(step).name
            state = await training.save_state(name)
            sampler = await training.save_weights_for_sampler(name)
            ahead = await self._rollouts.record(step, fallback="" if planned else sampler)
        record = {
            "state": self._folder.relative(state),
            "sampler": self._folder.relative(sampler),
            **self._looking.record(),
            **ahead,
        }
        self._folder.append_checkpoint(step, record)
        self._at.saved = step
        self._listener.saved(step, {**record, "state": state, "sampler": sampler})

    @contextmanager
    def _phase(self, step: int, name: str, *, teacher: bool = False) -> Iterator[None]:
        self._listener.phase(step, name)
        with self._accounts.phase(step, name, teacher=teacher):
            yield


def describe(run: Run) -> dict[str, Any]:
    """What `config.json` holds: the resolved settings and their digest."""
    return {**run.to_dict(), "digest": run.digest()}
