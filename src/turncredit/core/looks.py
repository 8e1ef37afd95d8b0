"""Privileged text and where it stands: what a hint source asks the teacher to read.

A *look* is one reading of a trajectory: some insertions into the context the student saw, and the
turns whose actions that reading judges. The student's own ids are never touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from turncredit.core.errors import ConfigError
from turncredit.core.types import Group, Task

Place = Literal["system", "opening"] | int

# How guidance is worded in a conversation: at the front (`system`, `opening`), and before a turn.
FRONT = "Guidance for this task, from experience:\n{}\n\n"
STEP = "\nGuidance for this step:\n{}\n(end of guidance)"

# Asks a model about a finished trajectory: a prompt in, its answer out.
Ask = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Insertion:
    """One piece of privileged text.

    Attributes:
        text: what the teacher reads.
        at: "system": front of the system message; "opening": front of the opening observation
            (where `HintedEnvironment` puts it); k: end of what was shown before turn k.
    """

    text: str
    at: Place = "system"

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ConfigError(
                "a hint is empty; a source with nothing to say gives no look (or None)"
            )


@dataclass(frozen=True, slots=True)
class Look:
    """One reading of a trajectory.

    Attributes:
        insertions: what is added to the student's context, at least one.
        turns: the turns it judges; None: all.
        name: the stream its scores are kept in (`Trajectory.streams`); "" keeps none. The teacher's
            score of a turn (`ScoredTrajectory.teacher_K`) is that of the first look covering it.
    """

    insertions: tuple[Insertion, ...]
    turns: tuple[int, ...] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.insertions:
            raise ConfigError("a look without insertions sees what the student saw: leave it out")


@runtime_checkable
class Hint(Protocol):
    """A source of privileged text that only the teacher sees: one text for every member."""

    def text(self, task: Task, group: Group) -> str | None:
        """The hint for one task, or None when there is nothing to say."""
        ...


@runtime_checkable
class LookingHint(Protocol):
    """A source that speaks about single trajectories or turns.

    Attributes:
        sees_future: its texts may hold what the trajectory itself showed after the turn they are
            injected at (a summary of the completed trajectory does). False is enforced.
    """

    sees_future: bool

    def looks(self, group: Group) -> Sequence[Sequence[Look]]:
        """Per member of the group its looks, possibly none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a hint source makes an update do, so that its cost can be foretold.

    Attributes:
        least_looks, looks: readings of a trajectory, at least and at most.
        per_member, per_group: questions to the policy about each trajectory, and about each group.
        characters: of a trajectory that a question shows at most.
        around: characters of a question beside it at most.
        attempts: answers asked for by a question at most.
    """

    least_looks: int = 1
    looks: int = 1
    per_member: int = 0
    per_group: int = 0
    characters: int = 0
    around: int = 0
    attempts: int = 1


@runtime_checkable
class Demanding(Protocol):
    """Settings of a source that does more than one look at a trajectory: they say how much."""

    @property
    def demand(self) -> Demand:
        """What it asks for."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """A source that must ask a model first: called once an update, before `looks`."""

    async def prepare(self, groups: Sequence[Group], ask: Ask) -> Mapping[str, float]:
        """Think about finished groups. `ask` is the snapshot that sampled. Returns metrics."""
        ...
