"""Which tasks an update takes: a pure function of the seed and the step, so resume is exact."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice

from turncredit.core.errors import ConfigError
from turncredit.core.types import Task


class TaskOrder:
    """Every task once per epoch, in an order drawn from (seed, epoch)."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, per_step: int) -> None:
        if len(tasks) < per_step:
            raise ConfigError(
                f"tasks_per_update={per_step}, but the split has {len(tasks)} tasks; "
                "lower it, so that no task is in one update twice"
            )
        self._tasks, self._seed, self._per_step = tasks, seed, per_step
        self._epoch, self._indices = -1, list[int]()

    def more(self, step: int, taken: Sequence[Task], attempt: int) -> list[Task]:
        """Other tasks for update `step`, when those `taken` were not enough; [] when none is left.

        Drawn from the whole split, so that later updates take what they would have anyway.
        """
        seen = {task.id for task in taken}
        order = list(range(len(self._tasks)))
        random.Random(f"{self._seed}/{step}/more/{attempt}").shuffle(order)
        # One by one: a split may make its tasks only when asked for them.
        left = (task for i in order if (task := self._tasks[i]).id not in seen)
        return list(islice(left, self._per_step))

    def take(self, step: int) -> list[Task]:
        """The tasks of update `step` (counted from 0). An epoch's last few may stay unused."""
        steps_per_epoch = len(self._tasks) // self._per_step
        epoch, position = divmod(step, steps_per_epoch)
        if epoch != self._epoch:
            self._indices = list(range(len(self._tasks)))
            random.Random(f"{self._seed}/{epoch}").shuffle(self._indices)
            self._epoch = epoch
        first = position * self._per_step
        return [self._tasks[i] for i in self._indices[first : first + self._per_step]]
