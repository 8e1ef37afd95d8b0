"""Room layouts, and their disjoint training and held-out pools.

A layout says which receptacles a room has, how many of each, and which share a spot. Whether it
is held out is decided by a hash of the counts alone, so no layout can be on both sides, whatever
its size or seed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from turncredit.envs.household.rooms import RECEPTACLES, ROOMS, SHARED_SPOT, Size

_DRAWS = 300  # per room and size; the pools hold the distinct ones
_HELD_OUT_ONE_IN = 5
_SHARING = ("Cabinet", "Drawer", "StoveBurner")


@dataclass(frozen=True)
class Layout:
    """Receptacle types of a room, sorted, and the spot (location number) of each."""

    room: str
    size: Size
    receptacles: tuple[str, ...]
    spots: tuple[int, ...]

    @property
    def layout_id(self) -> str:
        """Room and a hash of the receptacle counts: the same for equal counts only."""
        counts = sorted(Counter(self.receptacles).items())
        return f"{self.room}-{hashlib.sha256(repr((self.room, counts)).encode()).hexdigest()[:12]}"


def held_out(layout_id: str) -> bool:
    """Whether a layout belongs to `valid_unseen` (about one in five) and never to training."""
    return int(layout_id.rpartition("-")[2], 16) % _HELD_OUT_ONE_IN == 0


def pool(room: str, size: Size, *, unseen: bool) -> tuple[Layout, ...]:
    """The distinct layouts of one room kind and size, on the training or the held-out side."""
    return _pools(room, size)[unseen]


@lru_cache(maxsize=64)
def _pools(room: str, size: Size) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    rng = Random(f"layouts|{room}|{size}")
    drawn = {layout.layout_id: layout for layout in (_draw(room, size, rng) for _ in range(_DRAWS))}
    train = tuple(layout for key, layout in drawn.items() if not held_out(key))
    unseen = tuple(layout for key, layout in drawn.items() if held_out(key))
    return train, unseen


def _draw(room: str, size: Size, rng: Random) -> Layout:
    kind = ROOMS[room]
    counts = Counter(kind.always)
    weights = {name: weight for name, (weight, _) in kind.others.items()}
    for _ in range(rng.randint(*RECEPTACLES[size]) - len(kind.always)):
        if not weights:
            break
        name = rng.choices(list(weights), list(weights.values()))[0]
        counts[name] += 1
        if counts[name] >= kind.others[name][1]:
            del weights[name]
    receptacles = tuple(sorted(counts.elements()))
    return Layout(room, size, receptacles, _spots(receptacles, SHARED_SPOT[size], rng))


def _spots(receptacles: tuple[str, ...], chance: float, rng: Random) -> tuple[int, ...]:
    spots: list[int] = []
    for i, name in enumerate(receptacles):
        neighbour = i > 0 and receptacles[i - 1] == name and name in _SHARING
        shares = neighbour and rng.random() < chance
        spots.append(spots[-1] if shares else len(set(spots)))
    return tuple(spots)
