"""Rows as hosted trainers take them: shifted by one, all arrays as long as the inputs.

Our `Datum` is unshifted: entry t is about token t. A service reads T-1 inputs and T-1 targets;
its entry i is about `targets[i]`, which is token i + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turncredit.core.datum import Datum
from turncredit.core.errors import AlignmentError
from turncredit.core.types import Array, Tokens, frozen_array


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifted:
    """One row on the wire; N = T - 1 entries in every array.

    Attributes:
        inputs: tokens 0 to T - 2.
        targets: tokens 1 to T - 1.
        logprobs: of the targets under the snapshot that sampled, nats; 0 outside actions.
        advantages: of the targets; 0 outside actions.
        mask: True where the target is an action.
    """

    inputs: Tokens
    targets: Tokens
    logprobs: Array
    advantages: Array
    mask: NDArray[np.bool_]

    def __post_init__(self) -> None:
        for name in ("targets", "logprobs", "advantages", "mask"):
            if (found := np.shape(getattr(self, name))) != (len(self.inputs),):
                raise AlignmentError(
                    f"shifted row, {name}", expected=(len(self.inputs),), got=found
                )
        if not np.array_equal(self.targets[:-1], self.inputs[1:]):
            raise AlignmentError(
                "shifted row", expected="targets that are the inputs, one later", got="others"
            )

    @property
    def weights(self) -> Array:
        """The mask as numbers, for services that reduce over weights."""
        return self.mask.astype(np.float64)

    @property
    def tokens(self) -> Tokens:
        """All T tokens."""
        return np.append(self.inputs, self.targets[-1:])


def shift(row: Datum) -> Shifted:
    """The row as a service takes it. `unshift` gives it back."""
    mask = row.mask[1:]
    return Shifted(
        inputs=row.tokens[:-1],
        targets=row.tokens[1:],
        logprobs=np.where(mask, row.logprobs[1:], 0.0),
        advantages=np.where(mask, row.advantages[1:], 0.0),
        mask=mask,
    )


def unshift(row: Shifted) -> Datum:
    """The row as our backends take it. The first token, of which nothing is said, gets zeros."""
    return Datum(
        tokens=row.tokens,
        logprobs=np.concatenate([[0.0], row.logprobs]),
        advantages=np.concatenate([[0.0], row.advantages]),
        mask=np.concatenate([[False], row.mask]),
    )


def spread(found_N: Sequence[float] | Array, row: Datum) -> Array:
    """A service's log-probs of the T-1 targets as (T,): NaN for the first token and off actions.

    Raises:
        AlignmentError: another number of log-probs, or one of an action that is not finite.
    """
    found = np.asarray(found_N, dtype=np.float64)
    if found.shape != (len(row.tokens) - 1,):
        raise AlignmentError(
            "log-probs of a training row", expected=(len(row.tokens) - 1,), got=found.shape
        )
    out = np.full(len(row.tokens), np.nan)
    out[1:][row.mask[1:]] = found[row.mask[1:]]
    if not np.isfinite(out[row.mask]).all():
        raise AlignmentError(
            "log-probs of a training row", expected="finite numbers on actions", got="NaN or inf"
        )
    return frozen_array(out)
