"""Two experts that win every solvable game.

`ExploringExpert` reads what any player reads, the last text and the admissible commands, and
remembers it: it may be asked at any point of any play, also after commands that were not its
own, so it labels states as well as it demonstrates. `solve` is the same player told beforehand
where everything is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random
from typing import Protocol

from turncredit.envs.household import rooms
from turncredit.envs.household.aims import Aim, aim_of, kind_of
from turncredit.envs.household.engine import Game

_LISTED = re.compile(r"(?:On the (\S+ \d+)|The (\S+ \d+) is open\. In it), you see ([^.]*)\.")
_ITEM = re.compile(r"a (\S+ \d+)")
_DONE = re.compile(r"You (heat|cool|clean) the (\S+ \d+) using")
_TAKEN = re.compile(r"You pick up the (\S+ \d+) from the (\S+ \d+)\.")
_MOVED = re.compile(r"You move the (\S+ \d+) to the (\S+ \d+)\.")
_UNDOES = {"heat": "cool", "cool": "heat"}
_FITS = {
    receptacle.lower(): frozenset(kind.lower() for kind in kinds)
    for receptacle, kinds in rooms.CAN_CONTAIN.items()
}
_OPENABLE = frozenset(kind.lower() for kind in rooms.OPENABLE)
_LAMP_STANDS = frozenset(kind.lower() for kind in rooms.LAMP_STANDS)
_LONGEST = 100  # no walkthrough comes near; a bound, so that a hopeless game ends


class Seen(Protocol):
    """What a player sees of a play in progress."""

    @property
    def text(self) -> str:
        """The last answer of the game."""
        ...

    @property
    def admissible(self) -> tuple[str, ...]:
        """The commands that would do something."""
        ...


class View:
    """The admissible commands, sorted by what they say about the place and the hand."""

    def __init__(self, admissible: Iterable[str], receptacles: Iterable[str]) -> None:
        self.away: list[str] = []
        self.here: list[str] = []
        self.closed: list[str] = []
        self.held = ""
        self.takes: dict[str, str] = {}  # object -> receptacle
        self.moves: list[str] = []
        self.uses: list[str] = []
        self.treatments: dict[str, str] = {}  # verb -> whole command
        for command in admissible:
            self._sort(command, receptacles)

    def _sort(self, command: str, receptacles: Iterable[str]) -> None:
        verb, _, rest = command.partition(" ")
        if verb == "go":
            self.away.append(rest.removeprefix("to "))
        elif verb == "examine":
            if rest in receptacles:
                self.here.append(rest)
            else:
                self.held = rest
        elif verb == "take":
            thing, _, source = rest.partition(" from ")
            self.takes[thing] = source
        elif verb == "move":
            self.moves.append(rest.partition(" to ")[2])
        elif verb == "open":
            self.closed.append(rest)
        elif verb == "use":
            self.uses.append(rest)
        elif verb in ("heat", "cool", "clean"):
            self.treatments[verb] = command


class ExploringExpert:
    """Plays from what it has seen; searches the rest in an order drawn from `seed`.

    It first looks where things of the wanted type may lie, then anywhere.
    """

    def __init__(self, game: Game, seed: int = 0) -> None:
        self.aim: Aim = aim_of(game.goal)
        self._order = list(game.receptacle_names)  # the opening text lists them
        Random(f"expert|{seed}").shuffle(self._order)
        self._rank = {name: i for i, name in enumerate(self._order)}
        self.contents: dict[str, list[str]] = {}  # receptacle -> things last seen there
        self._open: dict[str, bool] = {}
        self._treated: set[tuple[str, str]] = set()
        self._origin: dict[str, str] = {}
        self._refused: set[tuple[str, str]] = set()  # (kind of thing, receptacle)

    def act(self, play: Seen) -> str:
        """The best next command in this state, given everything shown so far."""
        view = self.observe(play)
        if view.held:
            wanted = kind_of(view.held) == self.aim.target
            return self._use_target(view) if wanted else self._put_down(view)
        return self._fetch(view)

    def observe(self, play: Seen) -> View:
        """Remember what this state shows. `act` does it too; call it for states not acted in."""
        view = View(play.admissible, self._rank)
        self._read(play.text)
        for name in view.here:
            self._open[name] = name not in view.closed
            if not view.held and self._open[name]:
                fixed = [o for o in self.contents.get(name, ()) if kind_of(o) == self.aim.lamp]
                self.contents[name] = fixed + [o for o, r in view.takes.items() if r == name]
            if view.held and self._open[name] and name not in view.moves:
                self._refused.add((kind_of(view.held), name))
        for lamp in view.uses:
            if view.here and not any(lamp in things for things in self.contents.values()):
                self.contents.setdefault(view.here[0], []).append(lamp)
        if view.held:
            self._forget(view.held)
        return view

    def told(self, receptacle: str, things: Iterable[str], *, is_open: bool) -> None:
        """Know a receptacle without having seen it."""
        self.contents[receptacle] = list(things)
        self._open[receptacle] = is_open

    def _read(self, text: str) -> None:
        if match := _LISTED.search(text):
            self.contents[match[1] or match[2]] = _ITEM.findall(match[3])
        elif match := _TAKEN.match(text):
            self._origin[match[1]] = match[2]
        elif match := _MOVED.match(text):
            self._forget(match[1])
            self.contents.setdefault(match[2], []).append(match[1])
        elif match := _DONE.match(text):
            self._treated.add((match[1], match[2]))
            self._treated.discard((_UNDOES.get(match[1], ""), match[2]))

    def _forget(self, thing: str) -> None:
        for things in self.contents.values():
            if thing in things:
                things.remove(thing)

    # ── with empty hands ─────────────────────────────────────────────────────────────────────

    def _fetch(self, view: View) -> str:
        settled = self._settled()
        homes = {
            name: thing
            for name, things in self.contents.items()
            for thing in things
            if kind_of(thing) == self.aim.target and name != settled
        }
        if not homes:
            return self._search(view, self.aim.target)
        name = min(homes, key=lambda r: (self._cost(r, view) + self._detour(r), self._rank[r]))
        if homes[name] in view.takes:
            return f"take {homes[name]} from {view.takes[homes[name]]}"
        return self._approach(name, view)

    def _settled(self) -> str:
        """The receptacle whose targets already count towards the goal, or an empty string."""
        best, most = "", 0
        for name, things in self.contents.items():
            if kind_of(name) == self.aim.receptacle and self.aim.copies > 1:
                count = sum(kind_of(thing) == self.aim.target for thing in things)
                if count > most:
                    best, most = name, count
        return best

    def _search(self, view: View, kind: str) -> str:
        unseen = [name for name in self._order if name not in self.contents]
        if not unseen:  # something moved unseen: look again everywhere
            self.contents.clear()
            unseen = list(self._order)
        name = min(unseen, key=lambda r: (r not in view.here, self._doubt(r, kind)))
        if name in view.here and name not in view.closed:
            return f"examine {name}"
        return self._approach(name, view)

    def _doubt(self, receptacle: str, kind: str) -> int:
        """How unlikely a thing of this kind is to be found there; ties keep the search order."""
        where = kind_of(receptacle)
        if kind == self.aim.lamp:
            return 0 if where in _LAMP_STANDS else 1
        if kind not in _FITS.get(where, (kind,)):
            return 2
        return 1 if where == self.aim.receptacle else 0

    # ── with something in hand ───────────────────────────────────────────────────────────────

    def _use_target(self, view: View) -> str:
        verb, tool = self.aim.verb, self.aim.tool
        if verb and (verb, view.held) not in self._treated:
            return view.treatments.get(verb) or self._go_to_kind(tool, view)
        if self.aim.lamp:
            return self._use_lamp(view)
        settled = self._settled()
        name = settled or self._nearest(self.aim.receptacle, view)
        if name in view.moves:
            return f"move {view.held} to {name}"
        return self._approach(name, view)

    def _use_lamp(self, view: View) -> str:
        for lamp in view.uses:
            if kind_of(lamp) == self.aim.lamp:
                return f"use {lamp}"
        stands = [r for r, things in self.contents.items() if self.aim.lamp in map(kind_of, things)]
        if not stands:
            return self._search(view, self.aim.lamp)
        return self._approach(min(stands, key=self._rank.__getitem__), view)

    def _put_down(self, view: View) -> str:
        origin = self._origin.get(view.held, "")
        if view.moves:
            return f"move {view.held} to {origin if origin in view.moves else view.moves[0]}"
        kind = kind_of(view.held)
        places = [r for r in self._order if (kind, r) not in self._refused] or self._order
        fits = [r for r in places if kind in _FITS.get(kind_of(r), ())]
        if origin in places:
            return self._approach(origin, view)
        return self._approach(min(fits or places, key=lambda r: self._cost(r, view)), view)

    # ── getting about ────────────────────────────────────────────────────────────────────────

    def _go_to_kind(self, kind: str, view: View) -> str:
        name = self._nearest(kind, view)
        return f"go to {name}" if name in view.away else "look"

    def _nearest(self, kind: str, view: View) -> str:
        names = [name for name in self._order if kind_of(name) == kind]
        return min(names, key=lambda r: self._cost(r, view), default="")

    def _approach(self, name: str, view: View) -> str:
        if name in view.closed:
            return f"open {name}"
        return f"go to {name}" if name in view.away else "look"

    def _cost(self, name: str, view: View) -> int:
        """Turns until its inside is at hand, as far as is known."""
        is_open = self._open.get(name, kind_of(name) not in _OPENABLE)
        return (name not in view.here) + (not is_open)

    def _detour(self, name: str) -> int:
        """1 when the target's treatment or lamp is known to be elsewhere than `name`."""
        if self.aim.verb:
            return int(kind_of(name) != self.aim.tool)
        if self.aim.lamp:
            return int(self.aim.lamp not in map(kind_of, self.contents.get(name, ())))
        return 0


def solve(game: Game) -> list[str]:
    """A short walkthrough, found with full knowledge; empty when the game cannot be won so."""
    play, expert = game.play(), ExploringExpert(game)
    for receptacle in game.receptacle_names:
        expert.told(receptacle, play.contents(receptacle), is_open=not play.is_shut(receptacle))
    commands: list[str] = []
    while not play.won:
        if len(commands) == _LONGEST:
            return []
        commands.append(expert.act(play))
        play.act(commands[-1])
    return commands
