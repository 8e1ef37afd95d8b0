"""A trajectory's own tokens, read again in the context the student had.

For the student's side of a gap, for the policy a KL penalty holds on to, and for the floor under
any evidence: scoring the same context twice should move nothing.
"""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from turncredit.core.clients import PickingClient, SamplingClient
from turncredit.core.errors import AlignmentError
from turncredit.core.tokens import TeacherView, teacher_view
from turncredit.core.types import REFERENCE, Array, Group, Ids, Trajectory
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


async def rescore(
    groups: Sequence[Group], client: SamplingClient, *, concurrency: int | Semaphore = 16
) -> list[Group]:
    """Replace the student's sampled log-probs by a full pass over the same tokens.

    The student side of a gap then comes from the same path as the teacher's, so what differs
    between decoding and scoring (in bf16 more than 0.05 nats a token) cancels.

    Raises:
        AlignmentError: another snapshot, or scores that do not match the tokens.
    """
    check_snapshots(groups, client)
    return await _each(groups, client, _rescored, concurrency)


async def refer(
    groups: Sequence[Group], client: SamplingClient, *, concurrency: int | Semaphore = 16
) -> list[Group]:
    """Add the log-probs of another policy (the initial one) as the stream `REFERENCE`."""
    return await _each(groups, client, _referred, concurrency)


async def null_control(
    groups: Sequence[Group],
    client: SamplingClient,
    *,
    sample: int = 8,
    concurrency: int | Semaphore = 16,
) -> NoiseReport:
    """Score some trajectories as the teacher would, but with the student's own prompt.

    Every gap should be 0; what is found instead is noise of the numbers, not evidence.

    Args:
        groups: with the student log-probs that credit will use.
        client: bound to the snapshot that sampled.
        sample: how many trajectories at most, taken in turn from each group.
        concurrency: requests in flight, or the slots they take.
    """
    check_snapshots(groups, client)
    chosen = _spread([group.trajectories for group in groups], sample)
    requests = [partial(scores, client, own_view(t), t) for t in chosen]
    answers = await bounded(requests, concurrency)
    gap_K = [
        score_N - turn.logprob_N
        for t, scores_K in zip(chosen, answers, strict=True)
        for turn, score_N in zip(t.turns, scores_K, strict=True)
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


def check_snapshots(groups: Sequence[Group], client: SamplingClient) -> None:
    """Refuse a client of other weights than those that sampled.

    Raises:
        AlignmentError: names the first trajectory of another snapshot.
    """
    for trajectory in (t for group in groups for t in group.trajectories):
        if trajectory.snapshot_id != client.snapshot_id:
            raise AlignmentError(
                f"trajectory {trajectory.name}: the teacher's snapshot",
                expected=trajectory.snapshot_id,
                got=client.snapshot_id,
            )


def own_prompt(trajectory: Trajectory) -> list[int]:
    """The ids the student's first action followed."""
    return trajectory.tokens[: trajectory.prompt_length].tolist()


def own_view(trajectory: Trajectory) -> TeacherView:
    """The student's own reading of a trajectory."""
    return teacher_view(trajectory, own_prompt(trajectory))


async def scores(
    client: SamplingClient, view: TeacherView, trajectory: Trajectory
) -> tuple[Array, ...]:
    """Per turn of `view` the scores of its tokens, by one request; none without turns.

    Raises:
        AlignmentError: the answer is of another snapshot, or does not match the tokens.
    """
    if not view.spans:
        return ()
    tokens: Ids = view.tokens.tolist()
    if isinstance(client, PickingClient):
        result = await client.pick_logprobs(tokens, view.places())
    else:
        result = await client.compute_logprobs(tokens, last_n=len(tokens) - view.spans[0].start)
    if result.snapshot_id != client.snapshot_id:
        raise AlignmentError(
            f"trajectory {trajectory.name}: the scoring snapshot",
            expected=client.snapshot_id,
            got=result.snapshot_id,
        )
    return view.pick(result.logprobs, f"trajectory {trajectory.name}")


async def _each(
    groups: Sequence[Group], client, change, concurrency: int | Semaphore
) -> list[Group]:
    members = [t for group in groups for t in group.trajectories]
    requests = [partial(scores, client, own_view(t), t) for t in members]
    answers = iter(await bounded(requests, concurrency))
    return [
        replace(group, trajectories=tuple(change(t, next(answers)) for t in group.trajectories))
        for group in groups
    ]


def _rescored(trajectory: T, scores_K: tuple[Array, ...]) -> T:
    pairs = zip(trajectory.turns, scores_K, strict=True)
    turns = tuple(replace(turn, logprob_N=score_N) for turn, score_N in pairs)
    return replace(trajectory, turns=turns, logprobs="rescored")


def _referred(trajectory: T, scores_K: tuple[Array, ...]) -> T:
    return replace(trajectory, streams={**trajectory.streams, REFERENCE: scores_K})


def _spread(members_G: Sequence[Sequence[Trajectory]], sample: int) -> list[Trajectory]:
    """Up to `sample` trajectories with turns: the first of each group first."""
    longest = max((len(members) for members in members_G), default=0)
    in_turn = [m[i] for i in range(longest) for m in members_G if i < len(m) and m[i].turns]
    return in_turn[:sample]
