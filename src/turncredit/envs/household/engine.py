"""The ALFWorld text domain in pure Python: `Game` (fixed, shared) and `Play` (one run of it).

Text, admissible commands and `won` are byte-identical to TextWorld 1.7.0 with ALFWorld 0.4.2.
Nothing is global and a `Game` is never written after it is built, so any number of plays may run
in any number of threads. A clone shares the immutable state and costs under a microsecond or two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from turncredit.core.errors import DataError
from turncredit.envs.household import narration, rules
from turncredit.envs.household.domain import (
    BANNER,
    MARKS,
    NOTHING_HAPPENS,
    PROPERTIES,
    TASK_PREFIX,
)
from turncredit.envs.household.goal import compile_goal
from turncredit.envs.household.pddl import Expression, Facts, Problem, read_problem
from turncredit.envs.household.state import Action, State


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Game:
    """The fixed part of a game. Keys are ids of the problem file unless a name is said.

    Attributes:
        task: the task line without "Your task is to: " ("put a mug in desk.").
        names: id → name the player reads ("mug 2"), and `ids` the other way round.
        receptacles: ids with a location, in the order the room lists them.
        receptacles_at: location → its receptacles, same order; `location_of` its inverse.
        having: property → ids that have it.
        accepts: receptacle → object types it takes.
        inside: object → objects in it (a box); only `examine` shows them.
        travel: the `go to` command of every receptacle.
        opening: the state before the first command.
        goal: the goal of the problem, as nested tuples.
        met: whether the goal holds in a state.
    """

    task: str
    names: Mapping[str, str]
    ids: Mapping[str, str]
    receptacles: tuple[str, ...]
    receptacles_at: Mapping[str, tuple[str, ...]]
    location_of: Mapping[str, str]
    receptacle_types: Mapping[str, frozenset[str]]
    object_types: Mapping[str, frozenset[str]]
    accepts: Mapping[str, frozenset[str]]
    having: Mapping[str, frozenset[str]]
    inside: Mapping[str, tuple[str, ...]]
    travel: Mapping[str, Action]
    opening: State
    goal: Expression
    met: Callable[[State], bool]

    @classmethod
    def from_pddl(cls, problem: str, task: str) -> Game:
        """Build from the text of a PDDL problem and its task line.

        Raises:
            DataError: not a problem of this domain; says what is wrong.
        """
        parsed = read_problem(problem)
        facts = parsed.facts
        locations = _pairs(facts, "receptacleatlocation")
        location_of = dict(locations)
        if not location_of or len(location_of) != len(locations):
            raise DataError("PDDL problem: each receptacle needs exactly one location")
        names = _names(facts)
        receptacles = tuple(location_of)
        receptacle_types = _sets(_pairs(facts, "receptacletype"))
        holds = _sets(_pairs(facts, "cancontain"))
        nothing: frozenset[str] = frozenset()
        return cls(
            task=task,
            names=names,
            ids={name: thing for thing, name in names.items()},
            receptacles=receptacles,
            receptacles_at=_lists((place, r) for r, place in locations),
            location_of=location_of,
            receptacle_types=receptacle_types,
            object_types=_sets(_pairs(facts, "objecttype")),
            accepts={
                r: nothing.union(*(holds.get(kind, nothing) for kind in kinds))
                for r, kinds in receptacle_types.items()
            },
            having={p: frozenset(a[0] for a in facts.get(p, ())) for p in PROPERTIES},
            inside=_lists((outer, o) for o, outer in _pairs(facts, "inreceptacleobject")),
            travel={f"go to {names[r]}": Action("go", r) for r in receptacles},
            opening=_opening(parsed),
            goal=parsed.goal,
            met=compile_goal(parsed),
        )

    def play(self) -> Play:
        """A fresh play, at the opening."""
        text = BANNER + narration.around(self, self.opening, opening=True) + TASK_PREFIX + self.task
        return Play(self, self.opening, text)

    @property
    def receptacle_names(self) -> tuple[str, ...]:
        """Names of all receptacles, in the order the room lists them."""
        return tuple(self.names[r] for r in self.receptacles)


class Play:
    """One run of a game. Not shared between threads; its clones and its game are free to be.

    Attributes:
        text: what the player reads now (at first the opening with the task).
        state: the hidden state, immutable.
    """

    __slots__ = ("_commands", "_sorted", "_won", "game", "state", "text")

    def __init__(self, game: Game, state: State, text: str) -> None:
        self.game, self.state, self.text = game, state, text
        self._forget()

    def _forget(self) -> None:
        self._commands: dict[str, Action] | None = None
        self._sorted: tuple[str, ...] | None = None
        self._won: bool | None = None

    def act(self, command: str) -> None:
        """Run a command. One that is not admissible changes nothing but `text`."""
        action = self._meanings().get(command.strip())
        if action is None:
            self.text = NOTHING_HAPPENS
            return
        state, self.text = rules.apply(self.game, self.state, action)
        if state is not self.state:
            self.state = state
            self._forget()

    def clone(self) -> Play:
        """An independent play from here on."""
        twin = Play(self.game, self.state, self.text)
        twin._commands, twin._sorted, twin._won = self._commands, self._sorted, self._won
        return twin

    def _meanings(self) -> dict[str, Action]:
        if self._commands is None:
            self._commands = rules.commands(self.game, self.state)
        return self._commands

    @property
    def admissible(self) -> tuple[str, ...]:
        """All admissible commands, sorted."""
        if self._sorted is None:
            self._sorted = tuple(sorted(self._meanings()))
        return self._sorted

    @property
    def won(self) -> bool:
        """The goal holds now."""
        if self._won is None:
            self._won = self.game.met(self.state)
        return self._won

    def admits(self, command: str) -> bool:
        """Whether `command` would be understood now."""
        return command.strip() in self._meanings()

    def key(self) -> str:
        """Names the hidden state: equal keys, equal futures. 32 hex digits."""
        return self.state.key()

    # What the agent can perceive, by name.

    @property
    def here(self) -> tuple[str, ...]:
        """Names of the receptacles the agent stands at."""
        at = self.game.receptacles_at.get(self.state.location, ())
        return tuple(self.game.names[r] for r in at)

    @property
    def holding(self) -> str | None:
        """Name of the object in hand."""
        return None if self.state.held is None else self.game.names[self.state.held]

    @property
    def visible(self) -> dict[str, tuple[str, ...]]:
        """Receptacles here that are not shut, by name → names of what is in or on them."""
        return {r: self.contents(r) for r in self.here if not self.is_shut(r)}

    # What only the omniscient know, by name.

    def is_shut(self, receptacle: str) -> bool:
        """Whether the receptacle of that name is openable and closed."""
        return rules.is_shut(self.game, self.state, self.game.ids[receptacle])

    def contents(self, receptacle: str) -> tuple[str, ...]:
        """Names of the objects in or on the receptacle of that name, seen or not."""
        inside = self.state.contents.get(self.game.ids[receptacle], ())
        return tuple(self.game.names[thing] for thing in inside)


def _pairs(facts: Facts, predicate: str) -> list[tuple[str, str]]:
    return sorted((args[0], args[1]) for args in facts.get(predicate, ()))


def _lists(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in found.items()}


def _sets(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    return {key: frozenset(values) for key, values in _lists(pairs).items()}


def _names(facts: Facts) -> dict[str, str]:
    """Id → name. Instances of a kind count downwards in the order of their ids."""
    ids = sorted({argument for tuples in facts.values() for args in tuples for argument in args})
    kinds: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for thing in ids:
        kind, bar, _ = thing.partition("_bar_")
        if not bar:  # no coordinates: a type, the agent; such a name ends in a blank
            names[thing] = f"{thing} "
            continue
        kinds.setdefault(kind + ("basin" if "basin" in thing else ""), []).append(thing)
    for kind, things in kinds.items():
        names.update((thing, f"{kind} {len(things) - i}") for i, thing in enumerate(things))
    return names


def _opening(problem: Problem) -> State:
    facts = problem.facts
    places = {args[1] for args in facts.get("atlocation", ())}
    held = {args[1] for args in facts.get("holds", ())}
    if len(places) != 1 or len(held) > 1:
        raise DataError(
            "PDDL problem: the agent must be at one location and hold at most one object"
        )
    contents = _lists((where, thing) for thing, where in _pairs(facts, "inreceptacle"))
    return State(
        location=places.pop(),
        held=held.pop() if held else None,
        opened=frozenset(args[0] for args in facts.get("opened", ())),
        contents=contents,
        places=frozenset(_pairs(facts, "objectatlocation")),
        left=frozenset(),
        marks=frozenset((mark, args[0]) for mark in MARKS for args in facts.get(mark, ())),
    )
