"""The rollout stage of an update: which tasks, how often, and which members act under a hint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from turncredit.config import Run
from turncredit.core.protocols import Environment, SamplingClient
from turncredit.core.types import Group, Task, Trajectory
from turncredit.loop.chat import Chat
from turncredit.loop.order import TaskOrder
from turncredit.loop.parts import Parts
from turncredit.loop.rollout import Limits, rollout

Progress = Callable[[int, int], None]


def limits_of(run: Run) -> Limits:
    """The budgets of a run's trajectories."""
    return Limits(
        max_turns=run.rollout.max_turns,
        max_trajectory_tokens=run.rollout.max_trajectory_tokens,
        max_action_tokens=run.rollout.max_action_tokens,
        temperature=run.rollout.temperature,
        top_p=run.rollout.top_p,
        step_timeout=run.rollout.step_timeout,
    )


class Sampler:
    """Samples the groups of every update.

    Attributes:
        metrics: of the last update: what a method that drops groups cost.
    """

    def __init__(self, run: Run, parts: Parts, chat: Chat, limits: Limits) -> None:
        self._run, self._parts, self._chat, self._limits = run, parts, chat, limits
        self._order = TaskOrder(
            parts.environment.tasks(run.schedule.train_split),
            seed=run.schedule.seed,
            per_step=run.schedule.tasks_per_update,
        )
        self.metrics: dict[str, float] = {}

    async def sample(self, step: int, client: SamplingClient, progress: Progress) -> list[Group]:
        """The groups of update `step` (counted from 1), from the client's snapshot.

        Where the method drops groups (`keep`), further tasks are played until there are enough;
        the last batch is taken as it is (as DAPO's published code does).
        """
        tasks = self._order.take(step - 1)
        groups = await self._batch(step, tasks, client, progress)
        keep = getattr(self._parts.method, "keep", None)
        if keep is None:
            return groups
        wanted, taken = self._run.schedule.tasks_per_update, list(tasks)
        kept = [group for group in groups if keep(group, self._parts.method_config)]
        dropped, attempt = len(groups) - len(kept), 1
        while len(kept) < wanted and attempt < self._run.rollout.resample:
            if not (more := self._order.more(step - 1, taken, attempt)):
                break
            taken += more
            attempt += 1
            groups = await self._batch(step, more, client, progress)
            fresh = [group for group in groups if keep(group, self._parts.method_config)]
            dropped += len(groups) - len(fresh)
            kept += fresh
        self.metrics = {"sampling/batches": attempt, "sampling/groups_dropped": dropped}
        return kept[:wanted] or groups

    async def _batch(
        self, step: int, tasks: Sequence[Task], client: SamplingClient, progress: Progress
    ) -> list[Group]:
        size, how = self._run.schedule.group_size, self._run.needs.student_hint
        hinted = {"none": 0, "all": size, "half": size // 2}[how]
        finished, total = 0, len(tasks) * size

        def count(_: Trajectory) -> None:
            nonlocal finished
            finished += 1
            progress(finished, total)

        async def play(environment: Environment, members: int, first: int) -> list[Group]:
            return await rollout(
                tasks,
                environment,
                self._chat,
                client,
                self._limits,
                group_size=members,
                run_seed=self._run.schedule.seed,
                step=step,
                first_member=first,
                on_done=count,
            )

        plain = await play(self._parts.environment, size - hinted, 0) if hinted < size else []
        if self._parts.hinted is None:
            return plain
        under = [
            _marked(group, self._parts.hinted.digest(group.task))
            for group in await play(self._parts.hinted, hinted, size - hinted)
        ]
        return [_joined(a, b) for a, b in zip(plain, under, strict=True)] if plain else under


def _marked(group: Group, digest: str) -> Group:
    """The group with the hash of the hint its members acted under."""
    return replace(
        group,
        trajectories=tuple(replace(t, student_hint_hash=digest) for t in group.trajectories),
        faults=tuple(replace(t, student_hint_hash=digest) for t in group.faults),
    )


def _joined(plain: Group, hinted: Group) -> Group:
    return replace(
        plain,
        trajectories=plain.trajectories + hinted.trajectories,
        faults=plain.faults + hinted.faults,
    )
