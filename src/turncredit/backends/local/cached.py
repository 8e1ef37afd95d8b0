"""Attention of new tokens over the rows of the arena, for the lean forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from turncredit.backends.local.arena import Arena, Stretch

_ALONE = 64  # new tokens of a row from which it is read by itself: no pad, no longer neighbour


@dataclass(frozen=True, slots=True)
class Chunk:
    """B rows of new tokens after what the arena holds: ids, tokens stored before, arena rows."""

    ids: list[list[int]]
    starts: list[int]
    rows: list[int]


class Cached:
    """Stores what the N new tokens of a chunk bring, and lets each look at its row up to itself.

    Attributes:
        ids: (N,), row after row without pads.
        positions: (N,).
        last: (B,) index of each row's last token; None: rows have one token each.
    """

    def __init__(self, arena: Arena, chunk: Chunk, scale: float) -> None:
        device = arena.shape.device
        self._arena, self._scale = arena, scale
        self._starts, self._counts = chunk.starts, [len(ids) for ids in chunk.ids]
        self._row_numbers, self._longest = chunk.rows, max(self._counts)
        self._shown = max(s + n for s, n in zip(chunk.starts, self._counts, strict=True))
        self._masks: list[torch.Tensor | None] = []
        self._at: tuple[torch.Tensor, torch.Tensor] | None = None
        self.ids = torch.tensor([i for ids in chunk.ids for i in ids], device=device)
        self.positions = torch.tensor(chunk.starts, device=device)
        self.last: torch.Tensor | None = None
        self._arena_rows = torch.tensor(chunk.rows, device=device)
        if self._longest > 1:
            self._lay_out(device)
        if self._longest < _ALONE:
            self._stretch = Stretch.of(chunk.rows, device)
            self._mask = self._stretch.spread(self._batch_mask(), 0.0)

    def _lay_out(self, device: torch.device) -> None:
        """Where each of the N tokens belongs, when rows have several."""
        count = torch.tensor(self._counts)
        end = count.cumsum(0)
        row = torch.arange(len(count)).repeat_interleave(count)
        step = torch.arange(len(row)) - (end - count)[row]
        self._ends: list[int] = end.tolist()
        self._at = row, step = row.to(device), step.to(device)
        self.positions = self.positions[row] + step
        self.last = end.to(device) - 1
        self._arena_rows = self._arena_rows[row]
        if self._longest >= _ALONE:
            self._masks = [self._row_mask(b) for b in range(len(self._counts))]

    def __call__(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """(N, Hq, d) queries; (N, 2 Hkv, d) keys, then values → (N, Hq, d)."""
        self._arena.put(layer, self._arena_rows, self.positions, kv)
        if self._masks:
            return self._row_by_row(layer, q, *kv.chunk(2, dim=1))
        if self._at is None:
            return self._together(layer, q.unsqueeze(2))[:, :, 0]
        padded = q.new_zeros(len(self._counts), self._longest, *q.shape[1:])
        padded[self._at] = q
        return self._together(layer, padded.transpose(1, 2)).transpose(1, 2)[self._at]

    def _together(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """(B, Hq, T, d) → the same, all rows at once."""
        keys, values = (self._stretch.read(x, self._shown) for x in self._arena.layer(layer))
        wanted = self._stretch.spread(q, 0.0)
        return self._stretch.gather(_attend(wanted, keys, values, self._mask, self._scale))

    def _row_by_row(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        keys, values = self._arena.layer(layer)
        out: list[torch.Tensor] = []
        for b, row in enumerate(self._row_numbers):
            at, mask = slice(self._ends[b] - self._counts[b], self._ends[b]), self._masks[b]
            wanted = q[at].transpose(0, 1)[None]
            if mask is None:  # nothing is stored before these tokens
                key, value = (x[at].transpose(0, 1)[None] for x in (k, v))
                seen = attend_causally(wanted, key, value, self._scale)
            else:
                key, value = (x[row : row + 1, :, : mask.shape[-1]] for x in (keys, values))
                seen = _attend(wanted, key, value, mask, self._scale)
            out.append(seen[0].transpose(0, 1))
        return torch.cat(out)

    def _batch_mask(self) -> torch.Tensor:
        """(B, 1, longest, shown): 0 where looking is allowed, else -inf."""
        start = torch.tensor(self._starts, device=self._arena.shape.device)
        place = start[:, None] + torch.arange(self._longest, device=start.device)
        return self._barred(place)[:, None]

    def _row_mask(self, b: int) -> torch.Tensor | None:
        if not self._starts[b]:
            return None
        place = self._starts[b] + torch.arange(self._counts[b], device=self._arena.shape.device)
        return self._barred(place, self._starts[b] + self._counts[b])[None, None]

    def _barred(self, place: torch.Tensor, shown: int | None = None) -> torch.Tensor:
        key = torch.arange(self._shown if shown is None else shown, device=place.device)
        mask = place.new_zeros((*place.shape, len(key)), dtype=self._arena.shape.dtype)
        return mask.masked_fill_(key > place[..., None], -torch.inf)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """(B, Hq, T, d) over (B, Hkv, L, d) with a (B, 1, T, L) mask → (B, Hq, T, d)."""
    batch, heads, length, width = q.shape
    groups = heads // k.shape[1]
    if length > 1 and q.device.type == "cpu":
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, enable_gqa=groups > 1
        )
    # Folding the group into the query length reads each key once.
    folded = q.reshape(batch, k.shape[1], groups * length, width)
    mask = mask.repeat(1, 1, groups, 1) if length > 1 else mask
    out = scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale)
    return out.reshape(batch, heads, length, width)


def attend_causally(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """(B, Hq, T, d) over (B, Hkv, T, d) → (B, Hq, T, d)."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
