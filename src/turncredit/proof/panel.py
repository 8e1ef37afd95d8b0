"""A panel: the ordered tasks an evaluation is *on*, under one hash.

The same tasks give the same panel whatever the order of files on disk or the number of workers.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from turncredit.core.errors import ConfigError, DataError, did_you_mean
from turncredit.core.protocols import Environment
from turncredit.core.types import Task


@dataclass(frozen=True, slots=True)
class Panel:
    """Tasks in playing order. Build it with `panel` or `choose`, which check it."""

    tasks: tuple[Task, ...]

    @property
    def hash(self) -> str:
        """sha256 over the ordered (id, digest) list: equal for equal games, and only for them."""
        return panel_hash((task.id, task.digest) for task in self.tasks)

    def manifest(self) -> dict[str, Any]:
        """The panel as plain values, for the summary of an evaluation."""
        fields = ("id", "split", "task_type", "digest")
        return {
            "hash": self.hash,
            "count": len(self.tasks),
            "tasks": [{name: getattr(task, name) for name in fields} for task in self.tasks],
        }


def panel_hash(games: Iterable[tuple[str, str]]) -> str:
    """The hash of an ordered list of (id, digest)."""
    text = json.dumps([list(game) for game in games], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def panel(tasks: Sequence[Task]) -> Panel:
    """The panel of `tasks` in the given order.

    Raises:
        DataError: no task at all, or one twice.
    """
    if not tasks:
        raise DataError("an evaluation needs at least one task; the chosen splits hold none")
    for task in tasks:
        for field in ("id", "digest", "split", "task_type"):
            if not isinstance(getattr(task, field), str):
                raise DataError(
                    f"task {task.id!r}: its {field} is {getattr(task, field)!r}, not text. "
                    "turncredit check-env shows what an environment must keep to"
                )
    name, count = Counter(task.id for task in tasks).most_common(1)[0]
    if count > 1:
        raise DataError(f"task {name!r} is {count} times in the panel; each must be there once")
    return Panel(tuple(tasks))


def choose(environment: Environment, split: str, limit_per_split: int | None = None) -> Panel:
    """The panel of a split, or of all held-out splits.

    Args:
        environment: where the tasks come from.
        split: one split, or "all": every split that is not for training.
        limit_per_split: keep this many of each split, evenly over its task types (None: all).

    Raises:
        ConfigError: no such split, or a limit below 1.
    """
    if limit_per_split is not None and limit_per_split < 1:
        raise ConfigError(f"limit-per-split is {limit_per_split}; use at least 1")
    if split == "all":
        held_out = [name for name in environment.splits if "train" not in name]
        splits = held_out or list(environment.splits)
    elif split in environment.splits:
        splits = [split]
    else:
        known = ["all", *environment.splits]
        raise ConfigError(
            f"environment {environment.name} has no split {split!r}.{did_you_mean(split, known)} "
            f"(known: {', '.join(known)})"
        )
    tasks: list[Task] = []
    for name in splits:
        found = sorted(environment.tasks(name), key=lambda task: task.id)
        tasks += found if limit_per_split is None else _evenly(found, limit_per_split)
    return panel(tasks)


def _evenly(tasks: Sequence[Task], limit: int) -> list[Task]:
    """The first `limit` tasks taking one of each type in turn, then sorted by id again."""
    by_type: defaultdict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        by_type[task.task_type].append(task)
    ranked = [(i, kind, task) for kind, mine in by_type.items() for i, task in enumerate(mine)]
    ranked.sort(key=lambda item: item[:2])
    return sorted((task for _, _, task in ranked[:limit]), key=lambda task: task.id)
