"""What changes while a game is played: one immutable value. A clone is a reference."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple


class State(NamedTuple):
    """The world after some commands. Ids, not names. Never written in place.

    Attributes:
        location: where the agent stands.
        held: the object in hand.
        opened: open receptacles.
        contents: receptacle → its objects, sorted.
        places: (object, location) pairs the domain keeps beside `contents`.
        left: (object, receptacle) pairs taken apart. Kept only for receptacles that share their
            location with another: elsewhere nothing can depend on it.
        marks: (mark, object) pairs.
    """

    location: str
    held: str | None
    opened: frozenset[str]
    contents: Mapping[str, tuple[str, ...]]
    places: frozenset[tuple[str, str]]
    left: frozenset[tuple[str, str]]
    marks: frozenset[tuple[str, str]]

    def marks_of(self, thing: str) -> frozenset[str]:
        """The marks `thing` carries."""
        return frozenset(mark for mark, marked in self.marks if marked == thing)

    def key(self) -> str:
        """Equal exactly when two states of one game behave alike for ever. 32 hex digits."""
        parts = (
            self.location,
            self.held,
            sorted(self.opened),
            sorted((r, objects) for r, objects in self.contents.items() if objects),
            sorted(self.places),
            sorted(self.left),
            sorted(self.marks),
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


class Action(NamedTuple):
    """A command understood: the rule to run and the ids it runs on."""

    rule: str
    thing: str = ""  # the object, or the receptacle of commands that name only one
    other: str = ""  # the receptacle, or the blade
