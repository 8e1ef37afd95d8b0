"""Token offsets: the only place where positions are computed.

A trajectory's tokens only ever grow; sampled ids are never decoded and encoded again. The
teacher reads the same ids after a longer prompt, so every span moves by one constant: the
difference of the two prompt lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turncredit.core.datum import Datum
from turncredit.core.errors import AlignmentError
from turncredit.core.types import Array, Ids, Tokens, Trajectory, frozen_array


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open range [start, stop) of token positions."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class TokenBuffer:
    """Append-only ids of one trajectory: prompt, then actions and observations in turn.

    Two actions never touch: an observation (at least the template's separator) must come between,
    so a span always names the tokens of one turn.
    """

    def __init__(self, prompt: Ids) -> None:
        if len(prompt) == 0:
            raise AlignmentError("token buffer", expected="a prompt", got="no tokens")
        self._tokens = list(prompt)
        self.prompt_length = len(prompt)
        self._spans: list[Span] = []

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> list[int]:
        """A copy of all ids so far: the exact prompt of the next sample."""
        return list(self._tokens)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The action spans so far."""
        return tuple(self._spans)

    def append_action(self, ids: Ids) -> Span:
        """Record sampled ids and return where they lie."""
        if self._spans and self._spans[-1].stop == len(self._tokens):
            raise AlignmentError(
                f"token buffer, action {len(self._spans)}",
                expected="an observation since the last action",
                got="none",
            )
        span = Span(len(self._tokens), len(self._tokens) + len(ids))
        self._tokens.extend(int(i) for i in ids)
        self._spans.append(span)
        return span

    def append_observation(self, ids: Ids) -> None:
        """Record context ids (environment text and template), which are never trained."""
        self._tokens.extend(int(i) for i in ids)


@dataclass(frozen=True, slots=True)
class TeacherView:
    """The teacher's reading of a trajectory: its tokens, and where each turn lies in them."""

    tokens: Tokens
    spans: tuple[Span, ...]

    def pick(self, logprob_T: Array, trace: str) -> tuple[Array, ...]:
        """Cut the per-turn log-probs out of a score of all tokens.

        Args:
            logprob_T: (T,) log-probs of `tokens`.
            trace: what is being aligned, for the message.

        Raises:
            AlignmentError: another number of scores than tokens, or a missing score inside a span.
        """
        if len(logprob_T) != len(self.tokens):
            raise AlignmentError(
                f"{trace}, teacher scores", expected=len(self.tokens), got=len(logprob_T)
            )
        picked = tuple(frozen_array(logprob_T[s.start : s.stop]) for s in self.spans)
        for k, scores in enumerate(picked):
            if not np.isfinite(scores).all():
                raise AlignmentError(
                    f"{trace}, teacher scores of turn {k}",
                    expected=f"{len(scores)} finite log-probs",
                    got=f"{int(np.isfinite(scores).sum())} finite",
                )
        return picked


def teacher_view(trajectory: Trajectory, teacher_prompt: Ids) -> TeacherView:
    """Put `teacher_prompt` in place of the student's prompt, and shift every span to match.

    Raises:
        AlignmentError: the shifted spans do not hold the student's own action ids.
    """
    shift = len(teacher_prompt) - trajectory.prompt_length
    tail = trajectory.tokens[trajectory.prompt_length :]
    tokens = np.concatenate([np.asarray(teacher_prompt, np.int64), tail])
    spans = tuple(Span(turn.start + shift, turn.stop + shift) for turn in trajectory.turns)
    for k, span in enumerate(spans):
        if not np.array_equal(tokens[span.start : span.stop], trajectory.action_tokens(k)):
            raise AlignmentError(
                f"trajectory {trajectory.name}, turn {k} in the teacher's tokens",
                expected=trajectory.action_tokens(k).tolist(),
                got=tokens[span.start : span.stop].tolist(),
            )
    return TeacherView(frozen_array(tokens, np.int64), spans)


def to_datum(
    trajectory: Trajectory,
    advantage_K: tuple[Array, ...],
    distill_K: tuple[Array, ...] | None = None,
) -> Datum:
    """Lay per-turn token weights over the whole trajectory: zeros outside the action spans.

    Args:
        trajectory: K turns over T tokens.
        advantage_K: per turn (N,) weights.
        distill_K: per turn (N,) weights of a distillation term, or None.

    Raises:
        AlignmentError: another number of turns or tokens than the trajectory has.
    """
    length = len(trajectory.tokens)
    mask = np.zeros(length, bool)
    for turn in trajectory.turns:
        mask[turn.start : turn.stop] = True
    return Datum(
        tokens=trajectory.tokens,
        logprobs=_spread(trajectory, tuple(t.logprob_N for t in trajectory.turns)),
        advantages=_spread(trajectory, advantage_K),
        mask=mask,
        distill=None if distill_K is None else _spread(trajectory, distill_K),
    )


def _spread(trajectory: Trajectory, values_K: tuple[Array, ...]) -> Array:
    trace = f"trajectory {trajectory.name}"
    if len(values_K) != len(trajectory.turns):
        raise AlignmentError(f"{trace}, turns", expected=len(trajectory.turns), got=len(values_K))
    out_T = np.zeros(len(trajectory.tokens))
    for k, (turn, values_N) in enumerate(zip(trajectory.turns, values_K, strict=True)):
        if len(values_N) != len(turn.logprob_N):
            raise AlignmentError(
                f"{trace}, turn {k} starting at token {turn.start}",
                expected=f"{len(turn.logprob_N)} values",
                got=len(values_N),
            )
        out_T[turn.start : turn.stop] = values_N
    return out_T
