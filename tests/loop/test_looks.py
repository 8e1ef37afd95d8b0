"""Privileged text before single turns: what is put in, where, and which look counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fakes import TEMPLATE_NAMES, FakeClient, FakeEnv, FakeTokenizer, make_task, token_logprob, wait
from turncredit.core.errors import AlignmentError, ConfigError
from turncredit.core.looks import FRONT, STEP, Insertion, Look
from turncredit.core.types import Group
from turncredit.loop import reading, teacher
from turncredit.loop.chat import Chat
from turncredit.loop.rollout import Limits, rollout


@dataclass(frozen=True)
class Looks:
    given: Sequence[Look] = field(default_factory=list)
    sees_future: bool = True

    def looks(self, group: Group) -> list[Sequence[Look]]:
        return [self.given for _ in group.trajectories]


def play(template: str = "hermes") -> tuple[Chat, list[Group]]:
    chat = Chat(FakeTokenizer(template), FakeEnv(), max_turns=6)
    call = chat.action_ids("look")
    limits = Limits(max_turns=4, max_trajectory_tokens=20_000)
    groups = rollout(
        [make_task()], FakeEnv(win_at=9), chat, FakeClient(lambda *_: (call, "stop")), limits,
        group_size=2, run_seed=0, step=0,
    )  # fmt: skip
    return chat, wait(groups)


def readings(given: Sequence[Look], template: str = "hermes"):
    chat, groups = play(template)
    return groups, reading.read(groups, Looks(given), chat, max_tokens=30_000)


@pytest.mark.parametrize("template", TEMPLATE_NAMES)
@pytest.mark.parametrize("at", ["system", "opening", 0, 1, 3])
def test_the_text_stands_where_it_was_asked_for_and_all_else_is_the_students(template, at):
    groups, plan = readings([Look((Insertion("Mind the lamp.", at),))], template)
    chat, _ = play(template)
    trajectory, (reading,) = groups[0].trajectories[0], plan[0][0]
    student = chat.tokenizer.decode(trajectory.tokens[: trajectory.turns[-1].stop].tolist())
    taught = chat.tokenizer.decode(reading.view.tokens.tolist())
    block = (STEP if isinstance(at, int) else FRONT).format("Mind the lamp.")
    written = block if block in taught else chat.layout.escape(block)
    assert taught.count(written) == 1
    assert taught.replace(written, "") == student
    before = len(chat.tokenizer.encode(taught[: taught.index(written)], parse_special=True))
    spans = reading.view.spans
    if isinstance(at, int):  # after the action before, before its own
        assert before < spans[at].start
        assert at == 0 or before >= spans[at - 1].stop
    else:
        assert before < spans[0].start


def test_several_insertions_are_one_request_and_shift_every_later_span():
    look = Look(tuple(Insertion(f"Note {k}.", k) for k in range(4)))
    groups, plan = readings([look])
    trajectory, (reading,) = groups[0].trajectories[0], plan[0][0]
    shifts = [s.start - t.start for s, t in zip(reading.view.spans, trajectory.turns, strict=True)]
    assert sorted(shifts) == shifts
    assert len(set(shifts)) == 4
    for k, span in enumerate(reading.view.spans):
        assert np.array_equal(
            reading.view.tokens[span.start : span.stop], trajectory.action_tokens(k)
        )


def test_two_texts_at_one_place_are_both_read():
    chat, _ = play()
    _, plan = readings([Look((Insertion("First.", 1), Insertion("Second.", 1)))])
    assert "First.\n\nSecond." in chat.tokenizer.decode(plan[0][0][0].view.tokens.tolist())


def test_the_first_look_that_covers_a_turn_counts_and_names_are_kept_apart():
    steps = [Look((Insertion("Step.", 2),), turns=(2,), name="step")]
    whole = Look((Insertion("Whole."),), turns=(0, 1, 3), name="episode")
    groups, plan = readings([*steps, whole])
    client = FakeClient(lambda *_: ([], "stop"))
    scored = wait(teacher.score(groups, plan, client))[0].trajectories[0]
    step_view, whole_view = (r.view for r in plan[0][0])

    def expected(view, i):
        span, ids = view.spans[i], view.tokens.tolist()
        return [token_logprob(ids[:t], ids[t]) for t in range(span.start, span.stop)]

    assert scored.teacher_K[2] == pytest.approx(expected(step_view, 0))
    assert scored.teacher_K[3] == pytest.approx(expected(whole_view, 2))
    assert np.array_equal(scored.streams["step"][2], scored.teacher_K[2])
    assert np.array_equal(scored.streams["episode"][2], scored.turns[2].logprob_N)
    assert [g.any() for g in scored.gap_of("step")] == [False, False, True, False]
    assert not any(g.any() for g in scored.gap_of("nobody"))
    # A look at turn 2 alone reads nothing beyond it.
    assert len(step_view.tokens) < len(whole_view.tokens)


def test_a_turn_nobody_looked_at_has_no_gap():
    groups, plan = readings([Look((Insertion("Late."),), turns=(3,))])
    scored = wait(teacher.score(groups, plan, FakeClient(lambda *_: ([], "stop"))))
    gaps = scored[0].trajectories[0].gap_K
    assert [bool(g.any()) for g in gaps] == [False, False, False, True]
    assert teacher.unhinted(scored) == 0


def test_without_looks_nobody_is_asked():
    groups, plan = readings([])
    client = FakeClient(lambda *_: ([], "stop"))
    scored = wait(teacher.score(groups, plan, client))
    assert client.scored == []
    assert teacher.unhinted(scored) == 2
    assert scored[0].trajectories[0].teacher_snapshot_id == client.snapshot_id
    alone = teacher.nobody_looked(groups)[0].trajectories[0]
    assert not any(gap.any() for gap in alone.gap_K)


@pytest.mark.parametrize("look", [Look((Insertion("x", 9),)), Look((Insertion("x"),), turns=(4,))])
def test_a_turn_that_is_not_there_is_refused(look):
    with pytest.raises(AlignmentError, match="turns below 4"):
        readings([look])


def test_looks_for_another_number_of_members_are_refused():
    chat, groups = play()
    hint = Looks([Look((Insertion("x"),))])
    short = type("Short", (), {"sees_future": True, "looks": lambda _, g: hint.looks(g)[:1]})()
    with pytest.raises(AlignmentError, match="one entry for each of 2 members"):
        reading.read(groups, short, chat, max_tokens=9999)


def test_the_future_is_refused_unless_the_source_says_it_shows_it():
    chat, groups = play()
    last = groups[0].trajectories[0].turns[-1]
    told = replace(last, observation="The golden lamp lies in the seventh drawer.")
    changed = tuple(replace(t, turns=(*t.turns[:-1], told)) for t in groups[0].trajectories)
    group = replace(groups[0], trajectories=changed)
    looks = [Look((Insertion(f"Hint: {told.observation}", 1),))]
    with pytest.raises(ConfigError, match="first shown at turn 3"):
        reading.read([group], Looks(looks, sees_future=False), chat, max_tokens=9999)
    assert reading.read([group], Looks(looks), chat, max_tokens=9999)
