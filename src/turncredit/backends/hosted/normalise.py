"""One config, one gradient: what services do differently, brought to our convention.

Log-probs of a prompt of T tokens arrive as T values, as T with None first, or as T - 1; here they
are (T,) with NaN at 0. Losses arrive summed over tokens or divided by some count; here they are
summed, because rows are sent with their advantages multiplied by what the service divides by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from turncredit.backends.hosted.shift import Shifted
from turncredit.core.errors import AlignmentError, ConfigError, did_you_mean
from turncredit.core.types import Array, frozen_array

# What a service makes of the per-token losses of one forward_backward:
# their sum; the sum over the number of rows, of targets, or of targets with an advantage; or the
# mean over the weights of each row, then over rows.
Reduction = Literal["token_sum", "row_mean", "token_mean", "advantage_token_mean", "sequence_mean"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of one forward_backward call: rows, targets, targets with a nonzero advantage."""

    rows: int
    tokens: int
    advantage_tokens: int


def count(rows: Sequence[Shifted]) -> Totals:
    """The counts a service may divide by."""
    return Totals(
        rows=len(rows),
        tokens=sum(len(row.targets) for row in rows),
        advantage_tokens=sum(int(np.count_nonzero(row.advantages)) for row in rows),
    )


def shares(rows: Sequence[Shifted], reduction: str, totals: Totals | None = None) -> list[float]:
    """What the service multiplies the summed loss of each row by.

    Args:
        rows: the rows of a call, or of a part of it.
        reduction: one of `REDUCTIONS`.
        totals: counts of the whole call, when `rows` are a part of it.

    Raises:
        ConfigError: no such reduction.
    """
    whole = totals or count(rows)
    if reduction == "token_sum":
        return [1.0] * len(rows)
    if reduction == "sequence_mean":
        return [1.0 / (max(1, int(row.mask.sum())) * max(1, whole.rows)) for row in rows]
    divisors = {
        "row_mean": whole.rows,
        "token_mean": whole.tokens,
        "advantage_token_mean": whole.advantage_tokens,
    }
    if reduction not in divisors:
        raise ConfigError(
            f'no loss reduction "{reduction}".{did_you_mean(reduction, REDUCTIONS)} '
            f"(known: {', '.join(REDUCTIONS)})"
        )
    return [1.0 / max(1, divisors[reduction])] * len(rows)


def weighted(rows: Sequence[Shifted], factors: Sequence[float]) -> list[Shifted]:
    """Rows with their advantages multiplied; policy losses are linear in a positive factor."""
    pairs = zip(rows, factors, strict=True)
    return [replace(row, advantages=row.advantages * factor) for row, factor in pairs]


def prescaled(rows: Sequence[Shifted], reduction: str) -> list[Shifted]:
    """Rows whose reduced loss is the plain token sum of the rows given."""
    return weighted(rows, [1.0 / share for share in shares(rows, reduction)])


def prompt_logprobs(found: Sequence[float | None], length: int) -> Array:
    """A service's log-probs of a prompt as (length,), NaN at 0 and where it left some out.

    Args:
        found: as many values as tokens (the first is about nothing), or one fewer.
        length: tokens that were sent.

    Raises:
        AlignmentError: another number of values, or one that is no log-probability.
    """
    values = np.array([np.nan if value is None else value for value in found], dtype=np.float64)
    if len(values) == length - 1:
        values = np.concatenate([[np.nan], values])
    if len(values) != length:
        raise AlignmentError(
            "log-probs of a prompt", expected=f"{length} or {length - 1} values", got=len(found)
        )
    values[0] = np.nan  # whatever a service says of the first token, nothing comes before it
    if (values > 1e-3).any() or np.isinf(values).any():
        raise AlignmentError(
            "log-probs of a prompt", expected="finite numbers of at most 0", got=np.nanmax(values)
        )
    return frozen_array(values)
