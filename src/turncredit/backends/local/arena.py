"""Keys and values of many live sequences in preallocated memory, one row each.

A row's valid entries are its first `length` positions. Later positions may hold leftovers; they
are overwritten before a mask ever shows them. Memory starts as zeros, since a masked NaN in the
values would still poison the sum.
"""

from __future__ import annotations

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
    def bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers * self.heads * self.width * self.dtype.itemsize


class Arena:
    """(rows, heads, positions, width) tensors per layer, grown on demand."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.rows = 0
        self.positions = 0
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def reserve(self, rows: int, positions: int) -> None:
        """Make room for at least `rows` × `positions`, keeping what is there."""
        if rows <= self.rows and positions <= self.positions:
            return
        rows, positions = max(rows, self.rows), max(positions, self.positions)
        self._keys = [self._grown(i, self._keys, rows, positions) for i in range(self.shape.layers)]
        self._values = [
            self._grown(i, self._values, rows, positions) for i in range(self.shape.layers)
        ]
        self.rows, self.positions = rows, positions

    def clear(self) -> None:
        """Give all memory back."""
        self.rows = self.positions = 0
        self._keys, self._values = [], []

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row to another."""
        for tensor in (*self._keys, *self._values):
            tensor[target, :, :length] = tensor[source, :, :length]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, (rows, heads, positions, width)."""
        return self._keys[index], self._values[index]

    def _grown(
        self, layer: int, old: list[torch.Tensor], rows: int, positions: int
    ) -> torch.Tensor:
        shape = self.shape
        new = torch.zeros(
            rows, shape.heads, positions, shape.width, dtype=shape.dtype, device=shape.device
        )
        if old:
            new[: self.rows, :, : self.positions] = old[layer]
        return new


class Window:
    """What a Transformers layer calls its cache: writes new keys and values, returns all.

    Args:
        arena: where rows live.
        rows: B distinct arena rows.
        positions: (B, T), where each new token of each row goes.
        length: L, positions shown to attention.

    Attributes:
        rows: rows that `update` returns.
        places: where the B rows are among them; None: they are the same.
    """

    def __init__(self, arena: Arena, rows: list[int], positions: torch.Tensor, length: int) -> None:
        self._arena, self._positions, self._length = arena, positions, length
        self._index = torch.tensor(rows, device=arena.shape.device)
        low, high = min(rows), max(rows) + 1
        # A dense stretch is read in place, rows nobody asked for included; scattered rows are
        # gathered, which reads and writes them once more.
        dense = high - low <= _DENSE * len(rows)
        self._span = slice(low, high) if dense else None
        self.places = self._index - low if dense and high - low > len(rows) else None
        self.rows = high - low if dense else len(rows)

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store (B, H, T, d) keys and values; return (`rows`, H, L, d) views or copies."""
        keys, values = self._arena.layer(layer_idx)
        return self._put_and_read(keys, key), self._put_and_read(values, value)

    def get_seq_length(self, *_: Any) -> int:
        """Unused: positions are always given."""
        return 0

    def _put_and_read(self, store: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        store[self._index[:, None], :, self._positions] = new.transpose(1, 2)
        if self._span:
            return store[self._span, :, : self._length]
        return store[:, :, : self._length].index_select(0, self._index)
