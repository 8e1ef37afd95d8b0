"""The nouns that travel between stages. All frozen; a stage takes one and returns another.

Axis letters in names: `_G` trajectories of a group, `_K` turns of a trajectory, `_N` tokens of
a turn, `_T` tokens of a trajectory, `_D` training rows. Log-probabilities are in nats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turncredit.core.errors import AlignmentError

Array = NDArray[np.float64]
Tokens = NDArray[np.int64]

REFERENCE = "reference"  # the stream of the initial policy, for a KL penalty
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def frozen_array(values: ArrayLike, dtype: type = np.float64) -> NDArray[Any]:
    """A read-only one-dimensional copy of `values`."""
    array = np.array(values, dtype=dtype).reshape(-1)
    array.setflags(write=False)
    return array


class StopReason(StrEnum):
    """Why a trajectory ended. Exactly one of these, always."""

    SUCCESS = "success"  # the environment says the goal is reached
    FAILED = "failed"  # the environment ended the episode without success
    MAX_TURNS = "max_turns"  # out of turns
    TRAJECTORY_TOKENS = "trajectory_tokens"  # the next observation and action would not fit
    ACTION_TOKENS = "action_tokens"  # one action ran past its own budget
    ENV_ERROR = "env_error"  # the environment's machinery broke: not the policy's doing

    @property
    def truncated(self) -> bool:
        """Ended by a budget, not by the environment: a failure, but not a terminal state."""
        return self in (self.MAX_TURNS, self.TRAJECTORY_TOKENS, self.ACTION_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One episode to play. `digest` is the sha256 of what defines it (the game file)."""

    id: str
    env: str
    split: str
    task_type: str
    digest: str
    payload: Mapping[str, Any] = field(default_factory=lambda: _NOTHING, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment shows: text, the admissible actions, and a key of the hidden state."""

    text: str
    actions: tuple[str, ...] = ()
    state_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The environment's answer to one action. `success` implies `done`; `done` never success."""

    observation: Observation
    reward: float = 0.0
    success: bool = False
    done: bool = False
    admissible: bool = True

    def __post_init__(self) -> None:
        if self.success and not self.done:
            raise ValueError("a successful step must also be done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the environment showed, then the N action tokens the policy sampled.

    Attributes:
        start: index of the first action token in `Trajectory.tokens`.
        logprob_N: the student's log-probability of each action token, (N,), nats.
        observation: the text shown before this action.
        text: the decoded action tokens.
        action: the parsed command; None when the output had no valid format (then the
            environment did not advance).
        admissible: the environment accepted the command. False when `action` is None.
        reward: the environment's reward for this step.
        state_key: key of the environment's state before the action.
    """

    start: int
    logprob_N: Array
    observation: str = ""
    text: str = ""
    action: str | None = None
    admissible: bool = True
    reward: float = 0.0
    state_key: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "logprob_N", frozen_array(self.logprob_N))

    @property
    def stop(self) -> int:
        """Index one past the last action token."""
        return self.start + len(self.logprob_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What the student did, without any hint, on one task.

    Attributes:
        tokens: all T token ids, prompt first; sampled ids exactly as sampled.
        prompt_length: tokens before the first turn's observation ends and its action starts.
        turns: K turns in order; their spans are disjoint, increasing, and inside `tokens`.
        reward: the outcome the verifier gives (0 or 1 unless the environment says otherwise).
        opening: what the environment showed first: the prompt can be built again from it.
        logprobs: where `Turn.logprob_N` came from: the sampler, or a full re-scoring pass.
        streams: further log-probs of the same action tokens by name, per turn (N,): those of the
            looks of a hint source, or `REFERENCE`, those of the initial policy.
        student_hint_hash: sha256 of a hint the *student* saw while acting (empty: none).
    """

    task: Task
    member: int
    seed: int
    snapshot_id: str
    tokens: Tokens
    prompt_length: int
    turns: tuple[Turn, ...]
    reward: float
    stop: StopReason
    opening: Observation = Observation("")
    final_observation: str = ""
    error: str = ""
    logprobs: Literal["sampled", "rescored"] = "sampled"
    streams: Mapping[str, tuple[Array, ...]] = field(default_factory=lambda: _NOTHING)
    student_hint_hash: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", frozen_array(self.tokens, np.int64))
        position, trace = self.prompt_length, f"trajectory {self.name}"
        for k, turn in enumerate(self.turns):
            if turn.start < position:
                raise AlignmentError(
                    f"{trace}, start of turn {k}", expected=f"at least {position}", got=turn.start
                )
            position = turn.stop
        if position > len(self.tokens):
            raise AlignmentError(trace, expected=f"{position} tokens", got=len(self.tokens))
        if (self.stop is StopReason.ENV_ERROR) != bool(self.error):
            raise ValueError(f"{trace}: an env_error, and only that, carries an error text")
        streams = {name: self._aligned(name, values) for name, values in self.streams.items()}
        object.__setattr__(self, "streams", MappingProxyType(streams))

    def _aligned(self, what: str, values_K: Sequence[ArrayLike]) -> tuple[Array, ...]:
        """`values_K` frozen, if it has one number for every action token.

        Raises:
            AlignmentError: it has not.
        """
        arrays_K = tuple(frozen_array(values) for values in values_K)
        if len(arrays_K) != len(self.turns):
            raise AlignmentError(
                f"trajectory {self.name}, turns of {what}",
                expected=len(self.turns),
                got=len(arrays_K),
            )
        for k, (turn, values_N) in enumerate(zip(self.turns, arrays_K, strict=True)):
            if values_N.shape != turn.logprob_N.shape:
                raise AlignmentError(
                    f"trajectory {self.name}, turn {k} starting at token {turn.start}",
                    expected=f"{len(turn.logprob_N)} {what} log-probs",
                    got=len(values_N),
                )
        return arrays_K

    @property
    def name(self) -> str:
        """Task and member, for messages."""
        return f"{self.task.id}#{self.member}"

    @property
    def success(self) -> bool:
        """The environment said the goal is reached. Never inferred from `done`."""
        return self.stop is StopReason.SUCCESS

    def action_tokens(self, k: int) -> Tokens:
        """The N ids of turn k."""
        return self.tokens[self.turns[k].start : self.turns[k].stop]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTrajectory(Trajectory):
    """A trajectory plus the teacher's view of the very same tokens.

    Attributes:
        teacher_K: per turn the teacher's log-probabilities, (N,), aligned with `Turn.logprob_N`:
            those of the first look that covers the turn, else the student's own (gap 0).
        hint_hash: sha256 of the hint text the teacher saw (empty: no hint, e.g. a null control).
        teacher_snapshot_id: the snapshot that scored.
    """

    teacher_K: tuple[Array, ...]
    hint_hash: str
    teacher_snapshot_id: str

    def __post_init__(self) -> None:
        # Not super(): dataclass(slots=True) recreates the class, which breaks the zero-arg form.
        Trajectory.__post_init__(self)
        object.__setattr__(self, "teacher_K", self._aligned("teacher", self.teacher_K))

    @property
    def gap_K(self) -> tuple[Array, ...]:
        """Per turn, teacher minus student log-probability of each action token, (N,), nats."""
        pairs = zip(self.turns, self.teacher_K, strict=True)
        return tuple(teacher_N - turn.logprob_N for turn, teacher_N in pairs)

    def gap_of(self, stream: str) -> tuple[Array, ...]:
        """As `gap_K`, of one look: zeros where no look of that name covered the turn."""
        values_K = self.streams.get(stream)
        if values_K is None:
            return tuple(np.zeros(len(turn.logprob_N)) for turn in self.turns)
        return tuple(v - turn.logprob_N for turn, v in zip(self.turns, values_K, strict=True))


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task, sampled from one snapshot: what credit is relative to.

    Attributes:
        trajectories: the G members that count.
        faults: members whose environment broke: recorded and counted, in no statistic.
        notes: further numbers a stage found out about each member, by name, (G,).
    """

    task: Task
    trajectories: tuple[Trajectory, ...]
    faults: tuple[Trajectory, ...] = ()
    notes: Mapping[str, Array] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        members = (*self.trajectories, *self.faults)
        if foreign := sorted({t.task.id for t in members} - {self.task.id}):
            raise AlignmentError("group", expected=self.task.id, got=foreign)
        if len(snapshots := sorted({t.snapshot_id for t in members})) > 1:
            raise AlignmentError(
                f"group {self.task.id}", expected="one sampling snapshot", got=snapshots
            )
        if any(t.stop is StopReason.ENV_ERROR for t in self.trajectories) or any(
            t.stop is not StopReason.ENV_ERROR for t in self.faults
        ):
            raise ValueError(f"group {self.task.id}: env_error members belong in faults, only they")
        notes = {name: frozen_array(values) for name, values in self.notes.items()}
        for name, values_G in notes.items():
            if len(values_G) != len(self.trajectories):
                raise AlignmentError(
                    f"group {self.task.id}, note {name}",
                    expected=f"{len(self.trajectories)} numbers",
                    got=len(values_G),
                )
        object.__setattr__(self, "notes", MappingProxyType(notes))

    @property
    def reward_G(self) -> Array:
        """Outcome of each member, (G,)."""
        return frozen_array([t.reward for t in self.trajectories])

    @property
    def success_G(self) -> Array:
        """1 where the member succeeded, (G,)."""
        return frozen_array([float(t.success) for t in self.trajectories])


@dataclass(frozen=True, slots=True)
class Credit:
    """What a method decides about one group.

    Attributes:
        advantage: `[trajectory][turn]` -> (N,), the signed weight of every action token.
        distill: weights of a distillation term in the same layout, or None.
        figures: every intermediate per turn by name (evidence, belief, ...): name ->
            per trajectory one (K,) array. Written to the run folder and shown by reports.
        metrics: scalars of this group.
    """

    advantage: tuple[tuple[Array, ...], ...]
    distill: tuple[tuple[Array, ...], ...] | None = None
    figures: Mapping[str, tuple[Array, ...]] = field(default_factory=lambda: _NOTHING)
    metrics: Mapping[str, float] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        frozen = tuple(tuple(frozen_array(a) for a in turns) for turns in self.advantage)
        object.__setattr__(self, "advantage", frozen)

    @property
    def has_signal(self) -> bool:
        """Some token has a non-zero weight; otherwise the backward pass is skipped."""
        streams = (*self.advantage, *(self.distill or ()))
        return any(bool(np.any(a)) for turns in streams for a in turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a call cost, in tokens. Addable. `cached` is None where the backend cannot tell."""

    prefill: int = 0
    cached: int | None = 0
    sampled: int = 0
    trained: int = 0
    requests: int = 0

    def __add__(self, other: Usage) -> Usage:
        unknown = self.cached is None or other.cached is None
        return Usage(
            prefill=self.prefill + other.prefill,
            cached=None if unknown else (self.cached or 0) + (other.cached or 0),
            sampled=self.sampled + other.sampled,
            trained=self.trained + other.trained,
            requests=self.requests + other.requests,
        )

    def since(self, earlier: Usage) -> Usage:
        """What was used after `earlier`, a former reading of the same counter."""
        unknown = self.cached is None or earlier.cached is None
        return Usage(
            prefill=self.prefill - earlier.prefill,
            cached=None if unknown else (self.cached or 0) - (earlier.cached or 0),
            sampled=self.sampled - earlier.sampled,
            trained=self.trained - earlier.trained,
            requests=self.requests - earlier.requests,
        )


Message = Mapping[str, Any]
Ids = Sequence[int]
