"""Seeded household games: six task types, three sizes, train and held-out layouts.

`generate` is a pure function of its arguments: it draws from `random.Random` seeded with a
string, iterates over nothing unordered, and so gives the same bytes on every Python and every
PYTHONHASHSEED. Each game is played to its goal by the omniscient expert before it is returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from turncredit.core.errors import ConfigError, DataError, did_you_mean
from turncredit.envs.household import problem, rooms
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.engine import Game
from turncredit.envs.household.experts import solve
from turncredit.envs.household.gamefile import to_bytes, to_file_json
from turncredit.envs.household.layouts import Layout, pool
from turncredit.envs.household.rooms import Size

__all__ = ["SPLITS", "WORDINGS", "GeneratedGame", "build", "generate", "to_bytes", "to_file_json"]

_TRIES = 100
SPLITS = ("train", "valid_seen", "valid_unseen")

WORDINGS: Mapping[str, tuple[str, ...]] = {
    "pick_and_place_simple": (
        "put a {o} in {r}.",
        "put some {o} on {r}.",
        "find a {o} and put it in {r}.",
    ),
    "look_at_obj_in_light": (
        "look at {o} under the {r}.",
        "examine the {o} with the {r}.",
    ),
    "pick_clean_then_place_in_recep": (
        "put a clean {o} in {r}.",
        "clean some {o} and put it in {r}.",
        "wash a {o}, then put it in {r}.",
    ),
    "pick_heat_then_place_in_recep": (
        "put a hot {o} in {r}.",
        "heat some {o} and put it in {r}.",
        "warm up a {o}, then put it in {r}.",
    ),
    "pick_cool_then_place_in_recep": (
        "put a cool {o} in {r}.",
        "cool some {o} and put it in {r}.",
        "chill a {o}, then put it in {r}.",
    ),
    "pick_two_obj_and_place": (
        "put two {o} in {r}.",
        "find two {o} and put them in {r}.",
    ),
}


@dataclass(frozen=True)
class _Rule:
    """What a task type asks of its room: kinds of room, possible targets, its tool, how many."""

    room_kinds: tuple[str, ...]
    targets: frozenset[str] | None = None
    tool: str = ""
    copies: int = 1


_RULES: Mapping[str, _Rule] = {
    "pick_and_place_simple": _Rule(tuple(rooms.ROOMS)),
    "look_at_obj_in_light": _Rule(("living_room", "bedroom")),
    "pick_clean_then_place_in_recep": _Rule(
        ("kitchen", "bathroom"), rooms.CLEANABLE, tool="SinkBasin"
    ),
    "pick_heat_then_place_in_recep": _Rule(("kitchen",), rooms.HEATABLE, tool="Microwave"),
    "pick_cool_then_place_in_recep": _Rule(("kitchen",), rooms.COOLABLE, tool="Fridge"),
    "pick_two_obj_and_place": _Rule(tuple(rooms.ROOMS), copies=2),
}


@dataclass(frozen=True)
class GeneratedGame:
    """One game: its id, PDDL problem, task line (no prefix), a winning walkthrough, its layout."""

    id: str
    task_type: str
    problem: str
    task: str
    walkthrough: tuple[str, ...]
    layout_id: str


def generate(task_type: str, seed: int, *, split: str, size: Size) -> GeneratedGame:
    """The game of this type and seed. `valid_unseen` uses layouts no training game has.

    Raises:
        ConfigError: an unknown task type, split or size.
    """
    return build(task_type, seed, split=split, size=size)[0]


def build(task_type: str, seed: int, *, split: str, size: Size) -> tuple[GeneratedGame, Game]:
    """The same, with the game ready to play (it was needed to find the walkthrough)."""
    for what, word, known in (
        ("task type", task_type, TASK_TYPES),
        ("split", split, SPLITS),
        ("size", size, rooms.SIZES),
    ):
        if word not in known:
            raise ConfigError(
                f'no {what} "{word}".{did_you_mean(word, known)} Known: {", ".join(known)}'
            )
    rng = Random(f"household|{split}|{size}|{task_type}|{seed}")
    game_id = f"household/{size}/{split}/{seed:06d}-{task_type}"
    for _ in range(_TRIES):
        room = rng.choice(_RULES[task_type].room_kinds)
        layout = rng.choice(pool(room, size, unseen=split == "valid_unseen"))
        made = _furnish(game_id, task_type, layout, rng)
        if made is not None:
            return made
    raise DataError(
        f"{game_id}: no solvable game in {_TRIES} draws; the room tables are too narrow"
    )


def _furnish(
    game_id: str, task_type: str, layout: Layout, rng: Random
) -> tuple[GeneratedGame, Game] | None:
    """A game in this layout, or None when it has no room for the task or cannot be won."""
    rule = _RULES[task_type]
    aim = _choose_aim(rule, layout, task_type, rng)
    if aim is None:
        return None
    target, goal_receptacle = aim
    numbers = _numbers(rng)
    receptacles = [
        problem.Thing(kind, problem.constant(kind, next(numbers)), spot)
        for kind, spot in zip(layout.receptacles, layout.spots, strict=True)
    ]
    objects = []
    for kind in _object_kinds(target, rule.copies, layout, rng):
        avoid = goal_receptacle if kind == target else ""
        homes = [r.name for r in receptacles if r.kind != avoid and _may_lie(kind, r.kind)]
        if homes:
            name = problem.constant(kind, next(numbers))
            objects.append(problem.Thing(kind, name, rng.choice(homes)))
    goal = problem.goal(task_type, target, goal_receptacle)
    text = problem.write(game_id.replace("/", "-"), receptacles, objects, goal)
    shown = goal_receptacle or rooms.LAMP
    task = rng.choice(WORDINGS[task_type]).format(o=target.lower(), r=shown.lower())
    game = Game.from_pddl(text, task)
    walkthrough = tuple(solve(game))
    if not walkthrough:
        return None
    return GeneratedGame(game_id, task_type, text, task, walkthrough, layout.layout_id), game


def _numbers(rng: Random) -> Iterator[int]:
    """Distinct numbers for constants: what is called `mug 1` then depends on chance."""
    used: set[int] = set()
    while True:
        number = rng.randrange(1000)
        if number not in used:
            used.add(number)
            yield number


def _may_lie(kind: str, receptacle: str) -> bool:
    return (
        receptacle in rooms.LAMP_STANDS
        if kind == rooms.LAMP
        else (kind in rooms.CAN_CONTAIN[receptacle])
    )


def _choose_aim(rule: _Rule, layout: Layout, task_type: str, rng: Random) -> tuple[str, str] | None:
    """A target type and the type of receptacle it goes to (`""` when it is only looked at)."""
    present = sorted(set(layout.receptacles))
    aims: dict[str, list[str]] = {}
    for kind in rooms.ROOMS[layout.room].objects:
        if rule.targets is not None and kind not in rule.targets:
            continue
        fits = [r for r in present if kind in rooms.CAN_CONTAIN[r]]
        if task_type == "look_at_obj_in_light":
            aims[kind] = [""] if fits else []
        elif len(fits) > 1:  # it must start somewhere else than where it goes
            aims[kind] = [r for r in fits if r != rule.tool]
    possible = [kind for kind, goals in aims.items() if goals]
    if not possible:
        return None
    target = rng.choice(possible)
    return target, rng.choice(aims[target])


def _object_kinds(target: str, copies: int, layout: Layout, rng: Random) -> list[str]:
    """Target copies, then other things; a desk lamp where the room is one to have it."""
    kinds = [target] * (copies + (rng.random() < 0.3))
    if layout.room in _RULES["look_at_obj_in_light"].room_kinds:
        kinds.append(rooms.LAMP)
    others = [kind for kind in rooms.ROOMS[layout.room].objects if kind != target]
    total, bag = rng.randint(*rooms.OBJECTS[layout.size]), list[str]()
    while len(kinds) < total:
        if not bag:  # every kind once before any kind twice
            bag = list(others)
            rng.shuffle(bag)
        kinds.append(bag.pop())
    return kinds
