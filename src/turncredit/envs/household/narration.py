"""What the player reads. Pure functions of a game and a state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from turncredit.envs.household.domain import CONDITIONS, PROPERTY_CONDITIONS, UNREMARKABLE

if TYPE_CHECKING:
    from turncredit.envs.household.engine import Game
    from turncredit.envs.household.state import State


def listing(names: Iterable[str]) -> str:
    """`nothing`, `a`, `a, and b`, `a, b, and c`."""
    items = list(names)
    if not items:
        return "nothing"
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])}, and {items[-1]}"


def _things(game: Game, ids: Iterable[str]) -> str:
    return listing(f"a {game.names[thing]}" for thing in ids)


def around(game: Game, state: State, *, opening: bool = False) -> str:
    """The answer to `look`. Only the opening lists the receptacles of the room."""
    here = game.receptacles_at.get(state.location, ())
    if not here:
        room = _things(game, game.receptacles if opening else ())
        return f"You are in the middle of a room. Looking quickly around you, you see {room}."
    # An object shows "next to" a receptacle it was taken out of and came back near to.
    beside = [
        thing
        for thing, place in sorted(state.places)
        if place == state.location
        for receptacle in here
        if (thing, receptacle) in state.left
    ]
    facing = listing(game.names[receptacle] for receptacle in here)
    return f"You are facing the {facing}. Next to it, you see {_things(game, beside)}."


def receptacle(game: Game, state: State, which: str) -> str:
    """What a receptacle shows: its objects, or that it is closed."""
    name = game.names[which]
    if which not in game.having["openable"]:
        return f"On the {name}, you see {_things(game, state.contents.get(which, ()))}."
    if which not in state.opened:
        return f"The {name} is closed."
    return f"The {name} is open. In it, you see {_things(game, state.contents.get(which, ()))}."


def thing(game: Game, state: State, which: str) -> str:
    """The answer to `examine` on the object in hand."""
    name = game.names[which]
    if which in game.having["isreceptacleobject"]:
        inside = _things(game, game.inside.get(which, ()))
        return f"This is a normal {name}. In it, you see {inside}."
    marks = state.marks_of(which)
    for needed, wording in CONDITIONS:
        if needed <= marks:
            return wording.format(name)
    for having, mark, wording in PROPERTY_CONDITIONS:
        if mark in marks and which in game.having[having]:
            return wording.format(name)
    return UNREMARKABLE.format(name)


def inventory(game: Game, state: State) -> str:
    """The answer to `inventory`."""
    if state.held is None:
        return "You are not carrying anything."
    return f"You are carrying: a {game.names[state.held]}."
