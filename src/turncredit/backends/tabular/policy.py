"""A log-linear table policy: one row of logits for every situation, exact in every number.

A *situation* is the last message and what the policy has already said in this turn. Its logits
are a fixed base (say one call, then stop), plus a trained row, plus, when the prompt holds a hint
about this very place (`At door 3, choose right.`), a fixed bonus on the named action. The bonus is
never trained: it is what makes the hinted view of the same weights a teacher.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turncredit.backends.tabular.tokenizer import TableTokenizer
from turncredit.core.types import Array, Ids, Tokens

TokenIds = Ids | Tokens

# Logit of what the base policy says in a situation; all else has 0. Each wrong token then has
# probability e^-25, so formats are valid in practice and every log-probability stays finite.
SURE = 25.0

_HINT = re.compile(r"\bAt ([^.,\n]+), choose ([^.\n]+)\.")
_WORD = r"(?<!\w){}(?!\w)"

Key = tuple[tuple[int, ...], tuple[int, ...]]  # (last message, said so far in this turn)
_NO_ROW: Key = ((), ())  # any position outside an assistant's turn


class Situation(NamedTuple):
    """Where one token is predicted: the table's key, and the hinted action (-1: none)."""

    key: Key
    hinted: int = -1


class Reader:
    """Finds the situation of every position of a token sequence."""

    def __init__(self, tokenizer: TableTokenizer, actions: Sequence[str]) -> None:
        self._tokenizer, self._actions = tokenizer, tuple(actions)
        self._hinted = lru_cache(maxsize=4096)(self._find_hint)

    def situations(self, tokens: TokenIds, start: int, stop: int) -> list[Situation]:
        """Situations in which tokens `start` to `stop - 1` are predicted."""
        ids = np.asarray(tokens, np.int64)
        opens = np.flatnonzero(ids[:stop] == self._tokenizer.start_id).tolist()
        out = [Situation(_NO_ROW)] * (stop - start)
        head: tuple[int, ...] | None = None
        for n, opened in enumerate(opens):
            closed = opens[n + 1] if n + 1 < len(opens) else stop
            said_from = opened + 2
            if opened + 1 >= len(ids) or ids[opened + 1] != self._tokenizer.assistant_id:
                continue
            if head is None:
                head = tuple(ids[:opened].tolist())
            # The first position after the header is already the assistant's to predict.
            if closed < start or said_from > closed:
                continue
            shown = tuple(ids[opens[n - 1] + 1 : opened].tolist()) if n else ()
            self._fill(out, ids, (start, said_from, closed), (shown, self._hinted(head, shown)))
        return out

    def _fill(
        self,
        out: list[Situation],
        ids: Tokens,
        bounds: tuple[int, int, int],
        seen: tuple[tuple[int, ...], int],
    ) -> None:
        (start, said_from, closed), (shown, hinted) = bounds, seen
        said: list[int] = []
        for position in range(said_from, min(closed + 1, start + len(out))):
            if position >= start:
                out[position - start] = Situation((shown, tuple(said)), hinted)
            if position >= len(ids) or ids[position] == self._tokenizer.end_id:
                return
            said.append(int(ids[position]))

    def _find_hint(self, head: tuple[int, ...], shown: tuple[int, ...]) -> int:
        message = self._tokenizer.decode(shown)
        for place, action in _HINT.findall(self._tokenizer.decode(head)):
            if action in self._actions and re.search(_WORD.format(re.escape(place)), message):
                return self._actions.index(action)
        return -1


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
        if situation.key == _NO_ROW:
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


def log_softmax(logits: Array) -> Array:
    """Normalised logits, (V,)."""
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


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
