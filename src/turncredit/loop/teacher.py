"""The student's own tokens, scored again with privileged text among what it saw.

The teacher reads exactly what the student read and wrote, with insertions: a hint in front, or
before single turns. One request per look at a trajectory; nothing is cut or tokenised again.
"""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import sha256

import numpy as np

from turncredit.core.datum import Distribution
from turncredit.core.errors import AlignmentError, BackendError, ConfigError
from turncredit.core.leaks import leak
from turncredit.core.looks import FRONT, Hint, Insertion, Look, LookingHint, Place
from turncredit.core.protocols import DistributionClient, SamplingClient
from turncredit.core.tokens import TeacherView, teacher_view
from turncredit.core.types import Array, Group, ScoredTrajectory, Trajectory
from turncredit.loop.chat import Chat
from turncredit.loop.concurrency import bounded
from turncredit.loop.rescoring import check_snapshots, own_prompt, scores

AnyHint = Hint | LookingHint


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at one trajectory, in tokens.

    Attributes:
        look: what was asked for.
        turns: the turns it judges, ascending.
        view: what the teacher reads.
    """

    look: Look
    turns: tuple[int, ...]
    view: TeacherView


Readings = tuple[Reading, ...]


def read(
    groups: Sequence[Group],
    hint: AnyHint,
    chat: Chat,
    *,
    max_tokens: int,
    front: Place = "system",
) -> list[list[Readings]]:
    """What the teacher will read: per group and member its looks, in tokens.

    Args:
        groups: as sampled.
        hint: the privileged text; a source that prepares has done so.
        chat: the form the student saw; its prompt is built again and compared.
        max_tokens: longest sequence the teacher may read (trajectory budget plus reserve).
        front: where the text of a plain hint stands. A teacher that was trained under a hint
            reads it where it acted with it: "opening".

    Raises:
        ConfigError: a hinted trajectory is longer than `max_tokens` (never cut), a hint is empty,
            or one shows the future though its source denies it.
        AlignmentError: another prompt than the student's.
    """
    enforced = isinstance(hint, LookingHint) and not hint.sees_future
    return [
        [
            _readings(trajectory, looks, chat, max_tokens, enforced=enforced)
            for trajectory, looks in zip(
                group.trajectories, looks_at(group, hint, front), strict=True
            )
        ]
        for group in groups
    ]


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
        readings: what `read` made of them.
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
        readings: what `read` made of them; of several looks at a turn the first counts.
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


# ── looks ────────────────────────────────────────────────────────────────────────────────────


def looks_at(group: Group, hint: AnyHint, front: Place = "system") -> list[tuple[Look, ...]]:
    """The looks at each member; a plain hint is one look with its text in `front`.

    Raises:
        ConfigError: an empty hint, or looks for another number of members.
    """
    if not group.trajectories:
        return []
    if isinstance(hint, LookingHint):
        given = list(hint.looks(group))
        if lone := [mine for mine in given if isinstance(mine, Look)]:
            raise ConfigError(
                f"looks(group) of the hint gave {lone[0]!r} for a member; give a list of looks, "
                "possibly empty, for each"
            )
        looks = [tuple(mine) for mine in given]
        if len(looks) != len(group.trajectories):
            raise AlignmentError(
                f"group {group.task.id}, looks of the hint source",
                expected=f"one entry for each of {len(group.trajectories)} members",
                got=len(looks),
            )
        return looks
    text = hint.text(group.task, group)
    if text is None:
        return [()] * len(group.trajectories)
    if not text.strip():
        raise ConfigError(
            f"the hint for task {group.task.id} is empty; a source with nothing to say returns None"
        )
    return [(Look((Insertion(text, front),)),)] * len(group.trajectories)


def _readings(
    trajectory: Trajectory, looks: Sequence[Look], chat: Chat, max_tokens: int, *, enforced: bool
) -> Readings:
    if not looks or not trajectory.turns:
        return ()
    if enforced and (found := leak(trajectory, looks)):
        raise ConfigError(
            f"{found}. A source that means to show the future says so (sees_future = True)"
        )
    again = chat.prompt(trajectory.task, trajectory.opening)
    if again != (own := own_prompt(trajectory)):
        raise AlignmentError(
            f"trajectory {trajectory.name}: the prompt rendered again", expected=own, got=again
        )
    return tuple(_reading(trajectory, look, chat, max_tokens) for look in looks)


def _reading(trajectory: Trajectory, look: Look, chat: Chat, max_tokens: int) -> Reading:
    count = len(trajectory.turns)
    turns = tuple(range(count)) if look.turns is None else tuple(sorted(set(look.turns)))
    places = [i.at for i in look.insertions if isinstance(i.at, int)]
    if outside := [k for k in (*turns, *places) if not 0 <= k < count]:
        raise AlignmentError(
            f"trajectory {trajectory.name}, a look", expected=f"turns below {count}", got=outside
        )
    text: dict[Place, str] = {}
    for i in look.insertions:
        text[i.at] = f"{text[i.at]}\n\n{i.text.strip()}" if i.at in text else i.text.strip()
    opening = trajectory.opening
    if "opening" in text:
        opening = replace(opening, text=FRONT.format(text["opening"]) + opening.text)
    prompt = chat.prompt(trajectory.task, opening, hint=text.get("system"), step=text.get(0))
    later = dict(chat.step_insertion(trajectory, k, text[k]) for k in {*places} if k > 0)
    view = teacher_view(trajectory, prompt, later, turns)
    if (length := len(view.tokens)) > max_tokens:
        own = trajectory.turns[turns[-1]].stop if turns else len(trajectory.tokens)
        raise ConfigError(
            f"trajectory {trajectory.name}: the teacher would read {length} tokens "
            f"({own} of the trajectory, {length - own} of the hint), "
            f"more than its {max_tokens}; raise --teacher-reserve-tokens, or use a shorter hint"
        )
    return Reading(look, turns, view)


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
