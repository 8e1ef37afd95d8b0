"""Keys and values of many live sequences in preallocated memory, one row each.

A row's valid entries are its first `length` positions. Later positions may hold leftovers; they
are overwritten before a mask ever shows them. Memory starts as zeros, since a masked NaN in the
values would still poison the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_DENSE = 3  # rows of a stretch per wanted row up to which it is read in place


@dataclass(frozen=True, slots=True)
class Shape:
    """What one token of cache costs, and where it lives."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def numbers_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers * self.heads * self.width

    @property
    def bytes_per_token(self) -> int:
        """What they take."""
        return self.numbers_per_token * self.dtype.itemsize


class Arena:
    """Per layer one (rows, 2 · heads, positions, width) tensor: key heads, then value heads."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.rows = 0
        self.positions = 0
        self._layers: list[torch.Tensor] = []

    @property
    def bytes(self) -> int:
        """What is allocated."""
        return self.rows * self.positions * self.shape.bytes_per_token

    def resize(self, rows: int, positions: int, keep: Sequence[int] | None = None) -> None:
        """Have `rows` × `positions`.

        Args:
            rows: how many.
            positions: of each row.
            keep: old rows that become rows 0, 1, …; None: all stay where they are. What does not
                fit into the new positions is cut off.

        One layer is moved at a time, so that old and new never exist twice as a whole.
        """
        kept = range(min(self.rows, rows)) if keep is None else keep
        if (rows, positions) == (self.rows, self.positions) and kept == range(self.rows):
            return
        old, self._layers = self._layers, []
        shown = min(positions, self.positions)
        for _ in range(self.shape.layers):
            new = self._empty(rows, positions)
            source = old.pop(0) if old else new
            for target, row in enumerate(kept):
                new[target, :, :shown] = source[row, :, :shown]
            del source
            self._layers.append(new)
        self.rows, self.positions = rows, positions

    def clear(self) -> None:
        """Give all memory back."""
        self.rows = self.positions = 0
        self._layers = []

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row to another."""
        for tensor in self._layers:
            tensor[target, :, :length] = tensor[source, :, :length]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, (rows, heads, positions, width) each."""
        keys, values = self._layers[index].split(self.shape.heads, dim=1)
        return keys, values

    def put(self, index: int, rows: torch.Tensor, places: torch.Tensor, kv: torch.Tensor) -> None:
        """Store keys and values of N tokens, (N, 2 · heads, width), each at its row and place."""
        self._layers[index][rows, :, places] = kv

    def _empty(self, rows: int, positions: int) -> torch.Tensor:
        shape = self.shape
        size = rows, 2 * shape.heads, positions, shape.width
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)


@dataclass(frozen=True, slots=True)
class Stretch:
    """How B wanted rows of the arena are read: in place where they lie close together.

    Attributes:
        index: (B,) the rows.
        span: the stretch that holds them all; None: they are scattered, and gathered.
        places: where they are in the stretch; None: they fill it.
        rows: rows that are read.
    """

    index: torch.Tensor
    span: slice | None
    places: torch.Tensor | None
    rows: int

    @staticmethod
    def of(rows: list[int], device: torch.device) -> Stretch:
        """Gathering reads and writes rows once more, so up to a point other rows are read too."""
        index = torch.tensor(rows, device=device)
        low, high = min(rows), max(rows) + 1
        if high - low > _DENSE * len(rows):
            return Stretch(index, None, None, len(rows))
        filled = rows == list(range(low, high))
        return Stretch(index, slice(low, high), None if filled else index - low, high - low)

    def read(self, store: torch.Tensor, length: int) -> torch.Tensor:
        """(arena rows, H, P, d) → (`rows`, H, length, d), a view or a copy."""
        if self.span:
            return store[self.span, :, :length]
        return store[:, :, :length].index_select(0, self.index)

    def spread(self, wanted: torch.Tensor, fill: float) -> torch.Tensor:
        """(B, …) → (`rows`, …): each row at its place, `fill` in rows nobody asked for."""
        if self.places is None:
            return wanted
        out = wanted.new_full((self.rows, *wanted.shape[1:]), fill)
        out[self.places] = wanted
        return out

    def gather(self, read: torch.Tensor) -> torch.Tensor:
        """The inverse of `spread`."""
        return read if self.places is None else read[self.places]


class Window:
    """What a Transformers layer calls its cache: writes new keys and values, returns all.

    Args:
        arena: where rows live.
        stretch: how B distinct arena rows are read.
        positions: (B, T), where each new token of each row goes.
        length: L, positions shown to attention.
    """

    def __init__(
        self, arena: Arena, stretch: Stretch, positions: torch.Tensor, length: int
    ) -> None:
        self._arena, self._stretch, self._positions = arena, stretch, positions
        self._length = length

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store (B, H, T, d) keys and values; return (`stretch.rows`, H, L, d) views or copies."""
        keys, values = self._arena.layer(layer_idx)
        return self._put_and_read(keys, key), self._put_and_read(values, value)

    def get_seq_length(self, *_: Any) -> int:
        """Unused: positions are always given."""
        return 0

    def _put_and_read(self, store: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        store[self._stretch.index[:, None], :, self._positions] = new.transpose(1, 2)
        return self._stretch.read(store, self._length)
