"""Batched decoding of rows at different places, with exact prefix reuse.

Everything here is synchronous; `engine` decides when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from turncredit.backends.local.arena import Arena
from turncredit.backends.local.cached import Chunk
from turncredit.backends.local.noise import Draw, choose
from turncredit.backends.local.own_cache import OwnCaches
from turncredit.backends.local.policy import Policy
from turncredit.backends.local.slots import MIN_FORK, Slot, Slots, as_bytes, common
from turncredit.backends.local.threads import threads_for
from turncredit.core.calls import Sample, SamplingParams

_LOOK_AHEAD = 64  # positions reserved for an action when its row is admitted
_WORTH = 32  # tokens of a common prefix for which a row waits until another has computed them


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
    reused: int = 0  # tokens found there whenever the row was admitted,
    prefilled: int = 0  # and tokens that had to be computed then
    stopped: bool = False

    @property
    def ids(self) -> list[int]:
        """Prompt and what is sampled so far."""
        return self.prompt + self.out

    @property
    def length(self) -> int:
        """Tokens of `ids`."""
        return len(self.prompt) + len(self.out)

    @property
    def new(self) -> list[int]:
        """Tokens whose keys are not stored."""
        begun = self.stored - len(self.prompt)
        return self.out[begun:] if begun >= 0 else self.prompt[self.stored :] + self.out

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
    """Rows of one snapshot at a time, advanced together.

    Args:
        policy: the network.
        batch_tokens: tokens of one prefill pass.
        cache_bytes: for keys and values.
        reuse: keep rows between turns and share common prefixes.
        few_threads: give small passes one thread.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        batch_tokens: int,
        cache_bytes: int,
        reuse: bool = True,
        few_threads: bool = False,
    ) -> None:
        self._policy, self._batch_tokens, self._reuse = policy, batch_tokens, reuse
        self._few_threads = few_threads and policy.device.type == "cpu"
        self._arena = Arena(policy.cache_shape())
        self.slots = Slots(self._arena, budget_bytes=cache_bytes, reuse=reuse)
        self._own: OwnCaches | None = None
        if policy.row_bytes:
            self._own = OwnCaches(policy, budget_bytes=cache_bytes, reuse=reuse)
        self.rechecked = 0  # choices made again by the canonical path
        self.preempted = 0  # rows that lost their place while they were sampled

    def check(self, tokens: int) -> None:
        """Refuse a row that never fits, while it is the only one to suffer.

        Raises:
            BackendError: the cache's budget cannot hold a row of so many tokens.
        """
        if self._own:
            self._own.check(tokens)
        elif self._policy.cached:
            self.slots.check(tokens)

    def admit(self, rows: list[Row]) -> list[Row]:
        """Give rows their place in the cache; returns those that found one.

        A row that shares more with another of the list than with what is stored waits for it, so
        that its keys are copied instead of computed again: of many games' first turns one goes
        first, then one of each game, then the rest.
        """
        if self._own:
            return self._own.admit(rows)
        if not self._policy.cached:
            for row in rows:
                row.prefilled = row.length
            return rows
        self.slots.keep_only(rows[0].owner if rows else "")
        admitted: list[Row] = []
        computing: list[bytes] = []
        for row in rows:
            room = row.length + min(_LOOK_AHEAD, row.params.max_tokens - len(row.out))
            if not self.slots.admits(room):
                break
            ids = as_bytes(row.ids)
            slot = self.slots.extend(row.owner, ids, room)
            if slot is None and not self._waits(row.owner, ids, computing):
                slot = self.slots.fork(row.owner, ids, room)
                computing.append(ids)
            if slot:
                row.slot, row.stored = slot, slot.length
                row.reused += row.stored
                row.prefilled += row.length - row.stored
                admitted.append(row)
        return admitted

    def batches(self, rows: list[Row]) -> list[list[Row]]:
        """Cut rows into passes of at most `batch_tokens` padded tokens, like lengths together."""
        out: list[list[Row]] = []
        for row in sorted(rows, key=lambda r: (r.length - r.stored, r.slot.row if r.slot else 0)):
            longest = row.length - row.stored
            if out and (len(out[-1]) + 1) * longest <= self._batch_tokens:
                out[-1].append(row)
            else:
                out.append([row])
        return out

    def advance(self, rows: list[Row]) -> None:
        """Sample the next token of each row, after computing what is not stored of it.

        A row that lost its place in the cache, before or here, is left as it is (see `taken`).
        """
        if rows := self._seated(rows):
            new = sum(row.length - row.stored for row in rows)
            read = sum(row.stored for row in rows) * self._arena.shape.numbers_per_token
            with threads_for(new * self._policy.size if self._few_threads else torch.inf, read):
                self._sample(rows)

    @torch.no_grad()
    def _sample(self, rows: list[Row]) -> None:
        self._policy.mount(rows[0].weights)
        logits = self._policy.logits(self._hidden(rows))
        draw = Draw(
            seeds=[r.seed for r in rows],
            positions=[len(r.out) for r in rows],
            temperature=[r.params.temperature for r in rows],
            top_p=[r.params.top_p for r in rows],
        )
        tolerance = self._policy.noise if self._policy.exact else 0.0
        chosen, doubtful = choose(logits, draw, tolerance=tolerance)
        if self._policy.exact:
            # A choice within the noise is made again by the canonical path (one row, no cache), so
            # ids depend neither on the batch nor on how a pass is computed.
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
        if self._own:
            self._own.release(row)
        if row.slot and not row.slot.lost:
            self.slots.release(row.slot, as_bytes(row.ids[: row.stored]))
        row.slot = None

    def forget(self, owner: str) -> None:
        """Drop what is kept of a snapshot."""
        self.slots.forget(owner)
        if self._own:
            self._own.forget(owner)

    def taken(self, rows: list[Row]) -> list[Row]:
        """Rows whose place another needed: they start again from their ids when there is room."""
        gone = [row for row in rows if row.slot and row.slot.lost]
        for row in gone:
            row.slot, row.stored = None, 0
        self.preempted += len(gone)
        return gone

    def _waits(self, owner: str, ids: bytes, computing: list[bytes]) -> bool:
        if not self._reuse or not computing:
            return False
        shared = max(common(ids[:-4], other) for other in computing)
        return shared >= MIN_FORK and shared >= self.slots.nearest(owner, ids)[1] + _WORTH

    def _seated(self, rows: list[Row]) -> list[Row]:
        """Rows that have a place with room for one more token, in the order of places."""
        if not self._policy.cached:
            return rows
        for row in rows:
            if row.slot and not row.slot.lost:
                self.slots.widen(row.slot, row.length + 1)
        seated = [(row.slot.row, row) for row in rows if row.slot and not row.slot.lost]
        return [row for _, row in sorted(seated, key=lambda pair: pair[0])]

    def _hidden(self, rows: list[Row]) -> torch.Tensor:
        if self._own:
            return self._own.hidden(rows)
        if not self._policy.cached:
            hidden = self._policy.full([r.ids for r in rows])
            last = torch.tensor([r.length - 1 for r in rows], device=hidden.device)
            return hidden[torch.arange(len(rows), device=hidden.device), last]
        chunk = Chunk(
            ids=[r.new for r in rows],
            starts=[r.stored for r in rows],
            rows=[r.slot.row for r in rows if r.slot],
        )
        hidden = self._policy.step(chunk, self._arena)
        for row in rows:
            if not row.out and row.slot:
                row.slot.ids = as_bytes(row.ids)  # others may fork from here on
            row.stored = row.length
        return hidden
