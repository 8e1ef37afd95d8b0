"""An environment that shows its hint to the student itself, in front of the opening observation.

Rollouts and evaluations see an ordinary `Environment`: neither can tell, and neither imports a
hint. Where the text stands is where a teacher's look at "opening" puts it (`core.looks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256

from turncredit.config import Chosen
from turncredit.core.errors import ConfigError
from turncredit.core.looks import FRONT, Hint, LookingHint, Preparing
from turncredit.core.protocols import Environment, Episode
from turncredit.core.types import Group, Observation, Step, Task

NONE = "none"  # the hint source that stands for no hint at all


class HintedEnvironment:
    """`environment`, with what `hint` says about a task shown at the start of its episodes.

    Tasks, digests, splits, instructions, tool and every later answer are those of `environment`.

    Args:
        environment: any environment.
        hint: a source that speaks about a task before it is played.
        hint_name: its name; this environment is called `<environment>+<hint_name>`.

    Raises:
        ConfigError: the source needs finished trajectories, which nobody has while acting.
    """

    def __init__(
        self, environment: Environment, hint: Hint | LookingHint, hint_name: str = "hint"
    ) -> None:
        if isinstance(hint, Preparing) or not isinstance(hint, Hint):
            raise ConfigError(
                f'hint "{hint_name}" speaks about finished trajectories, which a student that is '
                "still acting cannot read; give it one that speaks about the task, like skillbank"
            )
        self._environment, self._hint = environment, hint
        self.hint_name = hint_name
        self.name = f"{environment.name}+{hint_name}"
        self.instructions, self.tool = environment.instructions, environment.tool
        self.splits = environment.splits

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of `environment`, untouched: a panel of them has the same hash."""
        return self._environment.tasks(split)

    def episode(self, task: Task) -> Episode:
        """A fresh episode that opens with the hint.

        Raises:
            ConfigError: there is no hint for this task. Nobody acts without the hint by accident.
        """
        front = FRONT.format(self.text(task).strip())
        return _HintedEpisode(self._environment.episode(task), front)

    def text(self, task: Task) -> str:
        """The hint for `task`, as its source wrote it.

        Raises:
            ConfigError: the source has nothing to say, or fails.
        """
        try:
            text = self._hint.text(task, Group(task, ()))
        except ConfigError:
            raise
        except Exception as error:  # a source may be anybody's; no episode may be blamed for it
            raise ConfigError(
                f'hint "{self.hint_name}" failed on task {task.id}: {type(error).__name__}: {error}'
            ) from error
        if text is None or not text.strip():
            raise ConfigError(
                f'hint "{self.hint_name}" has nothing to say about task {task.id} '
                f"({task.task_type}), so the student would act without one; choose another hint, "
                "or leave such tasks out"
            )
        return text

    def digest(self, task: Task) -> str:
        """sha256 of the hint for `task`: what `Trajectory.student_hint_hash` holds."""
        return sha256(self.text(task).encode()).hexdigest()

    def digest_of_all(self, tasks: Iterable[Task]) -> str:
        """sha256 over the hints for `tasks` in order: the same texts, and only they, give it.

        Raises:
            ConfigError: a task has no hint. So this also says it before anything is played.
        """
        lines = [f"{task.id} {self.digest(task)}\n" for task in tasks]
        return sha256("".join(lines).encode()).hexdigest()

    def close(self) -> None:
        """Free what `environment` holds, if it holds anything."""
        if callable(close := getattr(self._environment, "close", None)):
            close()


class _HintedEpisode:
    """An episode whose first text has the hint in front."""

    def __init__(self, episode: Episode, front: str) -> None:
        self._episode, self._front = episode, front

    async def start(self) -> Observation:
        opening = await self._episode.start()
        return replace(opening, text=self._front + opening.text)

    async def act(self, action: str) -> Step:
        return await self._episode.act(action)

    async def close(self) -> None:
        await self._episode.close()


def hinted(environment: Environment, hint: Chosen) -> Environment:
    """`environment` with the chosen hint around it; itself when the choice is none.

    Raises:
        ConfigError: the source cannot serve a student.
    """
    if hint.name == NONE:
        return environment
    return HintedEnvironment(environment, hint.load("hint").create(hint.config), hint.name)
