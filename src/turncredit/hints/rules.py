"""An analyser without a model: fixed rules over what a trajectory did and what that changed.

Our own reading, for policies too small to write about themselves and for tests; nobody published
it. A success is worth its list of commands, a failure the list of those that changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turncredit.core.types import Trajectory
from turncredit.hints.answers import Guidance, Reflection
from turncredit.hints.texts import ENDINGS, after, done, listed, outcome

_FRAME = 60  # characters of the fixed words around a list or an action


def reflect(trajectory: Trajectory, *, most: int, longest: int) -> Reflection:
    """What the rules say about one trajectory.

    A success: its commands in order; step skills at the turns that changed the state and whose
    answers brought most new words (earlier turns first among equals). A failure: its commands
    that changed nothing; step skills at the first turns that did.

    Args:
        trajectory: with at least one turn.
        most: step skills.
        longest: characters of each text.
    """
    summary = f"A {outcome(trajectory)} in {len(trajectory.turns)} turns."
    moved = [k for k in range(len(trajectory.turns)) if _changed(trajectory, k)]
    if trajectory.success:
        skill = f"What worked: {listed(done(trajectory.turns), longest - _FRAME)}."
        said = {k: _repeat(trajectory.turns[k].action or "") for k in _telling(trajectory, moved)}
    else:
        idle = [k for k in range(len(trajectory.turns)) if k not in moved]
        skill = _avoidance(trajectory, idle, longest)
        said = {k: _instead(trajectory.turns[k].action) for k in idle}
    fitting = [k for k, text in said.items() if len(text) <= longest][:most]
    return Reflection(summary, skill, {k: said[k] for k in sorted(fitting)})


def guide(
    successes: Sequence[Trajectory], failures: Sequence[Trajectory], *, most: int, longest: int
) -> Guidance:
    """Commands that tell the two apart: by the share of each side that ran them.

    Ordered by the difference of the shares, then by first appearance.
    """
    won = [dict.fromkeys(done(t.turns)) for t in successes]
    lost = [dict.fromkeys(done(t.turns)) for t in failures]

    def lead(action: str) -> float:
        return sum(action in own for own in won) / len(won) - sum(
            action in own for own in lost
        ) / len(lost)

    def chosen(sides: Sequence[dict[str, None]], by: Callable[[str], float]) -> tuple[str, ...]:
        seen = dict.fromkeys(action for own in sides for action in own)
        telling = [action for action in seen if by(action) > 0 and len(action) <= longest]
        return tuple(sorted(telling, key=by, reverse=True)[:most])

    return Guidance(chosen(won, lead), chosen(lost, lambda action: -lead(action)))


def _changed(trajectory: Trajectory, k: int) -> bool:
    """Turn k moved the world on: another state key, or another text where there are no keys."""
    turn, later = trajectory.turns[k], trajectory.turns[k + 1 :]
    if turn.action is None or not turn.admissible:
        return False
    if later and turn.state_key and later[0].state_key:
        return turn.state_key != later[0].state_key
    return (trajectory.success and not later) or after(trajectory, k) != turn.observation


def _telling(trajectory: Trajectory, turns: Sequence[int]) -> list[int]:
    """`turns`, those first whose answers brought most words not read before."""
    known = set(trajectory.opening.text.split())
    news: dict[int, int] = {}
    for k, turn in enumerate(trajectory.turns):
        known |= set(turn.observation.split())
        news[k] = len(set(after(trajectory, k).split()) - known)
    return sorted(turns, key=lambda k: -news[k])


def _avoidance(trajectory: Trajectory, idle: Sequence[int], longest: int) -> str:
    room = longest - _FRAME - len(ENDINGS[trajectory.stop])
    wasted = dict.fromkeys(trajectory.turns[k].action or "an output without action" for k in idle)
    what = "They changed nothing, avoid them" if wasted else "They were not enough"
    actions = list(wasted) or done(trajectory.turns)
    return f"In the end {ENDINGS[trajectory.stop]}. {what}: {listed(actions, room)}."


def _repeat(action: str) -> str:
    return f"The right action here is: {action}"


def _instead(action: str | None) -> str:
    if action is None:
        return "Give exactly one valid action here; anything else is a lost turn."
    return f"This changes nothing here, choose another action: {action}"
