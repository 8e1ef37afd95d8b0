"""The wheel: snapshot → rollout → teacher → credit → loss → update → record.

No method, environment or backend is named here. Whatever decides a number is a function of
(settings, seed, step), so a run killed anywhere continues exactly from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from turncredit.backends import selfcheck
from turncredit.config import Run
from turncredit.core.errors import DataError
from turncredit.core.protocols import AdamParams, SamplingClient, Tracker, TrainingClient
from turncredit.core.types import Credit, Group
from turncredit.loop import metrics, teacher
from turncredit.loop.chat import Chat
from turncredit.loop.data import Rows, build_rows
from turncredit.loop.order import TaskOrder
from turncredit.loop.parts import LOSS, Parts
from turncredit.loop.remarks import refuse_hopeless, remarks
from turncredit.loop.rollout import Limits, rollout
from turncredit.record import ledger as ledgers
from turncredit.record.ledger import Ledger
from turncredit.record.runlog import RunFolder


class Listener:
    """What a front end may want to hear of. This one stays silent."""

    def phase(self, step: int, name: str) -> None:
        """A phase of update `step` begins."""

    def progress(self, done: int, of: int) -> None:
        """So many trajectories of the rollout are finished."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Update `step` is on disk."""

    def saved(self, step: int, record: Mapping[str, Any]) -> None:
        """A checkpoint is on disk."""

    def note(self, text: str) -> None:
        """Something a person should read."""


@dataclass(frozen=True)
class Looked:
    """The groups of a step after every look at them."""

    groups: list[Group]
    metrics: Mapping[str, float]


class Trainer:
    """One run over one folder; `await run()` makes the updates that are still missing."""

    def __init__(
        self, run: Run, parts: Parts, folder: RunFolder, *, tracker: Tracker, listener: Listener
    ) -> None:
        self._run, self._parts, self._folder = run, parts, folder
        self._tracker, self._listener = tracker, listener
        self._ledger = Ledger()
        self._rescored = run.teacher.student_logprobs == "rescored"
        self._mismatch: dict[str, float] = {}  # measured at the start, logged with update 1
        self._chat = Chat(
            parts.backend.get_tokenizer(),
            parts.environment,
            max_turns=run.rollout.max_turns,
            include_admissible_actions=run.rollout.include_admissible_actions,
        )
        self._order = TaskOrder(
            parts.environment.tasks(run.schedule.train_split),
            seed=run.schedule.seed,
            per_step=run.schedule.tasks_per_update,
        )
        self._limits = Limits(
            max_turns=run.rollout.max_turns,
            max_trajectory_tokens=run.rollout.max_trajectory_tokens,
            max_action_tokens=run.rollout.max_action_tokens,
            temperature=run.rollout.temperature,
            top_p=run.rollout.top_p,
            step_timeout=run.rollout.step_timeout,
        )

    async def run(self) -> None:
        """Train from the last committed checkpoint (or the start) to `max_steps`.

        Raises:
            BackendError: the backend failed, or its log-probs contradict each other.
            DataError: the checkpoint to resume from cannot be read.
        """
        done, training = await self._begin()
        schedule = self._run.schedule
        if done >= schedule.max_steps:
            self._listener.note(f"all {done} updates are made; a larger --max-steps makes more")
        for step in range(done + 1, schedule.max_steps + 1):
            await self._step(step, training)
            if step % schedule.save_every == 0 or step == schedule.max_steps:
                await self._save(step, training)

    # ── starting ─────────────────────────────────────────────────────────────────────────────

    async def _begin(self) -> tuple[int, TrainingClient]:
        found = self._folder.checkpoints()
        last = found[-1] if found else None
        done = int(last["step"]) if last else 0
        self._folder.truncate_after(done)
        self._ledger = Ledger.resume(self._folder.ledger())
        if lost := set(range(1, done + 1)) - {row["step"] for row in self._folder.metrics()}:
            self._listener.note(f"metrics.jsonl lacks updates {sorted(lost)}; they stay lost")
        try:
            training = await self._parts.backend.create_training_client(
                seed=self._run.schedule.seed,
                save_dir=str(self._folder.checkpoint_dir),
                from_state=self._folder.resolve(last["state"]) if last else None,
            )
        except DataError as error:
            raise DataError(f"{error}. {self._folder.how_to_step_back()}") from error
        if last is None:
            await self._check_logprobs(training)
        else:
            self._rescored = last["student_logprobs"] == "rescored"
        return done, training

    async def _check_logprobs(self, training: TrainingClient) -> None:
        """Do sampler, scorer and trainer agree? Decides where the student's log-probs come from."""
        client = await training.save_weights_and_get_sampling_client()
        try:
            report = await selfcheck.measure(training, client, self._parts.backend.get_tokenizer())
        finally:
            await client.close()
        self._mismatch = report.metrics()
        for warning in report.judge():
            self._listener.note(warning)
        if self._run.teacher.student_logprobs == "auto":
            self._rescored = report.prefers_rescoring

    # ── one update ───────────────────────────────────────────────────────────────────────────

    async def _step(self, step: int, training: TrainingClient) -> None:
        client = await training.save_weights_and_get_sampling_client()
        try:
            with self._phase(step, "rollout"):
                groups = await self._rollout(step, client)
            refuse_hopeless(groups, self._limits)
            looked = await self._look(step, groups, client)
        finally:
            await client.close()
        with self._phase(step, "credit"):
            method, config = self._parts.method, self._parts.method_config
            credits = [method.credit(group, config) for group in looked.groups]
            rows = build_rows(looked.groups, credits)
        with self._phase(step, "update"):
            update = await self._update(training, rows)
        self._record(step, looked, credits, rows, update)

    async def _rollout(self, step: int, client: SamplingClient) -> list[Group]:
        schedule = self._run.schedule
        finished, total = 0, schedule.tasks_per_update * schedule.group_size

        def count(_: object) -> None:
            nonlocal finished
            finished += 1
            self._listener.progress(finished, total)

        return await rollout(
            self._order.take(step - 1),
            self._parts.environment,
            self._chat,
            client,
            self._limits,
            group_size=schedule.group_size,
            run_seed=schedule.seed,
            step=step,
            on_done=count,
        )

    async def _look(self, step: int, groups: list[Group], client: SamplingClient) -> Looked:
        """Rescore the student if need be, let the teacher look, and measure the noise floor."""
        settings, budget = self._run.teacher, self._run.rollout
        found: dict[str, float] = {}
        with self._phase(step, "teacher", teacher=True):
            if self._rescored:
                groups = await teacher.rescore(
                    groups, client, concurrency=settings.teacher_concurrency
                )
            if self._parts.method.NEEDS_TEACHER:
                groups = await teacher.score(
                    groups,
                    self._parts.hint,
                    self._chat,
                    client,
                    concurrency=settings.teacher_concurrency,
                    max_tokens=budget.max_trajectory_tokens + budget.teacher_reserve_tokens,
                )
                found["opsd/unhinted"] = teacher.unhinted(groups)
                if settings.noise_samples:
                    noise = await teacher.null_control(
                        groups, client, sample=settings.noise_samples
                    )
                    found["opsd/evidence_noise"] = noise.evidence_noise
        return Looked(groups, found)

    async def _update(self, training: TrainingClient, rows: Rows) -> dict[str, float]:
        if not rows.data:
            return {"skipped": 1.0}
        optim = self._run.optim
        output = await training.forward_backward(
            rows.data,
            loss_fn=LOSS,
            loss_fn_config={
                "clip_low_threshold": self._run.needs.clip[0],
                "clip_high_threshold": self._run.needs.clip[1],
            },
        )
        stepped = await training.optim_step(
            AdamParams(
                learning_rate=optim.learning_rate,
                beta1=optim.adam_beta1,
                beta2=optim.adam_beta2,
                weight_decay=optim.weight_decay,
                grad_clip_norm=optim.grad_clip_norm,
            )
        )
        return {"skipped": 0.0, **output.metrics, **stepped}

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
        cost = self._ledger.end_step()
        row = {
            **metrics.rollout_metrics(looked.groups),
            **metrics.credit_metrics(credits),
            **looked.metrics,
            **(self._mismatch if step == 1 else {}),
            **metrics.prefixed("train", {**rows.counts, **update}),
            **ledgers.metrics(cost),
        }
        row = {name: float(value) for name, value in row.items()}
        self._folder.append_ledger(step, cost)
        self._folder.append_metrics(step, row)
        self._tracker.log(row, step)
        for remark in remarks(row):
            self._listener.note(remark)
        self._listener.step(step, row)

    async def _save(self, step: int, training: TrainingClient) -> None:
        with self._phase(step, "save"):
            name = self._folder.checkpoint_path(step).name
            state = await training.save_state(name)
            sampler = await training.save_weights_for_sampler(name)
        record = {
            "state": self._folder.relative(state),
            "sampler": self._folder.relative(sampler),
            "student_logprobs": "rescored" if self._rescored else "sampled",
        }
        self._folder.append_checkpoint(step, record)
        self._listener.saved(step, {**record, "state": state, "sampler": sampler})

    @contextmanager
    def _phase(self, step: int, name: str, *, teacher: bool = False) -> Iterator[None]:
        self._listener.phase(step, name)
        before = self._parts.backend.usage()
        with self._ledger.phase(name):
            yield
        self._ledger.add(self._parts.backend.usage().since(before), teacher=teacher)


def describe(run: Run) -> dict[str, Any]:
    """What `config.json` holds: the resolved settings and their digest."""
    return {**run.to_dict(), "digest": run.digest()}
