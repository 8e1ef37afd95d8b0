"""What a game asks for, read from its goal formula."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from turncredit.core.errors import DataError

_VERBS = {
    "isclean": ("clean", "sinkbasin"),
    "ishot": ("heat", "microwave"),
    "iscool": ("cool", "fridge"),
}


@dataclass(frozen=True)
class Aim:
    """A goal in the words of the game's own texts (`mug`, `sinkbasin`).

    Attributes:
        target: the kind of object wanted.
        receptacle: the kind of receptacle it goes to; empty when it is looked at under `lamp`.
        verb: `heat`, `cool`, `clean`, or empty; `tool` is the kind of receptacle that does it.
        copies: how many targets must lie in one receptacle.
        lamp: the kind of lamp, or empty.
    """

    target: str
    receptacle: str = ""
    verb: str = ""
    tool: str = ""
    copies: int = 1
    lamp: str = ""


def kind_of(name: str) -> str:
    """`mug` of `mug 2`."""
    return name.rpartition(" ")[0]


def aim_of(goal: Any) -> Aim:
    """Read a goal (nested tuples of lower-case words, as `Game.goal`) of one of the six types.

    Raises:
        DataError: the goal asks for something else.
    """
    atoms = [atom for atom in _atoms(goal) if isinstance(atom[-1], str)]
    kinds = [atom[2].removesuffix("type") for atom in atoms if atom[0] == "objecttype"]
    places = [atom[2].removesuffix("type") for atom in atoms if atom[0] == "receptacletype"]
    predicates = [atom[0] for atom in atoms]
    if "istoggled" in predicates and len(kinds) == 2:
        lamp = next(a[2] for a in atoms if a[0] == "objecttype" and a[1] == _toggled(atoms))
        lamp = lamp.removesuffix("type")
        kinds.remove(lamp)
        return Aim(target=kinds[0], lamp=lamp)
    if not kinds or not places or len(set(kinds)) > 1 or len(set(places)) > 1:
        raise DataError("the goal is of none of the six household task types")
    verb, tool = next((_VERBS[p] for p in predicates if p in _VERBS), ("", ""))
    return Aim(kinds[0], places[0], verb, tool, copies=len(kinds))


def _toggled(atoms: Sequence[tuple[str, ...]]) -> str:
    return next(atom[1] for atom in atoms if atom[0] == "istoggled")


def _atoms(expression: Any) -> Iterator[tuple[str, ...]]:
    """All innermost lists of words that start with a predicate."""
    if not isinstance(expression, tuple) or not expression:
        return
    if all(isinstance(part, str) for part in expression):
        if "-" not in expression:
            yield expression
        return
    for part in expression:
        yield from _atoms(part)
