"""A log-linear table policy: one row of logits for every situation, exact in every number.

A *situation* is the last message and what the policy has already said in this turn. Its logits
are a fixed base (say one call, then stop), plus a trained row, plus, when guidance speaks about
this very place (`At door 3, choose right.`), a fixed bonus on the named action. The bonus is never
trained: it is what makes the hinted view of the same weights a teacher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turncredit.backends.tabular.reader import NO_ROW, Key, Situation, TokenIds
from turncredit.core.types import Array

# Logit of what the base policy says in a situation; all else has 0. Each wrong token then has
# probability e^-25, so formats are valid in practice and every log-probability stays finite.
SURE = 25.0


@dataclass(frozen=True)
class Base:
    """What never changes: the vocabulary, the calls in it, the habit and the hint's pull."""

    vocabulary: int
    call_ids: tuple[int, ...]
    end_id: int
    habit: float
    hint_bonus: float

    def logits(self, situation: Situation) -> Array:
        """Untrained logits, (V,)."""
        logits = np.zeros(self.vocabulary)
        (_, said), hinted = situation
        if situation.key == NO_ROW:
            return logits
        if said:
            logits[self.end_id] = SURE
            return logits
        logits[list(self.call_ids)] = SURE
        logits[self.call_ids[0]] += self.habit
        if hinted >= 0:
            logits[self.call_ids[hinted]] += self.hint_bonus
        return logits


class Table:
    """Immutable weights: `rows` names the lines of `theta_SV`, (S, V) logits."""

    def __init__(self, base: Base, rows: Mapping[Key, int], theta_SV: Array) -> None:
        self._base, self._rows, self._theta_SV = base, dict(rows), theta_SV
        self._known: dict[Situation, Array] = {}

    def logits(self, situation: Situation) -> Array:
        """Logits of the next token, (V,)."""
        row = self._rows.get(situation.key)
        base = self._base.logits(situation)
        return base if row is None else base + self._theta_SV[row]

    def logprob_V(self, situation: Situation) -> Array:
        """Log-probabilities of the next token, (V,): the one code path of sampling and scoring."""
        if situation not in self._known:
            self._known[situation] = log_softmax(self.logits(situation))
        return self._known[situation]

    def score(self, tokens: TokenIds, situations: Sequence[Situation], start: int) -> Array:
        """Log-prob of each token from `start` on, in its situation, (len(situations),)."""
        ids = tokens[start : start + len(situations)]
        pairs = zip(ids, situations, strict=True)
        return np.array([self.logprob_V(where)[int(i)] for i, where in pairs], np.float64)

    def logprob_NV(self, situations: Sequence[Situation]) -> Array:
        """Log-probabilities of the next token in each of N situations, (N, V)."""
        rows = [self.logprob_V(where) for where in situations]
        return np.stack(rows) if rows else np.zeros((0, self._base.vocabulary))


def log_softmax(logits: Array) -> Array:
    """Normalised logits over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def draw(logits: Array, *, temperature: float, top_p: float, rng: np.random.Generator) -> int:
    """Sample an id from (V,) logits by inverse transform; temperature 0 takes the likeliest."""
    if temperature <= 0:
        return int(np.argmax(logits))
    probability_V = np.exp(log_softmax(logits / temperature))
    order: NDArray[np.intp] = np.arange(len(probability_V))
    if top_p < 1:
        order = np.argsort(-probability_V, kind="stable")
        kept = int(np.searchsorted(np.cumsum(probability_V[order]), top_p)) + 1
        order = order[:kept]
    cumulative = np.cumsum(probability_V[order])
    at = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
    return int(order[min(at, len(order) - 1)])
