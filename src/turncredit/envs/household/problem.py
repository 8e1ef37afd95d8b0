"""A generated household written as a PDDL problem of the ALFWorld domain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turncredit.envs.household import rooms

# Types the domain's rules name: they must exist in every problem.
_RULE_OBJECTS = ("ButterKnife", "Knife")
_RULE_RECEPTACLES = ("Fridge", "Microwave", "Sink", "SinkBasin")
_BASINS = ("SinkBasin", "BathtubBasin")
_ABILITIES = (
    ("heatable", rooms.HEATABLE),
    ("coolable", rooms.COOLABLE),
    ("cleanable", rooms.CLEANABLE),
    ("sliceable", rooms.SLICEABLE),
    ("isReceptacleObject", rooms.HOLLOW),
)
_STATES = {
    "pick_clean_then_place_in_recep": ("cleanable", "isClean"),
    "pick_heat_then_place_in_recep": ("heatable", "isHot"),
    "pick_cool_then_place_in_recep": ("coolable", "isCool"),
}


@dataclass(frozen=True)
class Thing:
    """One receptacle or object: its type, its constant's name, and where it is.

    `place` is a spot number for a receptacle, and the constant of a receptacle for an object.
    """

    kind: str
    name: str
    place: int | str


def constant(kind: str, number: int) -> str:
    """The PDDL constant of an instance, in the form names are read back from (`mug 1`)."""
    if kind in _BASINS:
        return f"{kind.removesuffix('Basin')}_bar_{number:03d}_bar_{kind}"
    return f"{kind}_bar_{number:03d}"


def location(spot: int | str) -> str:
    """The PDDL constant of a spot in the room."""
    return f"loc_bar_{spot:02d}" if isinstance(spot, int) else f"loc_bar_{spot}"


def goal(task_type: str, target: str, receptacle: str) -> str:
    """The goal formula of a task type: what the public games of that type ask."""
    if task_type == "look_at_obj_in_light":
        # What fails soonest comes first: the engine checks the goal after every command.
        return f"""(and
    (exists (?o - object ?a - agent)
        (and (objectType ?o {target}Type) (holds ?a ?o)))
    (exists (?ot - object ?r - receptacle)
        (and (objectType ?ot {rooms.LAMP}Type) (toggleable ?ot) (isToggled ?ot)
             (inReceptacle ?ot ?r)
             (exists (?a - agent ?l - location)
                 (and (receptacleAtLocation ?r ?l) (atLocation ?a ?l))))))"""
    if task_type == "pick_two_obj_and_place":
        return f"""(and
    (exists (?r - receptacle)
        (exists (?o1 - object)
            (and (objectType ?o1 {target}Type) (receptacleType ?r {receptacle}Type)
                 (inReceptacle ?o1 ?r)
                 (exists (?o2 - object)
                     (and (not (= ?o1 ?o2)) (objectType ?o2 {target}Type)
                          (receptacleType ?r {receptacle}Type) (inReceptacle ?o2 ?r)))))))"""
    ability, state = _STATES.get(task_type, ("", ""))
    wanted = f"({ability} ?o) ({state} ?o) " if state else ""
    return f"""(and
    (exists (?r - receptacle)
        (exists (?o - object)
            (and {wanted}(objectType ?o {target}Type) (receptacleType ?r {receptacle}Type)
                 (inReceptacle ?o ?r)))))"""


def write(name: str, receptacles: Sequence[Thing], objects: Sequence[Thing], goal_text: str) -> str:
    """The PDDL problem: the agent starts mid-room, every receptacle is closed."""
    object_types = sorted({o.kind for o in objects} | set(_RULE_OBJECTS))
    receptacle_types = sorted({r.kind for r in receptacles} | set(_RULE_RECEPTACLES))
    spots = [*sorted({location(r.place) for r in receptacles}), location("start")]
    lines = [
        "agent1 - agent",
        *(f"{kind}Type - otype" for kind in object_types),
        *(f"{kind}Type - rtype" for kind in receptacle_types),
        *(f"{o.name} - object" for o in objects),
        *(f"{r.name} - receptacle" for r in receptacles),
        *(f"{spot} - location" for spot in spots),
    ]
    facts = [
        "(= (total-cost) 0)",
        f"(atLocation agent1 {location('start')})",
        *_receptacle_facts(receptacles, object_types),
        *_object_facts(receptacles, objects),
    ]
    constants, init = "\n        ".join(lines), "\n        ".join(facts)
    return f"""(define (problem {name})
    (:domain alfred)
    (:objects
        {constants}
    )
    (:init
        {init}
    )
    (:goal {goal_text})
)
"""


def _receptacle_facts(receptacles: Sequence[Thing], object_types: Sequence[str]) -> Iterator[str]:
    for r in receptacles:
        yield f"(receptacleType {r.name} {r.kind}Type)"
        yield f"(receptacleAtLocation {r.name} {location(r.place)})"
        if r.kind in rooms.OPENABLE:
            yield f"(openable {r.name})"
    for kind in sorted({r.kind for r in receptacles}):
        for held in object_types:
            if held in rooms.CAN_CONTAIN[kind]:
                yield f"(canContain {kind}Type {held}Type)"


def _object_facts(receptacles: Sequence[Thing], objects: Sequence[Thing]) -> Iterator[str]:
    spot = {r.name: location(r.place) for r in receptacles}
    for o in objects:
        yield f"(objectType {o.name} {o.kind}Type)"
        yield f"(inReceptacle {o.name} {o.place})"
        yield f"(objectAtLocation {o.name} {spot[str(o.place)]})"
        yield f"({'toggleable' if o.kind == rooms.LAMP else 'pickupable'} {o.name})"
        for ability, kinds in _ABILITIES:
            if o.kind in kinds:
                yield f"({ability} {o.name})"
