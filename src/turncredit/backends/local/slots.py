"""Which sequence owns which row of the arena: prefix reuse, forking and eviction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turncredit.backends.local.arena import Arena
from turncredit.core.errors import BackendError

_MIN_FORK = 8  # a shorter common prefix is not worth a copy
_STEP = 256  # positions grow in these steps


@dataclass(slots=True, eq=False)
class Slot:
    """One arena row. `ids` are the tokens whose keys are stored, as int32 bytes."""

    row: int
    owner: str = ""
    ids: bytes = b""
    busy: bool = False
    used: int = 0

    @property
    def length(self) -> int:
        """Tokens stored."""
        return len(self.ids) // 4


def as_bytes(ids: list[int]) -> bytes:
    """Token ids in the form slots compare."""
    return np.asarray(ids, np.int32).tobytes()


class Slots:
    """Hands out arena rows. Rows of finished turns stay, so the next turn finds its prefix.

    Nothing is lost by eviction but time: a sequence without a row is computed again from its ids.
    """

    def __init__(self, arena: Arena, *, budget_bytes: int) -> None:
        self._arena, self._budget = arena, budget_bytes
        self._slots: list[Slot] = []
        self._clock = 0

    def make_room(self, positions: int) -> bool:
        """Whether rows of `positions` tokens fit now; empties the arena if that helps.

        Raises:
            BackendError: the budget cannot hold even one such row.
        """
        limit = self._limit(positions)
        if limit < 1:
            need = positions * self._arena.shape.bytes_per_token / 2**30
            raise BackendError(
                f"a sequence of {positions} tokens needs {need:.2f} GiB of cache, "
                f"the budget is {self._budget / 2**30:.2f}.   Raise --cache-gib"
            )
        if self._arena.rows <= limit:
            return True
        if any(slot.busy for slot in self._slots):
            return False
        self._slots.clear()
        self._arena.clear()
        return True

    def extend(self, owner: str, ids: bytes) -> Slot | None:
        """The idle slot whose tokens are the longest true prefix of `ids`, if there is one."""
        best: Slot | None = None
        for slot in self._slots:
            if slot.busy or slot.owner != owner or len(slot.ids) >= len(ids):
                continue
            if len(slot.ids) > (len(best.ids) if best else 0) and ids.startswith(slot.ids):
                best = slot
        return self._take(best) if best else None

    def fork(self, owner: str, ids: bytes, positions: int) -> Slot | None:
        """A row for `ids`, with what it shares with any other row copied; None: all are busy.

        At least the last token is left to compute, since its logits are wanted.
        """
        source, shared = self._nearest(owner, ids)
        slot = self._free(positions)
        if slot is None:
            return None
        if source is not None and source is not slot:
            self._arena.copy(source.row, slot.row, shared)
        slot.owner, slot.ids = owner, ids[: 4 * shared]
        return self._take(slot)

    def grow(self, positions: int) -> None:
        """Room for `positions` tokens in every row that exists."""
        if positions > self._arena.positions:
            self._arena.reserve(self._arena.rows, _rounded(positions))

    def release(self, slot: Slot, ids: bytes) -> None:
        """The turn is over; `ids` are the tokens now stored."""
        slot.busy, slot.ids = False, ids

    def forget(self, owner: str) -> None:
        """Free the rows of a closed snapshot."""
        for slot in self._slots:
            if slot.owner == owner and not slot.busy:
                slot.owner, slot.ids, slot.used = "", b"", 0

    def keep_only(self, owner: str) -> None:
        """Free the idle rows of all other snapshots.

        What is cached is then a function of the present snapshot's history alone, so a resumed
        run forms the same batches in the same rows.
        """
        for slot in self._slots:
            if slot.owner != owner and slot.ids and not slot.busy:
                self.forget(slot.owner)

    def _limit(self, positions: int) -> int:
        """Rows of `positions` tokens (or of the present length, if more) the budget holds."""
        width = max(_rounded(positions), self._arena.positions)
        if self._budget // (_rounded(positions) * self._arena.shape.bytes_per_token) < 1:
            return 0
        return max(1, self._budget // (width * self._arena.shape.bytes_per_token))

    def _take(self, slot: Slot) -> Slot:
        self._clock += 1
        slot.busy, slot.used = True, self._clock
        return slot

    def _nearest(self, owner: str, ids: bytes) -> tuple[Slot | None, int]:
        """The slot sharing most leading tokens with `ids`, and how many (at most all but one)."""
        wanted = np.frombuffer(ids, np.int32)[:-1]
        best: Slot | None = None
        most = _MIN_FORK - 1
        for slot in self._slots:
            if slot.owner != owner or slot.length <= most:
                continue
            stored = np.frombuffer(slot.ids, np.int32)[: len(wanted)]
            differs = np.flatnonzero(stored != wanted[: len(stored)])
            shared = int(differs[0]) if len(differs) else len(stored)
            if shared > most:
                best, most = slot, shared
        return best, most if best else 0

    def _free(self, positions: int) -> Slot | None:
        """An empty slot, a new one, or the least recently used idle one."""
        empty = next((s for s in self._slots if not s.busy and not s.ids), None)
        limit = self._limit(positions)
        if empty is None and len(self._slots) < limit:
            empty = Slot(len(self._slots))
            self._slots.append(empty)
        if empty is None:
            idle = [s for s in self._slots if not s.busy]
            empty = min(idle, key=lambda s: s.used) if idle else None
        if empty is not None:
            rows = self._arena.rows
            if len(self._slots) > rows:
                rows = min(limit, max(len(self._slots), 2 * rows, 8))
            self._arena.reserve(rows, _rounded(positions))
        return empty


def _rounded(positions: int) -> int:
    return -(-positions // _STEP) * _STEP
