"""The rollout stage of an update: which tasks, how often, and which members act under a hint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from turncredit.config import Run
from turncredit.core.clients import SamplingClient
from turncredit.core.errors import DataError
from turncredit.core.protocols import Environment
from turncredit.core.types import Group, Task, Trajectory
from turncredit.loop.chat import Chat
from turncredit.loop.order import TaskOrder
from turncredit.loop.parts import Parts
from turncredit.loop.rollout import Limits, rollout

Progress = Callable[[int, int], None]
OnGroup = Callable[[Group], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups of one update.

    Attributes:
        groups: as sampled.
        metrics: what a method that drops groups cost.
        dropped: further groups that were played for it.
    """

    groups: list[Group]
    metrics: Mapping[str, float]
    dropped: Sequence[Group] = ()


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
    """Samples the groups of every update."""

    def __init__(self, run: Run, parts: Parts, chat: Chat, limits: Limits) -> None:
        self._run, self._parts, self._chat, self._limits = run, parts, chat, limits
        self._order = TaskOrder(
            parts.environment.tasks(run.schedule.train_split),
            seed=run.schedule.seed,
            per_step=run.schedule.tasks_per_update,
        )

    async def sample(
        self,
        step: int,
        client: SamplingClient,
        progress: Progress,
        on_group: OnGroup | None = None,
    ) -> Batch:
        """The groups of update `step` (counted from 1), from the client's snapshot.

        Where the method drops groups (`keep`), further tasks are played until there are enough;
        the last batch is taken as it is (as DAPO's published code does).

        Args:
            step: the update.
            client: bound to one snapshot.
            progress: told how many trajectories of a batch are finished.
            on_group: told of each finished group, where none is dropped and no member acts under
                a hint.
        """
        tasks = self._order.take(step - 1)
        groups = await self._batch(step, tasks, client, progress, on_group)
        keep = getattr(self._parts.method, "keep", None)
        if keep is None:
            return Batch(groups, {})
        wanted, taken = self._run.schedule.tasks_per_update, list(tasks)
        played = [*groups]
        kept = [group for group in groups if keep(group, self._parts.method_config)]
        dropped, attempt = len(groups) - len(kept), 1
        while len(kept) < wanted and attempt < self._run.rollout.resample:
            if not (more := self._order.more(step - 1, taken, attempt)):
                break
            taken += more
            attempt += 1
            groups = await self._batch(step, more, client, progress)
            played += groups
            fresh = [group for group in groups if keep(group, self._parts.method_config)]
            dropped += len(groups) - len(fresh)
            kept += fresh
        cost = {"sampling/batches": float(attempt), "sampling/groups_dropped": float(dropped)}
        chosen = kept[:wanted] or groups
        ids = {group.task.id for group in chosen}
        return Batch(chosen, cost, [group for group in played if group.task.id not in ids])

    def with_payloads(self, step: int, groups: Sequence[Group]) -> list[Group]:
        """Groups read from disk, their tasks again those of the environment.

        Raises:
            DataError: one is of a task that this update does not play.
        """
        known = self._order.take(step - 1)
        for attempt in range(1, self._run.rollout.resample):
            if {group.task.id for group in groups} <= {task.id for task in known}:
                break
            known = known + self._order.more(step - 1, known, attempt)
        by_id = {task.id: task for task in known}
        if lost := sorted({group.task.id for group in groups} - set(by_id)):
            raise DataError(
                f"the rollout kept for update {step} plays {lost[0]}, which this environment does "
                "not give it: it was made with other tasks. Use the environment it was made with"
            )
        return [_of_task(group, by_id[group.task.id]) for group in groups]

    async def _batch(
        self,
        step: int,
        tasks: Sequence[Task],
        client: SamplingClient,
        progress: Progress,
        on_group: OnGroup | None = None,
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
                on_group=on_group,
            )

        plain = await play(self._parts.environment, size - hinted, 0) if hinted < size else []
        if self._parts.hinted is None:
            return plain
        under = [
            _marked(group, self._parts.hinted.digest(group.task))
            for group in await play(self._parts.hinted, hinted, size - hinted)
        ]
        return [_joined(a, b) for a, b in zip(plain, under, strict=True)] if plain else under


def _of_task(group: Group, task: Task) -> Group:
    return replace(
        group,
        task=task,
        trajectories=tuple(replace(t, task=task) for t in group.trajectories),
        faults=tuple(replace(t, task=task) for t in group.faults),
    )


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
