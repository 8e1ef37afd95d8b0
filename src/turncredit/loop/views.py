"""Looks at one group: its own tokens scored again where that is needed, then the teacher's view.

A group is looked at by itself, so it does not matter whether others are finished: the scores of the
first groups may come while the last are still played.
"""

from __future__ import annotations

import asyncio
from asyncio import Semaphore
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from turncredit.config import Run
from turncredit.core.clients import SamplingClient
from turncredit.core.datum import Distribution
from turncredit.core.turns import of_group
from turncredit.core.types import Group
from turncredit.loop import reading, rescoring, silence, teacher
from turncredit.loop.chat import Chat
from turncredit.loop.concurrency import bounded
from turncredit.loop.parts import Parts, longest_reading
from turncredit.loop.teachers import Lent


@dataclass(frozen=True, slots=True)
class Seen:
    """One group after every look at it.

    Attributes:
        group: scored, when the method has a teacher.
        distributions: the teacher's, per member, where the loss reads them.
        skipped: nobody looked, because nothing could come of it.
    """

    group: Group
    distributions: list[Distribution | None]
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Who looks at the groups of one update.

    Attributes:
        client: bound to the snapshot that sampled.
        lent: the teacher; None in an update it takes no part in.
        config: the method's settings at this update.
        slots: of requests in flight, for all groups together.
    """

    client: SamplingClient
    lent: Lent | None
    config: Any
    slots: Semaphore


class Viewer:
    """Looks at groups as a run wants it.

    Attributes:
        rescores: the student's log-probs come from a full pass, not from the sampler.
    """

    def __init__(self, run: Run, parts: Parts, chat: Chat) -> None:
        self._run, self._parts, self._chat, self._needs = run, parts, chat, run.needs
        self._skips = run.teacher.skip_silent
        self.rescores = run.teacher.student_logprobs == "rescored"

    def is_silent(self, group: Group, config: Any) -> bool:
        """Whether looking at `group` is left out: it has no weight, whatever a look finds."""
        method = self._parts.method
        return self._skips and silence.is_silent(group, method, self._needs, config)

    async def see(self, group: Group, plan: Plan) -> Seen:
        """Every look at one group.

        Raises:
            AlignmentError: scores of another snapshot, or that do not match the tokens.
            ConfigError: a hint that cannot be read.
        """
        unseen: list[Distribution | None] = [None] * len(group.trajectories)
        if self.is_silent(group, plan.config):
            return Seen(self._unheard(group), unseen, skipped=True)
        with of_group(group.task.id):
            if self.rescores:
                (group,) = await rescoring.rescore([group], plan.client, concurrency=plan.slots)
            if plan.lent is None:
                return Seen(self._unheard(group), unseen)
            return await self._taught(group, plan.lent, plan.slots)

    async def see_all(self, groups: Sequence[Group], plan: Plan) -> list[Seen]:
        """Every look at each of `groups`; the first error ends them all."""
        return await bounded(
            [partial(self.see, group, plan) for group in groups], max(1, len(groups))
        )

    def _unheard(self, group: Group) -> Group:
        """A group its teacher took no part in; methods without one keep theirs as it is."""
        if not self._parts.method.NEEDS_TEACHER:
            return group
        return teacher.nobody_looked([group])[0]

    async def _taught(self, group: Group, lent: Lent, slots: Semaphore) -> Seen:
        readings = reading.read(
            [group],
            self._parts.hint,
            self._chat,
            max_tokens=longest_reading(self._run, self._parts.backend.capabilities()),
            front="opening" if self._needs.snapshot == "trained" else "system",
        )
        given: list[Distribution | None] = [None] * len(group.trajectories)
        if self._needs.vocabulary:
            (given,) = await teacher.distributions(
                [group],
                readings,
                lent.client,
                k=self._needs.vocabulary,
                temperature=self._parts.loss.term_settings.get("jsd_temperature", 1.0),
                concurrency=slots,
            )
        (scored,) = await teacher.score(
            [group], readings, lent.client, concurrency=slots, same_snapshot=lent.own
        )
        return Seen(scored, given)


class Early:
    """Looks at every group as soon as it is finished, while others are still played.

    Args:
        see: looks at one group.
        within: what surrounds each look.
    """

    def __init__(
        self,
        see: Callable[[Group], Awaitable[Seen]],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._see, self._within = see, within
        self._tasks: dict[str, asyncio.Future[Seen]] = {}  # by task: no update has one twice

    def __call__(self, group: Group) -> None:
        """A group is finished."""
        self._tasks[group.task.id] = asyncio.ensure_future(self._one(group))

    async def _one(self, group: Group) -> Seen:
        with self._within():
            return await self._see(group)

    async def of(self, groups: Sequence[Group]) -> list[Seen]:
        """What was seen of `groups`; the first error ends all looks."""

        async def one(group: Group) -> Seen:
            return await self._tasks[group.task.id]

        return await bounded([partial(one, group) for group in groups], max(1, len(groups)))

    async def close(self) -> None:
        """End the looks nobody waits for."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Rolled:
    """The finished rollout of one update, and what can look at it.

    Attributes:
        groups: as sampled.
        client: bound to the snapshot that sampled.
        lent: its teacher, or None.
        early: looks that began before the last group was finished, or None.
        metrics: what is to be said about it.
    """

    groups: list[Group]
    client: SamplingClient
    lent: Lent | None
    early: Early | None
    metrics: Mapping[str, float]
