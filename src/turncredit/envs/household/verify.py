"""Holds our engine equal to another one, step for step, under random mixed commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from turncredit.envs.household import files
from turncredit.envs.household.engine import Play
from turncredit.envs.household.episode import Frame, Player

# Commands that change the world; the others would dominate a uniform draw.
_DOING = ("take", "move", "open", "close", "use", "heat", "clean", "cool", "slice")
_NONSENSE = (
    "take nothing",
    "",
    "LOOK",
    "go to",
    "go to  fridge 1",
    "put mug 1 in/on desk 1",
    "open agent1",
    "examine me",
    "look around",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two records of one game part."""

    game: str
    step: int
    command: str | None
    what: str
    ours: object
    theirs: object

    def __str__(self) -> str:
        return (
            f"{self.game}: step {self.step} ({self.command!r}), {self.what}\n"
            f"  ours:   {self.ours!r}\n  theirs: {self.theirs!r}"
        )


class MixedCommands:
    """A reproducible mix: the walkthrough's, world-changing, any admissible, and nonsense ones."""

    def __init__(self, rng: Random, walkthrough: Sequence[str] = ()) -> None:
        self._rng, self._walkthrough = rng, list(walkthrough)

    def __call__(self, admissible: Sequence[str]) -> str:
        """The next command, given what is admissible now."""
        rng, draw = self._rng, self._rng.random()
        if self._walkthrough and self._walkthrough[0] in admissible and draw < 0.25:
            return self._walkthrough.pop(0)
        doing = [command for command in admissible if command.split()[0] in _DOING]
        if doing and draw < 0.65:
            return rng.choice(doing)
        if draw > 0.93:
            return self._wrong(admissible)
        return rng.choice(admissible)

    def _wrong(self, admissible: Sequence[str]) -> str:
        """Nonsense, or an admissible command bent a little; sometimes only padded (still right)."""
        rng = self._rng
        bent = rng.choice(admissible)
        return rng.choice(
            (rng.choice(_NONSENSE), f"  {bent} ", bent.title(), f"{bent} 1", bent[:-1])
        )


@dataclass(slots=True)
class Tally:
    """What was compared so far."""

    games: int = 0
    steps: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    def count(self, command: str) -> None:
        """One more step, of this command's kind."""
        self.steps += 1
        kind = command.split()[0] if command.split() else "(empty)"
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def add(self, other: Tally) -> None:
        """Take in what `other` compared."""
        self.games += other.games
        self.steps += other.steps
        for kind, number in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + number
        self.differences += other.differences


async def compare(
    name: str, loaded: files.LoadedGame, theirs: Player, rng: Random, steps: int, tally: Tally
) -> None:
    """Play one game on both engines with the same random commands; stops at a difference.

    `theirs` is a fresh player of the same game; it is closed here. Both engines go on after the
    goal is reached, for `steps` commands. Counts and differences are added to `tally`.
    """
    play, choose = loaded.game.play(), MixedCommands(rng, loaded.walkthrough)
    tally.games += 1
    try:
        frame, command = await theirs.open(), None
        for step in range(steps + 1):
            if step:
                command = choose(play.admissible)
                play.act(command)
                frame = await theirs.act(command)
                tally.count(command)
            if found := difference(name, step, command, play, frame):
                tally.differences.append(found)
                return
    finally:
        await theirs.close()


def difference(
    name: str, step: int, command: str | None, play: Play, theirs: Frame
) -> Difference | None:
    """How what our play shows now differs from a frame of another engine, or None."""
    if play.text != theirs.text:
        return Difference(name, step, command, "observation", play.text, theirs.text)
    if play.admissible != theirs.admissible:
        ours_only = sorted(set(play.admissible) - set(theirs.admissible))
        theirs_only = sorted(set(theirs.admissible) - set(play.admissible))
        return Difference(
            name, step, command, "admissible, only one side has", ours_only, theirs_only
        )
    if play.won != theirs.won:
        return Difference(name, step, command, "won", play.won, theirs.won)
    return None
