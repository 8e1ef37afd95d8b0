"""Credit to training rows.

One rule for reduction: rows leave here with their advantages already divided by the number of
action tokens of *all* rows, and a backend only sums. So "token-mean" means the same thing on every
backend, however it cuts a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from turncredit.core.datum import Datum
from turncredit.core.tokens import to_datum
from turncredit.core.types import Array, Credit, Group, Trajectory


@dataclass(frozen=True, slots=True)
class Rows:
    """Training rows, with what was left out and why.

    Attributes:
        data: rows whose advantages are divided by the number of action tokens of all of them.
        counts: groups, groups_skipped, rows, rows_zero, rows_empty, rows_nonfinite,
            action_tokens.
        reasons: one line per trajectory that was left out.
    """

    data: tuple[Datum, ...]
    counts: Mapping[str, int]
    reasons: tuple[str, ...] = field(default=())


def build_rows(groups: Sequence[Group], credits: Sequence[Credit]) -> Rows:
    """Rows of the trajectories that carry a signal, pre-scaled to a token mean.

    Raises:
        AlignmentError: a credit does not fit its group.
    """
    data: list[Datum] = []
    dropped: list[tuple[str, str]] = []
    skipped = 0
    for group, credit in zip(groups, credits, strict=True):
        skipped += not credit.has_signal
        for i, trajectory in enumerate(group.trajectories):
            distill = None if credit.distill is None else credit.distill[i]
            if why := _unusable(trajectory, credit.advantage[i], distill):
                dropped.append((why, trajectory.name))
            else:
                data.append(to_datum(trajectory, credit.advantage[i], distill))
    tokens = sum(int(datum.mask.sum()) for datum in data)
    kinds = [why for why, _ in dropped]
    return Rows(
        data=tuple(_scaled(datum, tokens) for datum in data),
        counts={
            "groups": len(groups),
            "groups_skipped": skipped,
            "rows": len(data),
            "rows_zero": kinds.count(_ZERO),
            "rows_empty": kinds.count(_EMPTY),
            "rows_nonfinite": kinds.count(_NONFINITE),
            "action_tokens": tokens,
        },
        reasons=tuple(f"{name}: {why}" for why, name in dropped),
    )


def to_data(groups: Sequence[Group], credits: Sequence[Credit]) -> list[Datum]:
    """The rows of `build_rows` alone."""
    return list(build_rows(groups, credits).data)


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


def _scaled(datum: Datum, tokens: int) -> Datum:
    distill = None if datum.distill is None else datum.distill / tokens
    return replace(datum, advantages=datum.advantages / tokens, distill=distill)
