"""Demonstrations to training rows: which are kept aside, in what order the rest is seen."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from turncredit.core.clients import SamplingClient
from turncredit.core.datum import Datum
from turncredit.core.tokens import to_datum
from turncredit.core.types import Trajectory
from turncredit.loop.concurrency import bounded
from turncredit.loop.demonstrations import taught

_SCORED_AT_ONCE = 16


def hold_out(
    trajectories: Sequence[Trajectory], share: float, seed: int
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Split into those to learn and those kept aside, by task: no task is on both sides.

    At least one task is kept aside when `share` is above 0 and there are two.
    """
    aside = aside_of([t.task.id for t in trajectories], share, seed)
    learn = [t for t in trajectories if t.task.id not in aside]
    return learn, [t for t in trajectories if t.task.id in aside]


def aside_of(tasks: Iterable[str], share: float, seed: int) -> set[str]:
    """The ids of the tasks that are kept aside."""
    ids = sorted(set(tasks))
    count = min(max(1, round(share * len(ids))), len(ids) - 1) if share > 0 and ids else 0
    return set(random.Random(f"{seed}/held-out").sample(ids, count))


class Order:
    """Every demonstration once per epoch, in an order drawn from (seed, epoch), none left out."""

    def __init__(self, count: int, *, seed: int, batch: int) -> None:
        self._count, self._seed, self._batch = count, seed, min(batch, count)
        self._shuffled: Mapping[int, list[int]] = {}

    def take(self, step: int) -> list[int]:
        """Indices for update `step`, counted from 0. A batch may reach into the next epoch."""
        first = step * self._batch
        places = [divmod(i, self._count) for i in range(first, first + self._batch)]
        epochs = sorted({epoch for epoch, _ in places})
        self._shuffled = {e: self._shuffled.get(e) or self._shuffle(e) for e in epochs}
        return [self._shuffled[epoch][at] for epoch, at in places]

    def epochs(self, step: int) -> float:
        """Passes made after `step` updates."""
        return step * self._batch / self._count

    def _shuffle(self, epoch: int) -> list[int]:
        indices = list(range(self._count))
        random.Random(f"{self._seed}/{epoch}").shuffle(indices)
        return indices


def to_row(trajectory: Trajectory) -> Datum:
    """A training row of weight 1 on the tokens of every taught turn; all else is context."""
    weights_K = tuple(
        np.full(len(turn.logprob_N), float(worth))
        for turn, worth in zip(trajectory.turns, taught(trajectory), strict=True)
    )
    row = to_datum(trajectory, weights_K)
    return replace(row, mask=row.advantages > 0)


def scaled(rows: Sequence[Datum]) -> list[Datum]:
    """Rows whose weights sum to 1 over all of them: their summed loss is the mean per token."""
    tokens = sum(int(row.mask.sum()) for row in rows)
    return [replace(row, advantages=row.advantages / tokens) for row in rows]


async def mean_loss(rows: Sequence[Datum], client: SamplingClient) -> float:
    """Mean cross-entropy per taught token under the client's snapshot, nats."""

    async def one(row: Datum) -> float:
        wanted = len(row.tokens) - int(np.argmax(row.mask))
        scores = await client.compute_logprobs(row.tokens.tolist(), last_n=wanted)
        return -float(scores.logprobs[row.mask].sum())

    sums = await bounded([partial(one, row) for row in rows], _SCORED_AT_ONCE)
    return math.fsum(sums) / sum(int(row.mask.sum()) for row in rows)
