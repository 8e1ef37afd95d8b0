"""What a teacher will read: the student's own tokens, with privileged text among them.

A hint stands in front, or before single turns; nothing is cut or tokenised again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from turncredit.core.errors import AlignmentError, ConfigError
from turncredit.core.leaks import leak
from turncredit.core.looks import FRONT, Hint, Insertion, Look, LookingHint, Place
from turncredit.core.tokens import TeacherView, teacher_view
from turncredit.core.types import Group, Trajectory
from turncredit.loop.chat import Chat
from turncredit.loop.rescoring import own_prompt

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
        max_tokens: longest sequence the teacher may read (trajectory budget plus reserve, as far
            as the model reads).
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
            f"more than its {max_tokens}; raise --teacher-reserve-tokens (lower "
            "--max-trajectory-tokens where the model reads no more), or use a shorter hint"
        )
    return Reading(look, turns, view)
