"""Merges calls of many coroutines into batches.

Callers put requests in a queue and await them; one pump task per event loop runs while there is
work. The network runs *inside* the event loop, a few steps at a time: with environments that do
not use threads, the order of everything is then a function of the inputs alone, which is what
makes a resumed run repeat the interrupted one bit for bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from turncredit.backends.local.decode import Decoder, Row
from turncredit.backends.local.passes import Passes
from turncredit.backends.local.policy import Policy
from turncredit.backends.local.score import Question, answer, next_batch

_QUIET = 3  # turns of the event loop without a new request before a batch is closed
_PATIENCE_S = 0.001  # per wait for callers whose environment runs elsewhere
_STEPS = 4  # decoding steps between two looks at the queue
_HOLD = 6  # looks after which even a few waiting rows are started


@dataclass(slots=True, eq=False)
class ScoreJob:
    """One row to read."""

    owner: str
    weights: Mapping[str, torch.Tensor]
    question: Question
    future: asyncio.Future[tuple[Any, int]]


@dataclass(slots=True, eq=False)
class SampleJob:
    """The rows of one `sample` call."""

    rows: list[Row]
    future: asyncio.Future[None]
    pending: int = 0


@dataclass(slots=True)
class Engine:
    """The queue in front of one policy."""

    passes: Passes
    decoder: Decoder
    max_batch: int
    batch_tokens: int
    _scores: list[ScoreJob] = field(default_factory=list)
    _waiting: list[Row] = field(default_factory=list)
    _active: list[Row] = field(default_factory=list)
    _jobs: dict[int, SampleJob] = field(default_factory=dict)
    _held: int = 0
    _answered: int = 0
    _arrived: int = 0
    _pump: asyncio.Task[None] | None = None

    @property
    def policy(self) -> Policy:
        """The network."""
        return self.passes.policy

    async def sample(self, rows: list[Row]) -> None:
        """Finish all `rows` (of one snapshot)."""
        job = SampleJob(rows, asyncio.get_running_loop().create_future(), len(rows))
        self._jobs.update({id(row): job for row in rows})
        self._waiting.extend(rows)
        self._start()
        await job.future

    async def score(
        self, owner: str, weights: Mapping[str, torch.Tensor], question: Question
    ) -> tuple[Any, int]:
        """The answer, and how many tokens of the row were computed for another one."""
        future: asyncio.Future[tuple[Any, int]] = asyncio.get_running_loop().create_future()
        self._scores.append(ScoreJob(owner, weights, question, future))
        self._start()
        return await future

    def _start(self) -> None:
        self._arrived += 1
        loop = asyncio.get_running_loop()
        if self._pump is None or self._pump.done() or self._pump.get_loop() is not loop:
            self._pump = loop.create_task(self._run())
            # Every caller gets the error itself; nobody awaits the pump.
            self._pump.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _run(self) -> None:
        try:
            while True:
                await self._settle()
                self._drop_cancelled()
                if self._scores:
                    self._score_batch()
                elif self._waiting or self._active:
                    await self._decode_round()
                else:
                    return
        except BaseException as error:
            self._fail(error)
            raise

    async def _settle(self) -> None:
        """Let every caller that can go on do so, until no new request comes."""
        quiet, waited, seen = 0, 0, self._arrived
        while quiet < _QUIET:
            await asyncio.sleep(0)
            quiet, seen = (quiet + 1, seen) if self._arrived == seen else (0, self._arrived)
            # Callers that just got an answer usually come back; their environment may be slower
            # than the loop. Waiting a little for them keeps batches whole.
            if quiet == _QUIET and self._arrived < self._answered and waited < _QUIET:
                await asyncio.sleep(_PATIENCE_S)
                quiet, waited = 0, waited + 1
        self._arrived = self._answered = 0

    def _score_batch(self) -> None:
        """Answer the first question, and those of its snapshot that go well with it."""
        first = self._scores[0]
        same = [job for job in self._scores if job.owner == first.owner]
        chosen = next_batch(self.passes, [job.question for job in same], self.batch_tokens)
        batch = [same[i] for i in chosen]
        questions = [job.question for job in batch]
        answers = answer(self.passes, first.weights, questions, self.batch_tokens)
        # Only now: who is not in the queue would never hear of an error.
        self._scores = [job for job in self._scores if job not in batch]
        for job, found in zip(batch, answers, strict=True):
            job.future.set_result(found)

    async def _decode_round(self) -> None:
        while rows := self._admit():
            self._active.extend(rows)
            for batch in self.decoder.batches(rows):
                self._advance(batch)
                await asyncio.sleep(0)
        for _ in range(_STEPS):
            if self._finish() or not self._active:
                return
            self._advance(self._active)
        self._finish()

    def _advance(self, rows: list[Row]) -> None:
        self.decoder.advance(rows)
        if taken := self.decoder.taken(self._active):
            self._active = [row for row in self._active if row not in taken]
            self._waiting = taken + self._waiting

    def _admit(self) -> list[Row]:
        """Rows to start now. A prefill delays running rows, so it waits until it is worth it."""
        room = self.max_batch - len(self._active)
        self._held += 1
        if not self._waiting:
            return []
        if len(self._waiting) < len(self._active) and self._held < _HOLD:
            return []
        owner = (self._active or self._waiting)[0].owner
        if self._active and any(row.owner != owner for row in self._waiting):
            return []  # another snapshot waits for its turn
        self._held = 0
        rows = [row for row in self._waiting if row.owner == owner][:room]
        admitted = self.decoder.admit(rows)
        self._waiting = [row for row in self._waiting if row not in admitted]
        return admitted

    def _finish(self) -> bool:
        done = [row for row in self._active if row.done]
        self._active = [row for row in self._active if not row.done]
        for row in done:
            self.decoder.release(row)
            job = self._jobs.pop(id(row))
            job.pending -= 1
            if not job.pending and not job.future.done():
                job.future.set_result(None)
                self._answered += 1
        return bool(done)

    def _drop_cancelled(self) -> None:
        self._scores = [job for job in self._scores if not job.future.done()]
        gone = {key for key, job in self._jobs.items() if job.future.done()}
        if not gone:
            return
        for row in self._active:
            if id(row) in gone:
                self.decoder.release(row)
        self._active = [row for row in self._active if id(row) not in gone]
        self._waiting = [row for row in self._waiting if id(row) not in gone]
        for key in gone:
            del self._jobs[key]

    def _fail(self, error: BaseException) -> None:
        """Nobody is left waiting for a pump that died."""
        for row in self._active:
            self.decoder.release(row)
        futures = [job.future for job in self._scores]
        futures += [job.future for job in self._jobs.values()]
        self._scores, self._waiting, self._active = [], [], []
        self._jobs.clear()
        for future in futures:
            if not future.done():
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                else:
                    future.set_exception(error)
