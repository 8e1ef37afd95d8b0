"""Training rows: what a backend is given. Everything in them is already weighted and reduced."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turncredit.core.errors import AlignmentError
from turncredit.core.types import Array, Tokens, frozen_array


@dataclass(frozen=True, slots=True)
class Distribution:
    """Log-probs of some tokens of the vocabulary at every position of a row.

    Attributes:
        ids: (T, k) token ids; a row of all ids in order is the full vocabulary.
        logprobs: (T, k) nats, of the softmax over the whole vocabulary; NaN where not asked for.
    """

    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.ids.shape != self.logprobs.shape:
            raise AlignmentError("distribution", expected=self.ids.shape, got=self.logprobs.shape)
        for array in (self.ids, self.logprobs):
            array.setflags(write=False)


_ARRAYS = ("logprobs", "advantages", "mask", "distill", "teacher", "reference", "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One training row, unshifted: entry t is about token t (predicted from tokens before it).

    All arrays are (T,). `mask` is True on action tokens only; a backend trains nothing else.

    Attributes:
        logprobs: of the snapshot that sampled, nats.
        advantages: signed weights, already divided by what the aggregation divides by.
        distill: weights of the distillation term, divided likewise; needs `teacher` or
            `distribution`.
        teacher: the teacher's log-probs of the row's own tokens.
        reference: those of the initial policy, for a KL penalty.
        weight: what the aggregation gives each token: weight of KL and entropy terms.
        distribution: the teacher's distribution, for terms over the vocabulary.
    """

    tokens: Tokens
    logprobs: Array
    advantages: Array
    mask: NDArray[np.bool_]
    distill: Array | None = None
    teacher: Array | None = None
    reference: Array | None = None
    weight: Array | None = None
    distribution: Distribution | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", frozen_array(self.tokens, np.int64))
        for name in _ARRAYS:
            values = getattr(self, name)
            if values is None:
                continue
            array = frozen_array(values, np.bool_ if name == "mask" else np.float64)
            if len(array) != len(self.tokens):
                raise AlignmentError(f"datum, {name}", expected=len(self.tokens), got=len(array))
            object.__setattr__(self, name, array)
        if not self.mask.any():
            raise AlignmentError("datum", expected="at least one action token", got="none")
        if self.mask[0]:
            raise AlignmentError("datum", expected="a first token with context", got="an action")
        if not np.isfinite(self.logprobs[self.mask]).all():
            raise ValueError("datum: a log-probability of an action token is not finite")
        if self.distribution is not None and len(self.distribution.ids) != len(self.tokens):
            raise AlignmentError(
                "datum, distribution", expected=len(self.tokens), got=len(self.distribution.ids)
            )
