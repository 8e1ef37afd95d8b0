"""The student's own tokens, scored again by the same snapshot with privileged text in front.

The teacher reads exactly what the student read and wrote, with one insertion: the hint, at the
front of the system message. One request per trajectory; nothing is cut or tokenised again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np

from turncredit.core.errors import AlignmentError, ConfigError
from turncredit.core.looks import Hint
from turncredit.core.protocols import SamplingClient
from turncredit.core.tokens import TeacherView, teacher_view
from turncredit.core.types import Array, Group, Ids, ScoredTrajectory, Trajectory
from turncredit.loop.chat import Chat
from turncredit.loop.concurrency import bounded

T = TypeVar("T", bound=Trajectory)


@dataclass(frozen=True, slots=True)
class NoiseReport:
    """How far scoring the same context twice moves log-probs: the floor under any evidence.

    Attributes:
        trajectories: how many were scored.
        turns: how many turns they have.
        tokens: how many action tokens.
        evidence_noise: mean over turns of |sum of the gaps|, nats: compare `evidence_abs_mean`.
        token_noise: mean over tokens of |gap|, nats.
        token_max: the largest |gap| of a token, nats.
    """

    trajectories: int
    turns: int
    tokens: int
    evidence_noise: float
    token_noise: float
    token_max: float


async def score(
    groups: Sequence[Group],
    hint: Hint,
    chat: Chat,
    client: SamplingClient,
    *,
    concurrency: int = 16,
    max_tokens: int,
) -> list[Group]:
    """Give every trajectory the teacher's log-probs: `Group`s of `ScoredTrajectory`.

    A task for which `hint` has nothing to say (None) gets no teacher: its `teacher_K` equals the
    student's log-probs, so every gap is exactly 0, and its `hint_hash` is empty (`unhinted`
    counts these). Trajectories without turns cost no request. Faults are passed through.

    Args:
        groups: sampled from the client's snapshot.
        hint: the privileged text, asked once per group.
        chat: the form the student saw; its prompt is built again and compared.
        client: bound to the very snapshot that sampled.
        concurrency: requests in flight.
        max_tokens: longest sequence the teacher may read (trajectory budget plus reserve).

    Raises:
        ConfigError: the hinted trajectory is longer than `max_tokens` (never cut), or a hint is
            empty.
        AlignmentError: another snapshot, another prompt than the student's, or scores that do
            not match the tokens.
    """
    plan = []
    for group in groups:
        text = hint.text(group.task, group) if group.trajectories else None
        if text is not None and not text.strip():
            raise ConfigError(
                f"the hint for task {group.task.id} is empty; a source with nothing to say "
                "returns None"
            )
        views = [_view(t, text, chat, client, max_tokens) for t in group.trajectories]
        plan.append((group, "" if text is None else _hash(text), views))
    requests = [
        partial(_ask, client, view, trajectory)
        for group, _, views in plan
        for trajectory, view in zip(group.trajectories, views, strict=True)
    ]
    answers = iter(await bounded(requests, concurrency))
    return [_scored(group, digest, client.snapshot_id, answers) for group, digest, _ in plan]


async def rescore(
    groups: Sequence[Group], client: SamplingClient, *, concurrency: int = 16
) -> list[Group]:
    """Replace the student's sampled log-probs by a full pass over the same tokens.

    The student side of a gap then comes from the same path as the teacher's, so what differs
    between decoding and scoring (in bf16 more than 0.05 nats a token) cancels.

    Raises:
        AlignmentError: another snapshot, or scores that do not match the tokens.
    """
    members = [t for group in groups for t in group.trajectories]
    requests = [partial(_ask, client, _own_view(t, client), t) for t in members]
    answers = iter(await bounded(requests, concurrency))
    return [
        replace(group, trajectories=tuple(_rescored(t, next(answers)) for t in group.trajectories))
        for group in groups
    ]


async def null_control(
    groups: Sequence[Group], client: SamplingClient, *, sample: int = 8, concurrency: int = 16
) -> NoiseReport:
    """Score some trajectories as the teacher would, but with the student's own prompt.

    Every gap should be 0; what is found instead is noise of the numbers, not evidence.

    Args:
        groups: with the student log-probs that credit will use.
        client: bound to the snapshot that sampled.
        sample: how many trajectories at most, taken in turn from each group.
        concurrency: requests in flight.
    """
    chosen = _spread([group.trajectories for group in groups], sample)
    requests = [partial(_ask, client, _own_view(t, client), t) for t in chosen]
    answers = await bounded(requests, concurrency)
    gap_K = [
        score_N - turn.logprob_N
        for t, scores_K in zip(chosen, answers, strict=True)
        for turn, score_N in zip(t.turns, _or_own(t, scores_K), strict=True)
    ]
    if not gap_K:
        return NoiseReport(0, 0, 0, 0.0, 0.0, 0.0)
    size = np.abs(np.concatenate(gap_K))
    return NoiseReport(
        trajectories=len(chosen),
        turns=len(gap_K),
        tokens=len(size),
        evidence_noise=float(np.mean([abs(gap_N.sum()) for gap_N in gap_K])),
        token_noise=float(size.mean()),
        token_max=float(size.max()),
    )


def unhinted(groups: Sequence[Group]) -> int:
    """How many scored trajectories had no hint, hence no teacher's signal."""
    members = (t for group in groups for t in group.trajectories)
    return sum(isinstance(t, ScoredTrajectory) and not t.hint_hash for t in members)


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _check_snapshot(trajectory: Trajectory, snapshot_id: str) -> None:
    if trajectory.snapshot_id != snapshot_id:
        raise AlignmentError(
            f"trajectory {trajectory.name}: the teacher's snapshot",
            expected=trajectory.snapshot_id,
            got=snapshot_id,
        )


def _view(
    trajectory: Trajectory, hint: str | None, chat: Chat, client: SamplingClient, max_tokens: int
) -> TeacherView | None:
    """What the teacher reads, or None when there is nothing to score."""
    _check_snapshot(trajectory, client.snapshot_id)
    if hint is None or not trajectory.turns:
        return None
    own = _own_prompt(trajectory)
    again = chat.prompt(trajectory.task, trajectory.opening)
    if again != own:
        raise AlignmentError(
            f"trajectory {trajectory.name}: the prompt rendered again", expected=own, got=again
        )
    prompt = chat.prompt(trajectory.task, trajectory.opening, hint=hint)
    view = teacher_view(trajectory, prompt)
    if len(view.tokens) > max_tokens:
        raise ConfigError(
            f"trajectory {trajectory.name}: the teacher would read {len(view.tokens)} tokens "
            f"({len(trajectory.tokens)} of the trajectory, {len(prompt) - len(own)} of the hint), "
            f"more than its {max_tokens}; raise --teacher-reserve-tokens, or use a shorter hint"
        )
    return view


def _own_prompt(trajectory: Trajectory) -> list[int]:
    return trajectory.tokens[: trajectory.prompt_length].tolist()


def _own_view(trajectory: Trajectory, client: SamplingClient) -> TeacherView | None:
    _check_snapshot(trajectory, client.snapshot_id)
    return teacher_view(trajectory, _own_prompt(trajectory)) if trajectory.turns else None


async def _ask(
    client: SamplingClient, view: TeacherView | None, trajectory: Trajectory
) -> tuple[Array, ...] | None:
    """Per turn the scores of its tokens, by one request; None without a view."""
    if view is None:
        return None
    tokens: Ids = view.tokens.tolist()
    result = await client.compute_logprobs(tokens, last_n=len(tokens) - view.spans[0].start)
    _check_snapshot(trajectory, result.snapshot_id)
    return view.pick(result.logprobs, f"trajectory {trajectory.name}")


def _scored(
    group: Group, digest: str, snapshot_id: str, answers: Iterator[tuple[Array, ...] | None]
) -> Group:
    return replace(
        group,
        trajectories=tuple(
            ScoredTrajectory(
                **_values(t),
                teacher_K=_or_own(t, next(answers)),
                hint_hash=digest,
                teacher_snapshot_id=snapshot_id,
            )
            for t in group.trajectories
        ),
    )


def _values(trajectory: Trajectory) -> dict[str, Any]:
    return {f.name: getattr(trajectory, f.name) for f in fields(Trajectory)}


def _or_own(trajectory: Trajectory, scores_K: tuple[Array, ...] | None) -> tuple[Array, ...]:
    return tuple(t.logprob_N for t in trajectory.turns) if scores_K is None else scores_K


def _rescored(trajectory: T, scores_K: tuple[Array, ...] | None) -> T:
    pairs = zip(trajectory.turns, _or_own(trajectory, scores_K), strict=True)
    turns = tuple(replace(turn, logprob_N=score_N) for turn, score_N in pairs)
    return replace(trajectory, turns=turns, logprobs="rescored")


def _spread(members_G: Sequence[Sequence[Trajectory]], sample: int) -> list[Trajectory]:
    """Up to `sample` trajectories with turns: the first of each group first."""
    longest = max((len(members) for members in members_G), default=0)
    in_turn = [m[i] for i in range(longest) for m in members_G if i < len(m) and m[i].turns]
    return in_turn[:sample]
