"""Decoding through the cache that a family brings along.

Families with layers that are not full attention (gated delta rules, sliding windows) keep states
of other shapes than our arena's. One cache object of theirs holds one row; rows with as many new
tokens each are brought together for a pass, and those that go on stay together. A recurrent state
cannot be cut back, so what is kept serves rows that begin with *all* of its ids.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from turncredit.backends.local.slots import as_bytes
from turncredit.backends.local.stacking import Cache, copied, joinable, joined, narrow, picked
from turncredit.core.errors import BackendError

if TYPE_CHECKING:
    from turncredit.backends.local.decode import Row
    from turncredit.backends.local.policy import Policy

_ID = 4  # bytes of an id in `as_bytes`


@dataclass(frozen=True, slots=True)
class RowBytes:
    """What the cache of one row takes: some bytes once, some for every token."""

    once: float
    per_token: float

    def of(self, tokens: int) -> int:
        """Bytes of a row of so many tokens."""
        return round(self.once + self.per_token * tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A cache that no live row is using.

    Attributes:
        ids: what it has read, in the form of `as_bytes`.
        cache: of one row.
        last: state (d,) of the last token, where rows may go on without a new token.
    """

    ids: bytes
    cache: Cache
    last: torch.Tensor | None = None

    @property
    def tokens(self) -> int:
        """How many it has read."""
        return len(self.ids) // _ID


class OwnCaches:
    """The caches of live rows, and those kept for later ones, all of one snapshot.

    Args:
        policy: of a family whose own cache works (`policy.row_bytes`).
        budget_bytes: for all of them; a live row counts with its whole action.
        reuse: keep caches between turns, and read common prompts once.
    """

    def __init__(self, policy: Policy, *, budget_bytes: int, reuse: bool = True) -> None:
        assert policy.row_bytes is not None
        self._policy, self._budget, self._reuse = policy, budget_bytes, reuse
        self._sizes: RowBytes = policy.row_bytes
        self._owner = ""
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()  # the next to be forgotten first
        self._live: dict[Row, Cache] = {}  # None while it is in `_joint`
        self._known: dict[Row, torch.Tensor] = {}  # states of rows that were read already
        self._awaited: set[Row] = set()  # rows whose prompt others will copy
        self._together: list[Row] = []  # in the order of `_joint`
        self._joint: Cache = None

    def check(self, tokens: int) -> None:
        """Refuse what never fits, while it is the only one to suffer.

        Raises:
            BackendError: the budget cannot hold one row of so many tokens.
        """
        if (need := self._sizes.of(tokens)) > self._budget:
            raise BackendError(
                f"a sequence of {tokens} tokens needs {need / 2**30:.2f} GiB of cache, "
                f"the budget is {self._budget / 2**30:.2f}.   Raise --cache-gib"
            )

    def admit(self, rows: list[Row]) -> list[Row]:
        """Give rows a cache, where possible one of their beginning; returns those that fit.

        Of rows that are alike one goes first, and the others copy what it has read.
        """
        if rows and rows[0].owner != self._owner:
            self._owner = rows[0].owner
            self._kept.clear()
        admitted: list[Row] = []
        count = Counter(as_bytes(row.ids) for row in rows)
        reading: set[bytes] = set()
        for row in rows:
            ids = as_bytes(row.ids)
            if ids in reading:
                continue
            if not self._admits(row):
                break
            self._begin(row, ids)
            if self._reuse and count[ids] > 1 and row not in self._known:
                reading.add(ids)
                self._awaited.add(row)
            admitted.append(row)
        return admitted

    def hidden(self, rows: list[Row]) -> torch.Tensor:
        """States (B, d) of the last tokens of rows, after reading what is not stored of them."""
        found = {row: self._known.pop(row) for row in rows if row in self._known}
        groups: dict[tuple[int, bool], list[Row]] = {}
        for row in rows:
            if row not in found:
                groups.setdefault((row.length - row.stored, row.stored == 0), []).append(row)
        try:
            for group in groups.values():
                found.update(self._read(group))
        except BaseException:  # what was read halfway must not be taken for a beginning
            self._live.clear()
            self._together, self._joint = [], None
            raise
        for row in rows:  # in their order: what is forgotten first must not hang on chance
            if row in self._awaited:
                self._awaited.remove(row)
                self._keep(row, self._copy(row), found[row])
        return torch.stack([found[row] for row in rows])

    def release(self, row: Row) -> None:
        """Leave the row's cache for the next turn."""
        self._leave([row] if row in self._together else [])
        cache = self._live.pop(row, None)
        self._known.pop(row, None)
        self._awaited.discard(row)
        if cache is not None and row.stored:
            self._keep(row, cache, None)

    def forget(self, owner: str) -> None:
        """Drop what is kept of a snapshot."""
        if owner == self._owner:
            self._kept.clear()

    def _admits(self, row: Row) -> bool:
        self.check(len(row.prompt) + row.params.max_tokens)
        needed = sum(self._need(other) for other in [row, *self._live])
        if needed > self._budget:
            return False
        self._make_room(needed)
        return True

    def _need(self, row: Row) -> int:
        return self._sizes.of(len(row.prompt) + row.params.max_tokens)

    def _make_room(self, needed: int) -> None:
        kept = sum(self._sizes.of(entry.tokens) for entry in self._kept.values())
        while self._kept and kept + needed > self._budget:
            kept -= self._sizes.of(self._kept.popitem(last=False)[1].tokens)

    def _begin(self, row: Row, ids: bytes) -> None:
        kept = self._longest(ids)
        row.stored = kept.tokens if kept else 0
        row.reused += row.stored
        row.prefilled += row.length - row.stored
        if kept is None:
            self._live[row] = self._policy.fresh_cache()
        elif kept.last is None:
            self._live[row] = self._kept.pop(kept.ids).cache
        else:
            self._kept.move_to_end(kept.ids)
            self._live[row] = copied(kept.cache)
            if kept.ids == ids:
                self._known[row] = kept.last

    def _longest(self, ids: bytes) -> Kept | None:
        """What has read the longest beginning of `ids`, if anything has."""
        fits = [
            kept
            for kept in self._kept.values()
            if ids.startswith(kept.ids) and (kept.last is not None or len(kept.ids) < len(ids))
        ]
        return max(fits, key=lambda kept: kept.tokens, default=None)

    def _keep(self, row: Row, cache: Cache, last: torch.Tensor | None) -> None:
        if not self._reuse or row.owner != self._owner:
            return
        kept = Kept(as_bytes(row.ids[: row.stored]), cache, last)
        needed = sum(map(self._need, self._live)) + self._sizes.of(kept.tokens)
        if needed <= self._budget:
            self._make_room(needed)
            self._kept[kept.ids] = kept

    def _read(self, rows: list[Row]) -> dict[Row, torch.Tensor]:
        """States (d,) of rows that have as many new tokens each."""
        if len(rows) > 1 and rows[0].stored and self._join(rows):
            together = list(self._together)
            return dict(zip(together, self._pass(together, self._joint), strict=True))
        self._leave([row for row in self._together if row in rows])
        return {row: self._pass([row], self._live[row])[0] for row in rows}

    def _pass(self, rows: list[Row], cache: Cache) -> torch.Tensor:
        states = self._policy.extend([r.new for r in rows], [r.stored for r in rows], cache)[:, -1]
        for row in rows:
            row.stored = row.length
        return states

    def _join(self, rows: list[Row]) -> bool:
        """Let these rows, and no others, be together; false where their caches do not fit."""
        come = [row for row in rows if row not in self._together]
        caches = [self._live[row] for row in come]
        stay = len(come) < len(rows)
        if not joinable([self._joint, *caches] if stay else caches):
            return False
        self._leave([row for row in self._together if row not in rows])
        if come:
            self._joint = joined([self._joint, *caches] if stay else caches)
            self._together += come
            self._live.update(dict.fromkeys(come))
        return True

    def _leave(self, rows: list[Row]) -> None:
        """Give rows that are together with others a cache each again."""
        if not rows:
            return
        self._live.update({row: self._copy(row) for row in rows})
        stay = [b for b, row in enumerate(self._together) if row not in rows]
        self._together = [self._together[b] for b in stay]
        if stay:
            narrow(self._joint, stay, max(row.stored for row in self._together))
        else:
            self._joint = None

    def _copy(self, row: Row) -> Cache:
        if row in self._together:
            return picked(self._joint, self._together.index(row), row.stored)
        return copied(self._live[row])
