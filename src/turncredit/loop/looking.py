"""The teacher's stage of an update: every look at what was sampled, and for how long there is one.

Knows no method by name: a method says what it needs (`core.needs`), and a run may override it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from turncredit.config import Run
from turncredit.core.clients import SamplingClient, TrainingClient
from turncredit.core.datum import Datum, Distribution
from turncredit.core.looks import Ask, Preparing
from turncredit.core.types import REFERENCE, Group
from turncredit.credit.schedule import factor, with_mix
from turncredit.credit.tempo import ENDPOINT_VALUE
from turncredit.loop import critic, rescoring, silence, teacher
from turncredit.loop.asking import asker, longest_question
from turncredit.loop.chat import Chat
from turncredit.loop.concurrency import slots_for
from turncredit.loop.parts import Parts
from turncredit.loop.teachers import Lent, Source, Teachers
from turncredit.loop.transfers import transfer_rows
from turncredit.loop.views import Early, Plan, Rolled, Seen, Viewer
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
    """Everything that looks at trajectories again, over a whole run.

    Attributes:
        viewer: looks at single groups.
    """

    def __init__(self, run: Run, parts: Parts, chat: Chat, folder: RunFolder) -> None:
        self._run, self._parts, self._chat = run, parts, chat
        self._needs, self._settings = run.needs, run.teacher
        self._teachers = Teachers(run, parts.backend, folder)
        self._reference: SamplingClient | None = None
        self._state: dict[str, float] = {}  # of a teacher that may retire
        self._teacher_success = 0.0
        self.viewer = Viewer(run, parts, chat)

    async def begin(self, training: TrainingClient, last: Mapping[str, Any] | None) -> None:
        """Once, before the first update; `last` is the checkpoint the run continues from."""
        if last:
            self.viewer.rescores = last["student_logprobs"] == "rescored"
            self._state = dict(last.get("retirement", {}))
        if self._parts.method.NEEDS_TEACHER:
            await self._teachers.begin(training, last)
            if self._needs.snapshot == "trained":
                self._teacher_success = recorded_success(self._settings.teacher_run) or 0.0
        if self._holds_on:
            self._reference = await self._teachers.initial()

    def kept(self, last: Mapping[str, Any] | None) -> list[str]:
        """Saved weights of the checkpoint that `begin` goes on with."""
        taught = self._parts.method.NEEDS_TEACHER
        return [path] if taught and (path := self._teachers.kept(last)) else []

    def read(self) -> list[str]:
        """Saved weights of other runs that it will open."""
        taught = self._parts.method.NEEDS_TEACHER
        given = [self._teachers.given() if taught else None]
        if self._holds_on:
            given.append(self._teachers.first)
        return sorted({path for path in given if path})

    @property
    def _holds_on(self) -> bool:
        """To the weights that training began with."""
        return bool(self._run.optim.kl_coefficient) or REFERENCE in self._needs.streams

    async def lend(self, step: int, client: SamplingClient, source: Source) -> Lent | None:
        """The teacher of update `step`, whose rollout begins; None when it takes no part.

        Args:
            step: the update.
            client: bound to the snapshot that samples; open until the update is made.
            source: the weights of that snapshot.
        """
        if not self._parts.method.NEEDS_TEACHER or self._share(step) == 0:
            return None
        return await self._teachers.of(step, client, source)

    def early(
        self,
        step: int,
        client: SamplingClient,
        lent: Lent | None,
        within: Callable[[int], AbstractContextManager[None]],
    ) -> Early | None:
        """What to tell of each group that is finished, or None where looks must wait for all.

        They wait where a hint source thinks about all groups first, where groups may be dropped or
        get members or notes later, and at level 1, where the update before may yet retire the
        teacher (and leaves the backend enough to do).

        Args:
            step: the update.
            client: bound to the snapshot that samples.
            lent: its teacher.
            within: what surrounds a look for an update.
        """
        if lent is None or self._run.schedule.async_level or not self._settings.overlap:
            return None
        whole = isinstance(self._parts.hint, Preparing) or hasattr(self._parts.method, "keep")
        if whole or self._needs.student_hint != "none" or self._needs.notes:
            return None
        plan = self._plan(client, lent, self._at(step)[1])
        return Early(partial(self.viewer.see, plan=plan), partial(within, step))

    async def look(self, step: int, rolled: Rolled) -> Looked:
        """Rescore the student if need be, let the teacher look, measure the noise floor."""
        groups, client, lent = rolled.groups, rolled.client, rolled.lent
        share, config = self._at(step)
        found = dict(rolled.metrics)
        if self._needs.mix:
            found["opsd/mix_factor"] = share
        if ENDPOINT_VALUE in self._needs.notes:
            concurrency = self._settings.teacher_concurrency
            groups, judged = await critic.judge(
                groups, self._ask(step, client), concurrency=concurrency
            )
            found |= judged
        plan = self._plan(client, lent if share else None, config)
        if rolled.early is not None:
            seen = await rolled.early.of(groups)
        else:
            found |= await self._prepare(step, groups, plan)
            seen = await self.viewer.see_all(groups, plan)
        groups = [one.group for one in seen]
        if plan.lent is not None:
            found |= await self._measure(seen, client)
        if self._reference is not None:
            groups = await rescoring.refer(groups, self._reference, concurrency=plan.slots)
        extra = await self._transfers(groups, config, client)
        given = (
            [one.distributions for one in seen] if plan.lent and self._needs.vocabulary else None
        )
        return Looked(groups, config, found, given, extra)

    async def _prepare(self, step: int, groups: Sequence[Group], plan: Plan) -> Mapping[str, float]:
        """Let the hint source think about the groups that will be looked at."""
        if plan.lent is None or not isinstance(self._parts.hint, Preparing):
            return {}
        heard = [group for group in groups if not self.viewer.is_silent(group, plan.config)]
        return await self._parts.hint.prepare(heard, self._ask(step, plan.client))

    async def _measure(self, seen: Sequence[Seen], client: SamplingClient) -> dict[str, float]:
        """How the teacher's looks went, and what was not looked at."""
        skipped = [one.group for one in seen if one.skipped]
        looked = [one.group for one in seen if not one.skipped]
        found = {
            "opsd/unhinted": float(teacher.unhinted(looked)),
            "teacher/groups_skipped": float(len(skipped)),
            "teacher/trajectories_skipped": float(sum(len(g.trajectories) for g in skipped)),
            "teacher/tokens_saved": float(silence.context_tokens(skipped)),
        }
        if (gap := teacher.mean_gap(looked)) is not None:
            found[TEACHER_GAP] = gap
        if looked and self._settings.noise_samples:
            sample = self._settings.noise_samples
            noise = await rescoring.null_control(looked, client, sample=sample)
            found["opsd/evidence_noise"] = noise.evidence_noise
        return found

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
            "student_logprobs": "rescored" if self.viewer.rescores else "sampled",
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

    def _at(self, step: int) -> tuple[float, Any]:
        """The teacher's share at update `step`, and the method's settings with it."""
        share, config = self._share(step), self._parts.method_config
        return share, with_mix(config, self._needs, share) if self._needs.mix else config

    def _plan(self, client: SamplingClient, lent: Lent | None, config: Any) -> Plan:
        return Plan(client, lent, config, slots_for(self._settings.teacher_concurrency))

    def _ask(self, step: int, client: SamplingClient) -> Ask:
        """Asks the snapshot that sampled."""
        return asker(
            self._chat.tokenizer,
            client,
            max_tokens=self._settings.ask_tokens,
            longest=longest_question(self._parts.backend.capabilities()),
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


def _prefixed(state: Mapping[str, float]) -> dict[str, float]:
    return {f"retire/{name}": float(value) for name, value in state.items()}
