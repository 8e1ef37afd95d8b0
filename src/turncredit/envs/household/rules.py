"""Which commands a state admits, and what each does. Pure functions of a game and a state.

Matching is exact: a command is admissible when it is a key of `commands(game, state)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from turncredit.envs.household import narration
from turncredit.envs.household.domain import APPLIANCES, BLADE_TYPES, HELP
from turncredit.envs.household.state import Action, State

if TYPE_CHECKING:
    from turncredit.envs.household.engine import Game

ALWAYS = {"look": Action("look"), "inventory": Action("inventory"), "help": Action("help")}
_APPLIANCE = {appliance.verb: appliance for appliance in APPLIANCES}


def commands(game: Game, state: State) -> dict[str, Action]:
    """Every admissible command of `state` and what it means."""
    here = game.receptacles_at.get(state.location, ())
    found = {**ALWAYS, **game.travel}
    for receptacle in here:
        # Going to where one already stands is not a move, for any receptacle of that place.
        del found[f"go to {game.names[receptacle]}"]
        _add_receptacle(game, state, receptacle, found)
    if state.held is not None:
        _add_held(game, state, state.held, found)
    return found


def is_shut(game: Game, state: State, receptacle: str) -> bool:
    """A closed receptacle: nothing goes in or out (appliances work all the same)."""
    return receptacle in game.having["openable"] and receptacle not in state.opened


def _add_receptacle(game: Game, state: State, where: str, found: dict[str, Action]) -> None:
    names, name = game.names, game.names[where]
    found[f"examine {name}"] = Action("examine receptacle", where)
    if where in game.having["openable"]:
        verb = "close" if where in state.opened else "open"
        found[f"{verb} {name}"] = Action(verb, where)
    takeable = state.held is None and not is_shut(game, state, where)
    for thing in state.contents.get(where, ()):
        if takeable and thing in game.having["pickupable"]:
            found[f"take {names[thing]} from {name}"] = Action("take", thing, where)
        # A lamp can be used through a closed lid: the domain does not ask.
        if thing in game.having["toggleable"]:
            found[f"use {names[thing]}"] = Action("use", thing)


def _add_held(game: Game, state: State, held: str, found: dict[str, Action]) -> None:
    names, name = game.names, game.names[held]
    found[f"examine {name}"] = Action("examine object", held)
    kinds = game.object_types.get(held, frozenset())
    for where in game.receptacles_at.get(state.location, ()):
        if kinds & game.accepts.get(where, frozenset()) and not is_shut(game, state, where):
            found[f"move {name} to {names[where]}"] = Action("move", held, where)
        for appliance in APPLIANCES:
            if held in game.having[appliance.needs] and (
                appliance.receptacle_types & game.receptacle_types.get(where, frozenset())
            ):
                command = f"{appliance.verb} {name} with {names[where]}"
                found[command] = Action(appliance.verb, held, where)
    if kinds & BLADE_TYPES:
        for thing, place in state.places:
            if place == state.location and thing in game.having["sliceable"]:
                found[f"slice {names[thing]} with {name}"] = Action("slice", thing, held)


def apply(game: Game, state: State, action: Action) -> tuple[State, str]:
    """The state after an admissible action, and what the player reads."""
    return _RULES[action.rule](game, state, action)


Rule = Callable[["Game", State, Action], tuple[State, str]]


def _go(game: Game, state: State, action: Action) -> tuple[State, str]:
    state = state._replace(location=game.location_of[action.thing])
    seen = narration.receptacle(game, state, action.thing)
    return state, f"You arrive at {game.names[action.thing]}. {seen}"


def _open(game: Game, state: State, action: Action) -> tuple[State, str]:
    state = state._replace(opened=state.opened | {action.thing})
    seen = narration.receptacle(game, state, action.thing)
    return state, f"You open the {game.names[action.thing]}. {seen}"


def _close(game: Game, state: State, action: Action) -> tuple[State, str]:
    state = state._replace(opened=state.opened - {action.thing})
    return state, f"You close the {game.names[action.thing]}."


def _take(game: Game, state: State, action: Action) -> tuple[State, str]:
    thing, where = action.thing, action.other
    remaining = tuple(o for o in state.contents[where] if o != thing)
    shared = len(game.receptacles_at[state.location]) > 1
    state = state._replace(
        held=thing,
        contents={**state.contents, where: remaining},
        places=state.places - {(thing, state.location)},
        left=state.left | {(thing, where)} if shared else state.left,
    )
    return state, f"You pick up the {game.names[thing]} from the {game.names[where]}."


def _move(game: Game, state: State, action: Action) -> tuple[State, str]:
    thing, where = action.thing, action.other
    objects = tuple(sorted({*state.contents.get(where, ()), thing}))
    state = state._replace(
        held=None,
        contents={**state.contents, where: objects},
        places=state.places | {(thing, state.location)},
        left=state.left - {(thing, where)},
    )
    return state, f"You move the {game.names[thing]} to the {game.names[where]}."


def _use(game: Game, state: State, action: Action) -> tuple[State, str]:
    # The domain never forgets that a lamp was used, so it never reads "turn off".
    state = state._replace(marks=state.marks | {("istoggled", action.thing)})
    return state, f"You turn on the {game.names[action.thing]}."


def _appliance(game: Game, state: State, action: Action) -> tuple[State, str]:
    appliance, thing = _APPLIANCE[action.rule], action.thing
    marks = state.marks | {(appliance.gains, thing)}
    if appliance.loses:
        marks -= {(appliance.loses, thing)}
    text = f"You {action.rule} the {game.names[thing]} using the {game.names[action.other]}."
    return state._replace(marks=marks), text


def _slice(game: Game, state: State, action: Action) -> tuple[State, str]:
    state = state._replace(marks=state.marks | {("issliced", action.thing)})
    return state, f"You sliced the {game.names[action.thing]} with the {game.names[action.other]}."


_RULES: Mapping[str, Rule] = {
    "look": lambda game, state, _: (state, narration.around(game, state)),
    "inventory": lambda game, state, _: (state, narration.inventory(game, state)),
    "help": lambda _game, state, _: (state, HELP),
    "examine receptacle": lambda g, state, a: (state, narration.receptacle(g, state, a.thing)),
    "examine object": lambda g, state, a: (state, narration.thing(g, state, a.thing)),
    "go": _go,
    "open": _open,
    "close": _close,
    "take": _take,
    "move": _move,
    "use": _use,
    **dict.fromkeys(_APPLIANCE, _appliance),
    "slice": _slice,
}
