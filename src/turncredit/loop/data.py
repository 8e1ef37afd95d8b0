"""Credit to training rows, and rows to the batches of an update.

One rule for reduction: what leaves `reduced` is already divided by what the aggregation divides by,
over *all* rows of an optimizer step, and a backend only sums. So "token-mean" means the same thing
on every backend, however it cuts a batch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from turncredit.core.datum import Datum, Distribution
from turncredit.core.needs import Aggregation
from turncredit.core.tokens import to_datum
from turncredit.core.types import (
    REFERENCE,
    Array,
    Credit,
    Group,
    ScoredTrajectory,
    Trajectory,
)
from turncredit.loop.terms import fold


@dataclass(frozen=True, slots=True)
class Rows:
    """Training rows as credited, with what was left out and why.

    Attributes:
        data: rows whose weights nothing has been divided by yet (see `reduced`).
        counts: groups, groups_skipped, rows, rows_zero, rows_empty, rows_nonfinite,
            action_tokens.
        reasons: one line per trajectory that was left out.
    """

    data: tuple[Datum, ...]
    counts: Mapping[str, int]
    reasons: tuple[str, ...] = field(default=())


def build_rows(
    groups: Sequence[Group],
    credits: Sequence[Credit],
    distributions: Sequence[Sequence[Distribution | None]] | None = None,
) -> Rows:
    """Rows of the trajectories that carry a signal.

    A row whose weights are all zero is left out, KL penalty or not: nothing was learnt about it.

    Raises:
        AlignmentError: a credit does not fit its group.
    """
    data: list[Datum] = []
    dropped: list[tuple[str, str]] = []
    skipped = 0
    for g, (group, credit) in enumerate(zip(groups, credits, strict=True)):
        skipped += not credit.has_signal
        for i, trajectory in enumerate(group.trajectories):
            distill = None if credit.distill is None else credit.distill[i]
            if why := _unusable(trajectory, credit.advantage[i], distill):
                dropped.append((why, trajectory.name))
            else:
                given = None if distributions is None else distributions[g][i]
                data.append(_row(trajectory, credit.advantage[i], distill, given))
    kinds = [why for why, _ in dropped]
    return Rows(
        data=tuple(data),
        counts={
            "groups": len(groups),
            "groups_skipped": skipped,
            "rows": len(data),
            "rows_zero": kinds.count(_ZERO),
            "rows_empty": kinds.count(_EMPTY),
            "rows_nonfinite": kinds.count(_NONFINITE),
            "action_tokens": sum(int(datum.mask.sum()) for datum in data),
        },
        reasons=tuple(f"{name}: {why}" for why, name in dropped),
    )


def reduced(
    data: Sequence[Datum], aggregation: Aggregation = "token-mean", *, longest: int = 1
) -> tuple[Datum, ...]:
    """Rows whose streams are divided so that their plain sum is the aggregate.

    Args:
        data: the rows of one optimizer step; a sequence is a row.
        aggregation: `loop.loss.token_weight` is the same over padded arrays.
        longest: what "seq-mean-token-sum-norm" divides by, tokens.
    """
    tokens = sum(int(datum.mask.sum()) for datum in data)
    divisor = {
        "token-mean": lambda _: tokens,
        "seq-mean-token-sum": lambda _: len(data),
        "seq-mean-token-mean": lambda count: count * len(data),
        "seq-mean-token-sum-norm": lambda _: longest,
    }[aggregation]
    return tuple(_divided(datum, divisor(int(datum.mask.sum()))) for datum in data)


def folded(
    groups: Sequence[Group], credits: Sequence[Credit], term: str, settings: Mapping[str, float]
) -> list[Credit]:
    """Credits whose distillation weights have become part of the advantages.

    Exact for one optimizer step a snapshot: `loop.terms.fold` has the same gradient there.
    """
    return [
        credit if credit.distill is None else _folded(group, credit, credit.distill, term, settings)
        for group, credit in zip(groups, credits, strict=True)
    ]


def _folded(
    group: Group,
    credit: Credit,
    distill: tuple[tuple[Array, ...], ...],
    term: str,
    settings: Mapping[str, float],
) -> Credit:
    def one(
        trajectory: Trajectory, advantage_K: tuple[Array, ...], weight_K: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        old_K = [turn.logprob_N for turn in trajectory.turns]
        columns = zip(advantage_K, weight_K, old_K, _teacher_K(trajectory), strict=True)
        return tuple(fold(term, a, w, old, teacher, settings) for a, w, old, teacher in columns)

    members = zip(group.trajectories, credit.advantage, distill, strict=True)
    return replace(credit, advantage=tuple(one(*member) for member in members), distill=None)


def _teacher_K(trajectory: Trajectory) -> tuple[Array, ...]:
    if isinstance(trajectory, ScoredTrajectory):
        return trajectory.teacher_K
    return tuple(turn.logprob_N for turn in trajectory.turns)


def beside_term(data: Sequence[Datum]) -> list[Datum]:
    """All rows in the form a backend's distillation term reads.

    Rows without weights for it say so with the weight 0 (an update the teacher takes no part in,
    or rows that only stand beside others), so that a stream left out by mistake stays an error.
    """
    return [
        row if row.distill is not None else replace(row, distill=np.zeros(len(row.tokens)))
        for row in data
    ]


def unpenalised(data: Sequence[Datum]) -> list[Datum]:
    """Rows that KL and entropy terms pass over: their tokens are penalised where they were sampled.

    Args:
        data: reduced rows that stand beside those of trajectories.
    """
    return [replace(row, weight=np.zeros(len(row.tokens)), reference=row.logprobs) for row in data]


def to_data(groups: Sequence[Group], credits: Sequence[Credit]) -> list[Datum]:
    """The rows of `build_rows`, reduced to a token mean."""
    return list(reduced(build_rows(groups, credits).data))


def batches(
    data: Sequence[Datum], *, epochs: int, minibatches: int, seed: str
) -> list[tuple[Datum, ...]]:
    """The rows of every optimizer step of an update, in order.

    Args:
        data: all rows.
        epochs: passes over them, shuffled unless there is but one, in one part.
        minibatches: parts of a pass, as equal as can be (fewer when there are fewer rows).
        seed: fixes the shuffles.
    """
    steps: list[tuple[Datum, ...]] = []
    parts = min(minibatches, len(data))
    for epoch in range(epochs if data else 0):
        rows = list(data)
        if epochs > 1 or parts > 1:
            random.Random(f"{seed}/{epoch}").shuffle(rows)
        cuts = [len(rows) * i // parts for i in range(parts + 1)]
        steps += [tuple(rows[start:stop]) for start, stop in pairwise(cuts)]
    return steps


_EMPTY = "no action tokens"
_NONFINITE = "a log-probability or advantage is not finite"
_ZERO = "zero advantage"


def _unusable(
    trajectory: Trajectory, advantage_K: tuple[Array, ...], distill_K: tuple[Array, ...] | None
) -> str:
    weights = [*advantage_K, *(distill_K or ())]
    if not any(len(turn.logprob_N) for turn in trajectory.turns):
        return _EMPTY
    numbers = [*weights, *(turn.logprob_N for turn in trajectory.turns)]
    if not all(np.isfinite(x).all() for x in numbers):
        return _NONFINITE
    return "" if any(np.any(x) for x in weights) else _ZERO


def _row(
    trajectory: Trajectory,
    advantage_K: tuple[Array, ...],
    distill_K: tuple[Array, ...] | None,
    distribution: Distribution | None,
) -> Datum:
    return to_datum(
        trajectory,
        advantage_K,
        distill_K,
        teacher_K=None if distill_K is None else _teacher_K(trajectory),
        reference_K=trajectory.streams.get(REFERENCE),
        distribution=distribution,
    )


def _divided(datum: Datum, divisor: int) -> Datum:
    return replace(
        datum,
        advantages=datum.advantages / divisor,
        distill=None if datum.distill is None else datum.distill / divisor,
        weight=datum.mask / divisor,
    )
