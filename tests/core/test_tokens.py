"""Offsets: credit and teacher's scores land on exactly the tokens the policy sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import make_task
from turncredit.core.errors import AlignmentError
from turncredit.core.tokens import Span, TokenBuffer, teacher_view, to_datum
from turncredit.core.types import StopReason, Trajectory, Turn

Parts = list[tuple[list[int], list[int]]]


def trajectory(parts: Parts, tail: list[int] | None = None) -> Trajectory:
    """From (context, action) pairs; log-probs are −1, −2, … along the tokens."""
    buffer = TokenBuffer(parts[0][0])
    turns = []
    for k, (context, action) in enumerate(parts):
        if k:
            buffer.append_observation(context)
        span = buffer.append_action(action)
        turns.append(Turn(start=span.start, logprob_N=-np.arange(1.0, 1.0 + len(action))))
    buffer.append_observation(tail or [])
    return Trajectory(
        task=make_task(), member=0, seed=0, snapshot_id="s", tokens=buffer.tokens,  # type: ignore[arg-type]
        prompt_length=buffer.prompt_length, turns=tuple(turns), reward=1.0, stop=StopReason.SUCCESS,
    )  # fmt: skip


ids = st.lists(st.integers(0, 999), min_size=1, max_size=5)
conversations = st.lists(st.tuples(ids, ids), min_size=1, max_size=10)


def test_three_turns_at_known_places() -> None:
    """Spans 5-7, 20-29, 41: exactly these 14 tokens carry the advantage, all others 0."""
    parts = [
        ([0] * 5, [1] * 3),
        ([0] * 12, [1] * 10),
        ([0] * 11, [1]),
    ]
    t = trajectory(parts, tail=[0] * 4)
    assert [(turn.start, turn.stop) for turn in t.turns] == [(5, 8), (20, 30), (41, 42)]
    datum = to_datum(t, tuple(np.ones(n) for n in (3, 10, 1)))
    carrying = np.flatnonzero(datum.advantages).tolist()
    assert carrying == [5, 6, 7, *range(20, 30), 41]
    assert datum.mask.sum() == 14
    assert len(datum.tokens) == len(datum.mask) == len(datum.logprobs) == len(datum.advantages)


@given(conversations)
@settings(deadline=None)
def test_the_buffer_only_grows_and_spans_hold_the_actions(
    parts: Parts,
) -> None:
    buffer = TokenBuffer(parts[0][0])
    before: list[int] = []
    for k, (context, action) in enumerate(parts):
        if k:
            buffer.append_observation(context)
        assert buffer.tokens[: len(before)] == before
        buffer.append_action(action)
        before = buffer.tokens
    for span, (_, action) in zip(buffer.spans, parts, strict=True):
        assert before[span.start : span.stop] == action
    assert len(buffer) == sum(len(c) + len(a) for c, a in parts)
    assert buffer.prompt_length == len(parts[0][0])


def test_the_buffer_refuses_nothing_and_touching_actions() -> None:
    with pytest.raises(AlignmentError, match="a prompt"):
        TokenBuffer([])
    buffer = TokenBuffer([1])
    buffer.append_action([2])
    with pytest.raises(AlignmentError, match="action 1"):
        buffer.append_action([3])


def test_a_buffers_tokens_are_a_copy() -> None:
    buffer = TokenBuffer([1])
    buffer.tokens.append(2)
    assert buffer.tokens == [1]


@given(conversations, ids)
@settings(deadline=None)
def test_the_teachers_spans_are_the_students_shifted(parts: Parts, prompt: list[int]) -> None:
    t = trajectory(parts)
    view = teacher_view(t, prompt)
    shift = len(prompt) - t.prompt_length
    assert view.tokens[: len(prompt)].tolist() == prompt
    for k, (span, turn) in enumerate(zip(view.spans, t.turns, strict=True)):
        assert span == Span(turn.start + shift, turn.stop + shift)
        assert view.tokens[span.start : span.stop].tolist() == t.action_tokens(k).tolist()
    scores = np.arange(float(len(view.tokens)))
    picked = view.pick(scores, "here")
    assert [p.tolist() for p in picked] == [
        list(map(float, range(s.start, s.stop))) for s in view.spans
    ]


def test_picking_refuses_other_lengths_and_holes_with_the_trace() -> None:
    view = teacher_view(trajectory([([1], [2, 3]), ([4], [5])]), [9, 9])
    with pytest.raises(AlignmentError, match="game-7, teacher scores: expected 6, got 5"):
        view.pick(np.zeros(5), "game-7")
    scores = np.zeros(6)
    scores[5] = np.nan
    with pytest.raises(AlignmentError, match="turn 1: expected 1 finite log-probs, got 0 finite"):
        view.pick(scores, "game-7")
    scores = np.full(6, np.nan)  # holes outside the spans are fine: suffix scoring
    scores[[2, 3, 5]] = -1
    assert [len(p) for p in view.pick(scores, "game-7")] == [2, 1]


@given(conversations)
@settings(deadline=None)
def test_a_datum_has_zeros_outside_the_spans(parts: Parts) -> None:
    t = trajectory(parts)
    advantage_K = tuple(np.full(len(turn.logprob_N), 1.0 + k) for k, turn in enumerate(t.turns))
    datum = to_datum(t, advantage_K, distill_K=tuple(-a for a in advantage_K))
    assert datum.distill is not None
    for k, turn in enumerate(t.turns):
        assert (datum.advantages[turn.start : turn.stop] == 1.0 + k).all()
        assert (datum.logprobs[turn.start : turn.stop] == turn.logprob_N).all()
    assert (datum.advantages[~datum.mask] == 0).all()
    assert (datum.distill == -datum.advantages).all()
    assert datum.mask.sum() == sum(len(a) for _, a in parts)
    assert datum.tokens.tolist() == t.tokens.tolist()


def test_a_datum_refuses_another_shape_naming_the_turn() -> None:
    t = trajectory([([1], [2, 3]), ([4], [5])])
    with pytest.raises(AlignmentError, match="turns: expected 2, got 1"):
        to_datum(t, (np.zeros(2),))
    with pytest.raises(AlignmentError, match="turn 1 starting at token 4: expected 1 values"):
        to_datum(t, (np.zeros(2), np.zeros(2)))


def test_a_trajectory_without_actions_is_no_training_row() -> None:
    t = Trajectory(
        task=make_task(), member=0, seed=0, snapshot_id="s", tokens=[1, 2],  # type: ignore[arg-type]
        prompt_length=2, turns=(), reward=0.0, stop=StopReason.TRAJECTORY_TOKENS,
    )  # fmt: skip
    with pytest.raises(AlignmentError, match="at least one action token"):
        to_datum(t, ())
