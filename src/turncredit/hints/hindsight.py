"""Hindsight from the group itself: how a peer succeeded, or only how this attempt ended.

A failed trajectory is read again with the commands of the shortest success of its group, when
there is one; any other with its own final correctness alone. The text stands before each turn
(after StepOPSD, whose code is not public: wording and bounds are our reading), or once in front.

It tells the outcome, so the teacher always knows how the trajectory ended. What the trajectory
itself was shown later it does not tell, unless `peer_observations` is on: a peer walks through the
same world, so its observations may be this one's own future, and `sees_future` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from turncredit.core.looks import Insertion, Look
from turncredit.core.settings import setting
from turncredit.core.types import Group, Trajectory
from turncredit.hints.texts import after, check_at_least, within

SUCCEEDED = "This attempt is known to end in success."
FAILED = "This attempt is known to end in failure."
_PEER = "Another attempt at the same task succeeded like this:"
_LEFT_OUT = "({count} actions left out here)"


@dataclass(frozen=True)
class Config:
    """Where the hindsight stands, and how much of it."""

    where: Literal["each_turn", "front"] = setting(
        "each_turn", "before each turn, or once at the front of the system message"
    )
    peer_chars: int = setting(
        600, "characters of a peer's actions in one text; whole ones leave from the middle"
    )
    peer_observations: bool = setting(False, "show what the peer's actions led to as well")

    def __post_init__(self) -> None:
        check_at_least(len(_LEFT_OUT) + 10, peer_chars=self.peer_chars)


class Hindsight:
    """The source. One look, so one request, a trajectory."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.sees_future = config.peer_observations

    def looks(self, group: Group) -> Sequence[Sequence[Look]]:
        """One look a member, judging all of its turns; none for a member without turns."""
        peer = shortest_success(group)
        told = "" if peer is None else f"\n{_PEER}\n{self._actions(peer)}"
        return [
            [self._look(t, SUCCEEDED if t.success else FAILED + told)] if t.turns else []
            for t in group.trajectories
        ]

    def _look(self, trajectory: Trajectory, text: str) -> Look:
        if self._config.where == "front":
            return Look((Insertion(text),))
        return Look(tuple(Insertion(text, k) for k in range(len(trajectory.turns))))

    def _actions(self, peer: Trajectory) -> str:
        """The peer's commands that were carried out, numbered; as many as fit."""
        moves = [
            (turn.action, after(peer, k))
            for k, turn in enumerate(peer.turns)
            if turn.action is not None and turn.admissible
        ]
        lines = [
            f"{n}. {action}" + (f" -> {answer.strip()}" if self._config.peer_observations else "")
            for n, (action, answer) in enumerate(moves, start=1)
        ]
        kept, shown = within(lines, self._config.peer_chars, _LEFT_OUT)
        return "\n".join(kept) if shown else _LEFT_OUT.format(count=len(lines))


def shortest_success(group: Group) -> Trajectory | None:
    """The success with the fewest turns (the first member of several), if there is one."""
    won = [t for t in group.trajectories if t.success]
    return min(won, key=lambda t: (len(t.turns), t.member), default=None)


def create(config: Config) -> Hindsight:
    """The hint source."""
    return Hindsight(config)
