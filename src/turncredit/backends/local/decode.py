"""Batched decoding of rows at different places, with exact prefix reuse.

Everything here is synchronous; `engine` decides when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from turncredit.backends.local.arena import Arena
from turncredit.backends.local.noise import Draw, choose
from turncredit.backends.local.policy import Chunk, Policy
from turncredit.backends.local.slots import Slot, Slots, as_bytes
from turncredit.core.protocols import Sample, SamplingParams

# Logits of one row differ by up to ~1e-4 between batch shapes in float32; a choice closer than
# this is made again by the canonical path (one row, no cache), so ids never depend on the batch.
_NOISE = 1e-3
_LOOK_AHEAD = 64  # positions reserved for an action when its row is admitted


@dataclass(slots=True, eq=False)
class Row:
    """One sample in the making."""

    owner: str
    weights: Mapping[str, torch.Tensor]
    prompt: list[int]
    params: SamplingParams
    seed: int
    out: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    slot: Slot | None = None
    stored: int = 0  # tokens whose keys are in the arena
    reused: int = 0  # of which were there before this row
    stopped: bool = False

    @property
    def ids(self) -> list[int]:
        """Prompt and what is sampled so far."""
        return self.prompt + self.out

    @property
    def done(self) -> bool:
        """A stop id came, or the budget is spent."""
        return self.stopped or len(self.out) >= self.params.max_tokens

    def sample(self) -> Sample:
        """The finished sample."""
        return Sample(
            tokens=tuple(self.out),
            logprobs=tuple(self.logprobs),
            stop_reason="stop" if self.stopped else "length",
        )


class Decoder:
    """Rows of one snapshot at a time, advanced together."""

    def __init__(self, policy: Policy, *, batch_tokens: int, cache_bytes: int) -> None:
        self._policy, self._batch_tokens = policy, batch_tokens
        self._arena = Arena(policy.cache_shape())
        self.slots = Slots(self._arena, budget_bytes=cache_bytes)
        self.rechecked = 0  # choices made again by the canonical path

    def admit(self, rows: list[Row]) -> list[Row]:
        """Give rows their place in the cache; returns those that found one.

        Rows with the same prompt as another of the list wait for it, so that its keys are copied
        instead of computed again.
        """
        if not self._policy.cached:
            return rows
        self.slots.keep_only(rows[0].owner if rows else "")
        admitted: list[Row] = []
        new: list[tuple[Row, bytes]] = []
        seen: set[bytes] = set()
        for row in rows:
            ids = as_bytes(row.ids)
            if not self.slots.make_room(len(row.ids) + _LOOK_AHEAD):
                break
            row.slot = self.slots.extend(row.owner, ids)
            if row.slot:
                admitted.append(row)
            elif ids not in seen:
                seen.add(ids)
                new.append((row, ids))
        for row, ids in new:
            row.slot = self.slots.fork(row.owner, ids, len(row.ids) + _LOOK_AHEAD)
            if row.slot:
                admitted.append(row)
        for row in admitted:
            row.stored = row.reused = row.slot.length if row.slot else 0
        return admitted

    def batches(self, rows: list[Row]) -> list[list[Row]]:
        """Cut rows into passes of at most `batch_tokens` padded tokens, like lengths together."""
        out: list[list[Row]] = []
        longest = 0
        for row in sorted(rows, key=lambda r: (len(r.ids) - r.stored, r.slot.row if r.slot else 0)):
            longest = len(row.ids) - row.stored
            if out and (len(out[-1]) + 1) * longest <= self._batch_tokens:
                out[-1].append(row)
            else:
                out.append([row])
        return out

    @torch.no_grad()
    def advance(self, rows: list[Row]) -> None:
        """Sample the next token of each row, after computing what is not stored of it."""
        rows = sorted(rows, key=lambda r: r.slot.row if r.slot else 0)
        self._policy.mount(rows[0].weights)
        logits = self._policy.logits(self._hidden(rows))
        draw = Draw(
            seeds=[r.seed for r in rows],
            positions=[len(r.out) for r in rows],
            temperature=[r.params.temperature for r in rows],
            top_p=[r.params.top_p for r in rows],
        )
        chosen, doubtful = choose(logits, draw, tolerance=_NOISE if self._policy.exact else 0.0)
        if self._policy.exact:
            for b in doubtful.nonzero()[:, 0].tolist():
                logits[b] = self._policy.fresh_logits(rows[b].ids)
                chosen[b] = choose(logits[b : b + 1], draw.row(b), tolerance=0.0)[0][0]
                self.rechecked += 1
        logprob = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        for row, token, value in zip(rows, chosen.tolist(), logprob.tolist(), strict=True):
            row.out.append(token)
            row.logprobs.append(value)
            row.stopped = token in row.params.stop_ids

    def release(self, row: Row) -> None:
        """Leave the row's keys for the next turn."""
        if row.slot:
            self.slots.release(row.slot, as_bytes(row.ids[: row.stored]))
            row.slot = None

    def _hidden(self, rows: list[Row]) -> torch.Tensor:
        if not self._policy.cached:
            hidden = self._policy.full([r.ids for r in rows])
            last = torch.tensor([len(r.ids) - 1 for r in rows], device=hidden.device)
            return hidden[torch.arange(len(rows), device=hidden.device), last]
        self.slots.grow(max(len(r.prompt) + len(r.out) for r in rows) + 1)
        chunk = Chunk(
            ids=[r.ids[r.stored :] for r in rows],
            starts=[r.stored for r in rows],
            rows=[r.slot.row for r in rows if r.slot],
        )
        hidden = self._policy.step(chunk, self._arena)
        for row in rows:
            if not row.out and row.slot:
                row.slot.ids = as_bytes(row.ids)  # others may fork from here on
            row.stored = len(row.ids)
        return hidden
