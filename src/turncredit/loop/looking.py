"""The teacher's stage of an update: every look at what was sampled, and for how long there is one.

Knows no method by name: a method says what it needs (`core.needs`), and a run may override it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turncredit.config import Run
from turncredit.core.datum import Datum, Distribution
from turncredit.core.looks import Ask, Preparing
from turncredit.core.protocols import SamplingClient, TrainingClient
from turncredit.core.types import REFERENCE, Group
from turncredit.credit.schedule import factor, with_mix
from turncredit.credit.tempo import ENDPOINT_VALUE
from turncredit.loop import critic, rescoring, teacher
from turncredit.loop.asking import asker
from turncredit.loop.chat import Chat
from turncredit.loop.parts import Parts
from turncredit.loop.teachers import Teachers
from turncredit.loop.transfers import transfer_rows
from turncredit.loop.weights import recorded_success
from turncredit.record.runlog import RunFolder

_RETIRED = "retired"
TEACHER_GAP = "opsd/teacher_gap"


@dataclass(frozen=True)
class Looked:
    """The groups of a step after every look at them.

    Attributes:
        groups: scored, when the method has a teacher.
        config: the method's settings at this step.
        metrics: what was measured on the way.
        distributions: the teacher's, per group and member, where the loss reads them.
        extra: rows beside those of the trajectories, trained on once, reduced on their own.
    """

    groups: list[Group]
    config: Any
    metrics: Mapping[str, float]
    distributions: list[list[Distribution | None]] | None = None
    extra: list[Datum] = field(default_factory=list)


class Looking:
    """Everything that looks at trajectories again, over a whole run."""

    def __init__(self, run: Run, parts: Parts, chat: Chat, folder: RunFolder) -> None:
        self._run, self._parts, self._chat = run, parts, chat
        self._needs, self._settings = run.needs, run.teacher
        self._teachers = Teachers(run, parts.backend, folder)
        self._reference: SamplingClient | None = None
        self._state: dict[str, float] = {}  # of a teacher that may retire
        self._teacher_success = 0.0
        self.rescores = run.teacher.student_logprobs == "rescored"

    async def begin(self, training: TrainingClient, last: Mapping[str, Any] | None) -> None:
        """Once, before the first update; `last` is the checkpoint the run continues from."""
        if last:
            self.rescores = last["student_logprobs"] == "rescored"
            self._state = dict(last.get("retirement", {}))
        if self._parts.method.NEEDS_TEACHER:
            await self._teachers.begin(training, last)
            if self._needs.snapshot == "trained":
                self._teacher_success = recorded_success(self._settings.teacher_run) or 0.0
        if self._run.optim.kl_coefficient or REFERENCE in self._needs.streams:
            self._reference = await self._teachers.initial()

    async def look(
        self, step: int, groups: list[Group], client: SamplingClient, training: TrainingClient
    ) -> Looked:
        """Rescore the student if need be, let the teacher look, measure the noise floor.

        Args:
            step: the update.
            groups: as sampled.
            client: bound to the snapshot that sampled.
            training: for a teacher made of the weights in training.
        """
        concurrency = self._settings.teacher_concurrency
        if self.rescores:
            groups = await rescoring.rescore(groups, client, concurrency=concurrency)
        if self._reference is not None:
            groups = await rescoring.refer(groups, self._reference, concurrency=concurrency)
        share, config = self._share(step), self._parts.method_config
        found: dict[str, float] = {}
        if self._needs.mix:
            config, found["opsd/mix_factor"] = with_mix(config, self._needs, share), share
        if ENDPOINT_VALUE in self._needs.notes:
            groups, judged = await critic.judge(
                groups, self._ask(step, client), concurrency=concurrency
            )
            found |= judged
        if not self._parts.method.NEEDS_TEACHER:
            extra = await self._transfers(groups, config, client)
            return Looked(groups, config, found, extra=extra)
        if share == 0:
            return Looked(teacher.nobody_looked(groups), config, found)
        if isinstance(self._parts.hint, Preparing):
            found |= await self._parts.hint.prepare(groups, self._ask(step, client))
        lent = await self._teachers.of(step, client, training)
        try:
            groups, given = await self._teach(groups, lent.client, own=lent.own)
        finally:
            await lent.give_back()
        found["opsd/unhinted"] = teacher.unhinted(groups)
        if (gap := teacher.mean_gap(groups)) is not None:
            found[TEACHER_GAP] = gap
        if self._settings.noise_samples:
            sample = self._settings.noise_samples
            noise = await rescoring.null_control(groups, client, sample=sample)
            found["opsd/evidence_noise"] = noise.evidence_noise
        return Looked(groups, config, found, given)

    def observe(self, looked: Looked, success: float) -> dict[str, float]:
        """Let the method decide whether the teacher goes for good; what it knows, as metrics.

        Args:
            looked: the groups of this update.
            success: the student's success rate in it.
        """
        retire = getattr(self._parts.method, "retire", None)
        gap = looked.metrics.get(TEACHER_GAP)
        # An update without a teacher says nothing about how far it is.
        if retire is None or self._state.get(_RETIRED) or gap is None:
            return _prefixed(self._state)
        seen = {
            "discrepancy": gap,
            "success": success,
            "teacher_success": self._teacher_success,
        }
        self._state = dict(retire(self._state, seen, looked.config))
        return _prefixed(self._state)

    def record(self) -> dict[str, Any]:
        """What a checkpoint must say for `begin`."""
        return {
            "student_logprobs": "rescored" if self.rescores else "sampled",
            **({"retirement": self._state} if self._state else {}),
            **self._teachers.record(),
        }

    async def close(self) -> None:
        """Free the teachers."""
        await self._teachers.close()
        if self._reference is not None:
            await self._reference.close()

    def _share(self, step: int) -> float:
        if self._state.get(_RETIRED):
            return 0.0
        settings = self._settings
        return factor(
            step,
            decay_steps=self._needs.decay_steps,
            start=settings.teacher_start,
            stop=settings.teacher_stop,
        )

    def _ask(self, step: int, client: SamplingClient) -> Ask:
        """Asks the snapshot that sampled."""
        return asker(
            self._chat.tokenizer,
            client,
            max_tokens=self._settings.ask_tokens,
            longest=self._parts.backend.capabilities().max_seq_len,
            seed=f"{self._run.schedule.seed}/{step}",
        )

    async def _transfers(
        self, groups: Sequence[Group], config: Any, client: SamplingClient
    ) -> list[Datum]:
        """Rows of what turns can teach each other, for methods that find such pairs."""
        method, hinted = self._parts.method, self._parts.hinted
        if hinted is None or not hasattr(method, "transfers"):
            return []
        if self._needs.mix and getattr(config, self._needs.mix) == 0:
            return []  # the mix stands for all that is not GRPO
        return await transfer_rows(
            groups,
            [method.transfers(group, config) for group in groups],
            self._chat,
            hinted,
            client,
            k=self._needs.vocabulary,
            coefficient=config.coefficient,
            gate_beta=config.gate_beta,
            concurrency=self._settings.teacher_concurrency,
        )

    async def _teach(
        self, groups: list[Group], client: SamplingClient, *, own: bool
    ) -> tuple[list[Group], list[list[Distribution | None]] | None]:
        budget, concurrency = self._run.rollout, self._settings.teacher_concurrency
        longest = budget.max_trajectory_tokens + budget.teacher_reserve_tokens
        readings = teacher.read(
            groups,
            self._parts.hint,
            self._chat,
            max_tokens=longest,
            front="opening" if self._needs.snapshot == "trained" else "system",
        )
        given = None
        if self._needs.vocabulary:
            given = await teacher.distributions(
                groups,
                readings,
                client,
                k=self._needs.vocabulary,
                temperature=self._parts.loss.term_settings.get("jsd_temperature", 1.0),
                concurrency=concurrency,
            )
        scored = await teacher.score(
            groups, readings, client, concurrency=concurrency, same_snapshot=own
        )
        return scored, given


def _prefixed(state: Mapping[str, float]) -> dict[str, float]:
    return {f"retire/{name}": float(value) for name, value in state.items()}
