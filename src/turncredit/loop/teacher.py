"""The student's own tokens, scored again with privileged text among what it saw.

What the teacher reads is put together in `loop.reading`; one request per look at a trajectory.
"""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from hashlib import sha256

import numpy as np

from turncredit.core.clients import DistributionClient, SamplingClient
from turncredit.core.datum import Distribution
from turncredit.core.errors import BackendError
from turncredit.core.tokens import TeacherView
from turncredit.core.types import Array, Group, ScoredTrajectory, Trajectory
from turncredit.loop.concurrency import bounded
from turncredit.loop.reading import Reading, Readings
from turncredit.loop.rescoring import check_snapshots, scores


async def score(
    groups: Sequence[Group],
    readings: Sequence[Sequence[Readings]],
    client: SamplingClient,
    *,
    concurrency: int | Semaphore = 16,
    same_snapshot: bool = True,
) -> list[Group]:
    """Give every trajectory the teacher's log-probs: `Group`s of `ScoredTrajectory`.

    A turn that no look covers gets the student's own log-probs, so its gap is exactly 0; a
    trajectory without any look also has an empty `hint_hash` (`unhinted` counts these).

    Args:
        groups: as sampled.
        readings: what `reading.read` made of them.
        client: the teacher.
        concurrency: requests in flight, or the slots they take.
        same_snapshot: the teacher must be the snapshot that sampled.

    Raises:
        AlignmentError: another snapshot, or scores that do not match the tokens.
    """
    if same_snapshot:
        check_snapshots(groups, client)
    requests = [
        partial(scores, client, reading.view, trajectory)
        for _, trajectory, mine in _members(groups, readings)
        for reading in mine
    ]
    answers = iter(await bounded(requests, concurrency))
    members = iter(
        _scored(trajectory, mine, [next(answers) for _ in mine], client.snapshot_id)
        for _, trajectory, mine in _members(groups, readings)
    )
    return [replace(g, trajectories=tuple(next(members) for _ in g.trajectories)) for g in groups]


def nobody_looked(groups: Sequence[Group]) -> list[Group]:
    """Scored groups without a teacher: every gap is 0. For updates the teacher takes no part in."""
    return [
        replace(g, trajectories=tuple(_scored(t, (), [], "") for t in g.trajectories))
        for g in groups
    ]


async def distributions(
    groups: Sequence[Group],
    readings: Sequence[Sequence[Readings]],
    client: SamplingClient,
    *,
    k: int,
    temperature: float = 1.0,
    concurrency: int | Semaphore = 16,
) -> list[list[Distribution | None]]:
    """The teacher's distribution at every action token, in the layout of the student's rows.

    Args:
        groups: as sampled.
        readings: what `reading.read` made of them; of several looks at a turn the first counts.
        client: the teacher; a `DistributionClient`.
        k: likeliest tokens kept; below 0 the whole vocabulary.
        temperature: divides the logits.
        concurrency: requests in flight, or the slots they take.

    Returns:
        Per group and member (T, k), NaN where nobody looked; None without any look.
    """
    if not isinstance(client, DistributionClient):
        raise BackendError("the teacher's backend gives no distributions over the vocabulary")
    plan = list(_members(groups, readings))

    async def ask(view: TeacherView) -> Distribution:
        tokens = view.tokens.tolist()
        last_n = len(tokens) - view.spans[0].start
        return await client.distribution(tokens, last_n=last_n, k=k, temperature=temperature)

    requests = [partial(ask, r.view) for _, _, mine in plan for r in mine if r.turns]
    answers = iter(await bounded(requests, concurrency))
    out: list[list[Distribution | None]] = [[] for _ in groups]
    for g, trajectory, mine in plan:
        found = [(r, next(answers)) for r in mine if r.turns]
        out[g].append(_merged(trajectory, found) if found else None)
    return out


def unhinted(groups: Sequence[Group]) -> int:
    """How many scored trajectories had no hint, hence no teacher's signal."""
    members = (t for group in groups for t in group.trajectories)
    return sum(isinstance(t, ScoredTrajectory) and not t.hint_hash for t in members)


def mean_gap(groups: Sequence[Group]) -> float | None:
    """Mean absolute gap of the action tokens of members that were looked at, nats; None: nobody."""
    gaps = [
        np.abs(gap_N)
        for group in groups
        for t in group.trajectories
        if isinstance(t, ScoredTrajectory) and t.hint_hash
        for gap_N in t.gap_K
    ]
    size = np.concatenate([np.zeros(0), *gaps])
    return float(size.mean()) if size.size else None


# ── putting together ─────────────────────────────────────────────────────────────────────────


def _members(
    groups: Sequence[Group], readings: Sequence[Sequence[Readings]]
) -> Iterator[tuple[int, Trajectory, Readings]]:
    for g, (group, mine_G) in enumerate(zip(groups, readings, strict=True)):
        for trajectory, mine in zip(group.trajectories, mine_G, strict=True):
            yield g, trajectory, mine


def _scored(
    trajectory: Trajectory,
    readings: Readings,
    scores_L: Sequence[tuple[Array, ...]],
    snapshot_id: str,
) -> ScoredTrajectory:
    values = {f.name: getattr(trajectory, f.name) for f in fields(Trajectory)}
    named = list(dict.fromkeys(r.look.name for r in readings if r.look.name))
    streams = {name: _first_of(trajectory, readings, scores_L, name) for name in named}
    values["streams"] = {**trajectory.streams, **streams}
    texts = [insertion.text for r in readings for insertion in r.look.insertions]
    return ScoredTrajectory(
        **values,
        teacher_K=_first_of(trajectory, readings, scores_L, None),
        hint_hash=sha256("\x1f".join(texts).encode()).hexdigest() if texts else "",
        teacher_snapshot_id=snapshot_id,
    )


def _first_of(
    trajectory: Trajectory,
    readings: Readings,
    scores_L: Sequence[tuple[Array, ...]],
    name: str | None,
) -> tuple[Array, ...]:
    """Per turn the scores of the first look (called `name`) that covers it, else the student's."""
    found: dict[int, Array] = {}
    for reading, scores_K in zip(readings, scores_L, strict=True):
        if name is None or reading.look.name == name:
            for k, score_N in zip(reading.turns, scores_K, strict=True):
                found.setdefault(k, score_N)
    return tuple(found.get(k, turn.logprob_N) for k, turn in enumerate(trajectory.turns))


def _merged(trajectory: Trajectory, found: Sequence[tuple[Reading, Distribution]]) -> Distribution:
    """Distributions moved from the teacher's positions to the student's."""
    width = found[0][1].ids.shape[1]
    ids = np.zeros((len(trajectory.tokens), width), np.int64)
    logprobs = np.full((len(trajectory.tokens), width), np.nan, np.float32)
    for reading, given in reversed(found):  # the first look is written last, and stays
        for k, span in zip(reading.turns, reading.view.spans, strict=True):
            turn = trajectory.turns[k]
            ids[turn.start : turn.stop] = given.ids[span.start : span.stop]
            logprobs[turn.start : turn.stop] = given.logprobs[span.start : span.stop]
    return Distribution(ids, logprobs)
