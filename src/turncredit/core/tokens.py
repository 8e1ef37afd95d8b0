"""Token offsets: the only place where positions are computed.

A trajectory's tokens only ever grow; sampled ids are never decoded and encoded again. The
teacher reads the same ids after a longer prompt, and perhaps with more between two turns, so every
span moves by the number of ids put in before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from turncredit.core.datum import Datum, Distribution
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

    def places(self) -> list[int]:
        """Where the tokens of all turns are, ascending."""
        return [at for span in self.spans for at in range(span.start, span.stop)]

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


def teacher_view(
    trajectory: Trajectory,
    teacher_prompt: Ids,
    inserted: Mapping[int, Ids] = MappingProxyType({}),
    turns: Sequence[int] | None = None,
) -> TeacherView:
    """Put `teacher_prompt` in place of the student's, insert ids later on, and shift every span.

    Args:
        trajectory: T tokens in K turns.
        teacher_prompt: replaces the first `prompt_length` tokens.
        inserted: position in the trajectory's tokens -> ids to put before it; never inside an
            action, never in the prompt (that is `teacher_prompt`'s).
        turns: the turns wanted, ascending (None: all); what follows the last of them is left out.

    Raises:
        AlignmentError: an insertion where none may be, or the shifted spans do not hold the
            student's own action ids.
    """
    chosen = range(len(trajectory.turns)) if turns is None else turns
    end = trajectory.turns[chosen[-1]].stop if chosen else len(trajectory.tokens)
    _check_places(trajectory, inserted)
    pieces: list[Ids | Tokens] = [teacher_prompt]
    position = trajectory.prompt_length
    for place in sorted(place for place in inserted if place < end):
        pieces += [trajectory.tokens[position:place], inserted[place]]
        position = place
    pieces.append(trajectory.tokens[position:end])
    tokens = np.concatenate([np.asarray(piece, np.int64) for piece in pieces])
    spans = tuple(_shifted(trajectory, k, len(teacher_prompt), inserted) for k in chosen)
    for k, span in zip(chosen, spans, strict=True):
        if not np.array_equal(tokens[span.start : span.stop], trajectory.action_tokens(k)):
            raise AlignmentError(
                f"trajectory {trajectory.name}, turn {k} in the teacher's tokens",
                expected=trajectory.action_tokens(k).tolist(),
                got=tokens[span.start : span.stop].tolist(),
            )
    return TeacherView(frozen_array(tokens, np.int64), spans)


def _shifted(
    trajectory: Trajectory, k: int, prompt_length: int, inserted: Mapping[int, Ids]
) -> Span:
    """Where the action of turn k lies in the teacher's tokens."""
    turn = trajectory.turns[k]
    shift = prompt_length - trajectory.prompt_length
    shift += sum(len(ids) for place, ids in inserted.items() if place <= turn.start)
    return Span(turn.start + shift, turn.stop + shift)


def _check_places(trajectory: Trajectory, inserted: Mapping[int, Ids]) -> None:
    trace = f"trajectory {trajectory.name}, an insertion"
    for place in inserted:
        if not trajectory.prompt_length <= place <= len(trajectory.tokens):
            raise AlignmentError(trace, expected="a place after the prompt", got=place)
        if any(turn.start < place < turn.stop for turn in trajectory.turns):
            raise AlignmentError(trace, expected="a place outside actions", got=place)


def to_datum(
    trajectory: Trajectory,
    advantage_K: tuple[Array, ...],
    distill_K: tuple[Array, ...] | None = None,
    *,
    teacher_K: tuple[Array, ...] | None = None,
    reference_K: tuple[Array, ...] | None = None,
    distribution: Distribution | None = None,
) -> Datum:
    """Lay per-turn token weights over the whole trajectory: zeros outside the action spans.

    Args:
        trajectory: K turns over T tokens.
        advantage_K: per turn (N,) weights.
        distill_K: per turn (N,) weights of a distillation term, or None.
        teacher_K: per turn the teacher's log-probs, or None.
        reference_K: per turn those of the initial policy, or None.
        distribution: the teacher's, laid out as the trajectory, or None.

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
        teacher=None if teacher_K is None else _spread(trajectory, teacher_K),
        reference=None if reference_K is None else _spread(trajectory, reference_K),
        distribution=distribution,
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
