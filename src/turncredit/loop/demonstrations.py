"""Demonstrations: what may serve as one, and those a run recorded.

What cannot serve is refused by name and counted; nothing is cut to fit.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from turncredit.core.errors import DataError, did_you_mean
from turncredit.core.types import Group, StopReason, Trajectory
from turncredit.loop.chat import Chat
from turncredit.loop.rollout import Limits
from turncredit.loop.sft_settings import EXPERTS
from turncredit.record.runlog import RunFolder

STORED = 0  # the step whose trajectories are the demonstrations: what was there before update 1

BROKE = "the environment broke"
CUT = "cut off by a budget of turns or tokens"
LONG = "longer than max_trajectory_tokens"
FAILED = "no success"
POOR = "less than min_reward"
EMPTY = "no valid action"


@dataclass(frozen=True)
class Wanted:
    """What a demonstration must be.

    Attributes:
        limits: budgets; nothing longer is taken, and nothing is cut.
        min_reward: keep what earned at least this; None: successes.
    """

    limits: Limits
    min_reward: float | None = None

    def refusal(self, trajectory: Trajectory) -> str:
        """Why `trajectory` is no demonstration; "" when it is one."""
        if trajectory.stop is StopReason.ENV_ERROR:
            return BROKE
        if trajectory.stop.truncated:
            return CUT
        if self.min_reward is None and not trajectory.success:
            return FAILED
        if self.min_reward is not None and trajectory.reward < self.min_reward:
            return POOR
        if len(trajectory.tokens) > self.limits.max_trajectory_tokens:
            return LONG
        return "" if any(taught(trajectory)) else EMPTY


@dataclass
class Collected:
    """Demonstrations in a fixed order, and how many were refused for which reason."""

    kept: list[Trajectory] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    def take(self, trajectory: Trajectory, refusal: str) -> None:
        """Keep a trajectory, or count why not."""
        if refusal:
            self.refused[refusal] += 1
        else:
            self.kept.append(_bare(trajectory))

    def said(self) -> str:
        """The refusals in words; "" when there are none."""
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self.refused.items()))


def taught(trajectory: Trajectory) -> list[bool]:
    """Per turn, whether it is worth imitating: a valid call that the environment accepted."""
    return [turn.action is not None and turn.admissible for turn in trajectory.turns]


def _bare(trajectory: Trajectory) -> Trajectory:
    """A demonstration alone: no teacher, no streams, and the demonstrator was certain."""
    turns = tuple(
        replace(turn, logprob_N=np.zeros(len(turn.logprob_N))) for turn in trajectory.turns
    )
    return Trajectory(
        task=trajectory.task,
        member=trajectory.member,
        seed=trajectory.seed,
        snapshot_id=trajectory.snapshot_id,
        tokens=trajectory.tokens,
        prompt_length=trajectory.prompt_length,
        turns=turns,
        reward=trajectory.reward,
        stop=trajectory.stop,
        opening=trajectory.opening,
        final_observation=trajectory.final_observation,
        student_hint_hash=trajectory.student_hint_hash,
    )


# ── recorded runs ────────────────────────────────────────────────────────────────────────────


def open_source(source: str) -> RunFolder:
    """The run folder that `--from` names.

    Raises:
        DataError: it is none, or holds no trajectories.
    """
    if not Path(source).exists():
        near = did_you_mean(source, [EXPERTS])
        raise DataError(f"--from {source}: no such run folder.{near} (a run folder, or {EXPERTS})")
    folder = RunFolder.open(source)
    if not folder.trajectory_steps():
        raise DataError(f"--from {source}: the run holds no trajectories to learn from")
    return folder


def recorded(folder: RunFolder, chat: Chat, wanted: Wanted, into: Collected) -> None:
    """Take what serves of all trajectories of a run, in the order they were sampled.

    Raises:
        DataError: a file is damaged, or its tokens are those of another model or tool.
    """
    for step in folder.trajectory_steps():
        for group in stored(folder, step):
            if group.faults:
                into.refused[BROKE] += len(group.faults)
            for trajectory in group.trajectories:
                refusal = wanted.refusal(trajectory)
                if not refusal:
                    _check_tokens(trajectory, chat, folder)
                into.take(trajectory, refusal)


def stored(folder: RunFolder, step: int) -> Iterator[Group]:
    """The groups of a step.

    Raises:
        DataError: not there, or damaged in whatever way.
    """
    try:
        yield from (found.group for found in folder.read_trajectories(step))
    except DataError:
        raise
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder.path}: the trajectories of step {step} are damaged "
            f"({type(error).__name__}: {error}). Restore that file, or remove it"
        ) from error


def _check_tokens(trajectory: Trajectory, chat: Chat, folder: RunFolder) -> None:
    """Raise unless this model's tokenizer and tool read every action as it was recorded."""
    for k, turn in enumerate(trajectory.turns):
        try:
            read = chat.parse(trajectory.action_tokens(k).tolist())
        except Exception as error:  # noqa: BLE001 - foreign ids: a tokenizer raises what it likes
            seen = f"ids it cannot decode ({error})"
        else:
            if (read.action, read.text) == (turn.action, turn.text):
                continue
            seen = repr(read.text[:80])
        raise DataError(
            f"--from {folder.path}: turn {k} of {trajectory.name} was recorded as "
            f"{turn.text[:80]!r}, but this model and environment read {seen}. Use those the run "
            "was sampled with"
        )
