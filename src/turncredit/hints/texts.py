"""Trajectories in words, within a number of characters: whole parts only, gaps counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turncredit.core.errors import ConfigError
from turncredit.core.types import StopReason, Trajectory, Turn

ENDINGS = {
    StopReason.SUCCESS: "the goal was reached",
    StopReason.FAILED: "the episode ended without reaching the goal",
    StopReason.MAX_TURNS: "no turn was left",
    StopReason.TRAJECTORY_TOKENS: "no room was left for another turn",
    StopReason.ACTION_TOKENS: "an output was too long",
    StopReason.ENV_ERROR: "the environment broke",
}
_TURNS_LEFT_OUT = "({count} turns left out here)"


@dataclass(frozen=True, slots=True)
class Transcript:
    """A trajectory in words.

    Attributes:
        text: turns `[turn 0]`, `[turn 1]`, ... with what was seen and done.
        shown: the turns that are in it.
    """

    text: str
    shown: frozenset[int]


def check_at_least(least: int, **values: int) -> None:
    """Refuse settings below `least`.

    Raises:
        ConfigError: one is.
    """
    for name, value in values.items():
        if value < least:
            raise ConfigError(f"{name} is {value}; use at least {least}")


def outcome(trajectory: Trajectory) -> str:
    """The label an analyser is given: "success" or "failure"."""
    return "success" if trajectory.success else "failure"


def done(turns: Sequence[Turn]) -> list[str]:
    """The commands the environment carried out, in order."""
    return [turn.action for turn in turns if turn.action is not None and turn.admissible]


def after(trajectory: Trajectory, k: int) -> str:
    """What the environment answered to turn k."""
    later = trajectory.turns[k + 1 :]
    return later[0].observation if later else trajectory.final_observation


def ends(sizes: Sequence[int], room: int) -> tuple[int, int]:
    """Which parts fit: [0, head) and [tail, n), taken from both ends in turn, front first.

    Args:
        sizes: of the n parts.
        room: what the kept ones may add up to.

    Returns:
        (head, tail), equal when all fit.
    """
    head, tail = 0, len(sizes)
    while head < tail:
        front_next = head <= len(sizes) - tail
        order = (head, tail - 1) if front_next else (tail - 1, head)
        fitting = [i for i in order if sizes[i] <= room]
        if not fitting:
            break
        room -= sizes[fitting[0]]
        if fitting[0] == head:
            head += 1
        else:
            tail -= 1
    return head, tail


def within(parts: Sequence[str], limit: int, gap: str) -> tuple[list[str], frozenset[int]]:
    """The parts that fit in `limit` characters, one line break each; the middle gives way.

    Args:
        parts: whole or not at all.
        limit: characters of everything returned, line breaks included.
        gap: stands for what was left out, e.g. "({count} turns left out)".

    Returns:
        The lines, and the indices of the parts among them: none when no part fits.
    """
    sizes = [len(part) + 1 for part in parts]
    if sum(sizes) <= limit:
        return list(parts), frozenset(range(len(parts)))
    head, tail = ends(sizes, limit - len(gap.format(count=len(parts))) - 1)
    if (head, tail) == (0, len(parts)):
        return [], frozenset()
    missing = gap.format(count=tail - head)
    shown = frozenset(range(head)) | frozenset(range(tail, len(parts)))
    return [*parts[:head], missing, *parts[tail:]], shown


def transcript(trajectory: Trajectory, limit: int) -> Transcript:
    """The turns, numbered from 0, that fit in `limit` characters. Empty when none does."""
    last = len(trajectory.turns) - 1
    parts = [_turn(k, turn) for k, turn in enumerate(trajectory.turns)]
    if parts and trajectory.final_observation:
        parts[last] += f"\nSeen at the end: {trajectory.final_observation.strip()}"
    lines, shown = within(parts, limit, _TURNS_LEFT_OUT)
    return Transcript("\n".join(lines), shown)


def _turn(k: int, turn: Turn) -> str:
    if turn.action is None:
        did = "nothing (the output held no valid action)"
    else:
        did = turn.action if turn.admissible else f"{turn.action} (not possible, nothing happened)"
    return f"[turn {k}]\nSeen: {turn.observation.strip()}\nDone: {did}"


def listed(actions: Sequence[str], limit: int) -> str:
    """`a; b; c` in `limit` characters, whole actions only: `a; (7 more); c`."""
    lines, _ = within([f"{action};" for action in actions], limit, "({count} more);")
    return " ".join(lines).removesuffix(";") or f"({len(actions)} actions)"
