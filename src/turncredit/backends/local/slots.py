"""Which sequence owns which row of the arena: prefix reuse, forking, eviction, preemption."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turncredit.backends.local.arena import Arena
from turncredit.core.errors import BackendError

MIN_FORK = 8  # a shorter common prefix is not worth a copy
_STEP, _SMALL_STEP = 256, 64  # positions grow in these steps, the small one under pressure
_FEW = 8  # rows the arena begins with
_NEW = -1  # the row of a slot that has none yet


@dataclass(slots=True, eq=False)
class Slot:
    """One arena row.

    Attributes:
        row: its number; changes when the arena is compacted.
        ids: the tokens whose keys are stored, as int32 bytes.
        busy: a turn is being sampled in it.
        used: when it was last taken.
        need: positions its turn needs.
        lost: its row was taken away; the turn starts again elsewhere from its ids.
    """

    row: int
    owner: str = ""
    ids: bytes = b""
    busy: bool = False
    used: int = 0
    need: int = 0
    lost: bool = False

    @property
    def length(self) -> int:
        """Tokens stored."""
        return len(self.ids) // 4


def as_bytes(ids: list[int]) -> bytes:
    """Token ids in the form slots compare."""
    return np.asarray(ids, np.int32).tobytes()


def common(one: bytes, other: bytes) -> int:
    """Leading tokens that two sequences share."""
    short = min(len(one), len(other))
    if one[:short] == other[:short]:
        return short // 4
    a, b = (np.frombuffer(x[:short], np.int32) for x in (one, other))
    return int((a != b).argmax())


class Slots:
    """Hands out arena rows. Rows of finished turns stay, so the next turn finds its prefix.

    The arena never holds more than `budget_bytes`. Nothing is lost by eviction but time: a
    sequence without a row is computed again from its ids.

    Args:
        arena: where rows live.
        budget_bytes: for all of it.
        reuse: keep rows of finished turns, and copy common prefixes.
    """

    def __init__(self, arena: Arena, *, budget_bytes: int, reuse: bool = True) -> None:
        self._arena, self._budget, self._reuse = arena, budget_bytes, reuse
        self._slots: list[Slot] = []
        self._clock = 0

    def admits(self, positions: int) -> bool:
        """Whether one more row of `positions` fits without taking a busy row's place.

        Raises:
            BackendError: the budget cannot hold even one such row.
        """
        busy = [slot.need for slot in self._slots if slot.busy]
        return self._rows_of(self._least(max([positions, *busy]))) > len(busy)

    def extend(self, owner: str, ids: bytes, positions: int) -> Slot | None:
        """The idle slot whose tokens are the longest true prefix of `ids`, if there is one."""
        best: Slot | None = None
        for slot in self._slots:
            if slot.busy or slot.owner != owner or len(slot.ids) >= len(ids):
                continue
            if len(slot.ids) > (len(best.ids) if best else 0) and ids.startswith(slot.ids):
                best = slot
        return self._take(best, positions) if best else None

    def fork(self, owner: str, ids: bytes, positions: int) -> Slot:
        """A row for `ids`, with what it shares with any other row copied (see `admits`).

        At least the last token is left to compute, since its logits are wanted.
        """
        source, shared = self.nearest(owner, ids)
        slot = Slot(_NEW, owner)
        if source:
            self._touch(source)
            if self._is_last_idle(source, positions):
                slot = source
        if slot is not source:
            self._slots.append(slot)
        self._take(slot, positions)
        if source and source in self._slots:
            shared = min(shared, source.length)
            if slot is not source:
                self._arena.copy(source.row, slot.row, shared)
            slot.ids = ids[: 4 * shared]
        return slot

    def widen(self, slot: Slot, positions: int) -> None:
        """Room for `positions` tokens in a busy slot.

        Where the budget is spent, idle rows go first, then the busy ones admitted last: their
        slots are marked as lost.

        Raises:
            BackendError: the budget cannot hold even this row.
        """
        if positions > slot.need:
            slot.need = positions
            if positions > self._arena.positions:
                self._fit()

    def release(self, slot: Slot, ids: bytes) -> None:
        """The turn is over; `ids` are the tokens now stored."""
        slot.busy, slot.need, slot.ids = False, 0, ids
        if not self._reuse:
            self._drop([slot])

    def forget(self, owner: str) -> None:
        """Free the rows of a closed snapshot."""
        self._drop([s for s in self._slots if s.owner == owner and not s.busy])

    def keep_only(self, owner: str) -> None:
        """Free the idle rows of all other snapshots.

        What is cached is then a function of the present snapshot's history alone, so a resumed
        run forms the same batches in the same rows.
        """
        self._drop([s for s in self._slots if s.owner != owner and not s.busy])
        if not self._slots:
            self._arena.clear()

    def nearest(self, owner: str, ids: bytes) -> tuple[Slot | None, int]:
        """The slot sharing most leading tokens with `ids`, and how many (at most all but one)."""
        best: Slot | None = None
        most = MIN_FORK - 1
        for slot in self._slots if self._reuse else ():
            if slot.owner != owner or slot.length <= most:
                continue
            shared = common(slot.ids, ids[:-4])
            if shared > most:
                best, most = slot, shared
        return best, most if best else 0

    def _rows_of(self, positions: int) -> int:
        """Rows of `positions` tokens the budget holds."""
        rows = self._budget // (positions * self._arena.shape.bytes_per_token)
        if rows < 1:
            need = positions * self._arena.shape.bytes_per_token / 2**30
            raise BackendError(
                f"a sequence of {positions} tokens needs {need:.2f} GiB of cache, "
                f"the budget is {self._budget / 2**30:.2f}.   Raise --cache-gib"
            )
        return rows

    def _least(self, positions: int) -> int:
        """Positions in small steps, since every change moves all rows; exact where no step fits."""
        stepped = -(-positions // _SMALL_STEP) * _SMALL_STEP
        fits = stepped * self._arena.shape.bytes_per_token <= self._budget
        return stepped if fits else positions

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.used = self._clock

    def _take(self, slot: Slot, positions: int) -> Slot:
        self._touch(slot)
        slot.busy, slot.need = True, positions
        if slot.row == _NEW or positions > self._arena.positions:
            self._fit()
        return slot

    def _is_last_idle(self, slot: Slot, positions: int) -> bool:
        """No other idle row could make room for a new one."""
        busy = [s.need for s in self._slots if s.busy]
        full = self._rows_of(self._least(max([positions, *busy]))) <= len(busy) + 1
        return full and not slot.busy

    def _drop(self, slots: list[Slot]) -> None:
        for slot in slots:
            slot.lost = slot.busy
            self._slots.remove(slot)

    def _fit(self) -> None:
        """Make the arena hold the busy slots, and the idle ones as far as the budget allows."""
        positions = self._positions()
        allowed = self._rows_of(positions)
        # Idle rows go first, the oldest before all; of the busy ones the latest goes first.
        order = sorted(self._slots, key=lambda s: (s.busy, -s.used if s.busy else s.used))
        self._drop(order[: max(0, len(order) - allowed)])
        seated = sorted((s for s in self._slots if s.row != _NEW), key=lambda s: s.row)
        new = [s for s in self._slots if s.row == _NEW]
        rows = min(allowed, self._arena.rows)
        if len(self._slots) > rows:
            rows = min(allowed, max(len(self._slots), 2 * rows, _FEW))
        if (rows, positions) != (self._arena.rows, self._arena.positions):
            self._arena.resize(rows, positions, [s.row for s in seated])
            for row, slot in enumerate(seated):
                slot.row, slot.ids = row, slot.ids[: 4 * positions]
        taken = {s.row for s in seated}
        free = (row for row in range(rows) if row not in taken)
        for slot in new:
            slot.row = next(free)

    def _positions(self) -> int:
        """The length of rows: roomy, unless that costs a row its place or its end."""
        now, busy = self._arena.positions, [slot.need for slot in self._slots if slot.busy]
        for wanted, need in (
            (len(self._slots), max([*busy, *(slot.length for slot in self._slots)])),
            (len(busy), max(busy)),
        ):
            grown = [_rounded(max(need, now + now // 2)), _rounded(need)]
            for positions in [*([now] if now >= need else grown), self._least(need)]:
                if positions * wanted * self._arena.shape.bytes_per_token <= self._budget:
                    return positions
        return self._least(max(busy))


def _rounded(positions: int) -> int:
    return -(-positions // _STEP) * _STEP
