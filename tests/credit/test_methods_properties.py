"""What every registered method must satisfy, whatever the numbers.

A case is a method with its default settings, or with one named choice changed: each choice of each
method is a case of its own, so that a new method or a new choice is held to all of this unasked.
What a method promises beyond that stands in its NEEDS (`core.needs`).
"""

import ast
import inspect
from dataclasses import fields, replace
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples import TASK, reordered, scored, unscored
from turncredit.core import registry
from turncredit.core.errors import ConfigError
from turncredit.core.needs import needs_of
from turncredit.core.types import Group, StopReason
from turncredit.credit import grpo

BASELINE = tuple(f.name for f in fields(grpo.Config))
SCREENS = ("a hall", "a kitchen", "a cellar")


class Case:
    """A method, settings of it, and what it then asks for."""

    def __init__(self, name, **changes):
        component = registry.load("method", name)
        self.method = component.target
        self.config = component.config_type(**changes)
        self.needs = needs_of(self.method, self.config)
        self.name = " ".join([name, *(f"{k}={v}" for k, v in changes.items())])

    def credit(self, group, **changes):
        return self.method.credit(group, replace(self.config, **changes))


def cases_of(name):
    yield Case(name)
    config_type = registry.load("method", name).config_type
    hints = get_type_hints(config_type)
    for item in fields(config_type):
        if get_origin(hints[item.name]) is Literal:
            for choice in get_args(hints[item.name]):
                if choice != item.default:
                    yield Case(name, **{item.name: choice})


PLAIN = [Case(name) for name in registry.names("method")]
CASES = [case for name in registry.names("method") for case in cases_of(name)]
STREAMS = sorted({"wrong1", *(name for case in CASES for name in case.needs.streams)})
NOTES = sorted({name for case in CASES for name in case.needs.notes})

shapes = st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=5)


def some(rng, size):
    """Gaps as they come, as they should not (50 nats), and none at all."""
    kinds = [rng.normal(0, 1, size), rng.choice([-50.0, 50.0], size), np.zeros(size)]
    return np.choose(rng.integers(0, 3, size), kinds)


def member(i, tokens_K, reward, rng):
    """Turns of so many tokens, with whatever some method reads about them."""
    told = scored([some(rng, n) for n in tokens_K], reward, i)
    screens = [str(rng.choice(SCREENS)) for _ in tokens_K]
    pays = [0.0] * len(tokens_K[1:]) + [reward] * bool(tokens_K)
    lost = StopReason.MAX_TURNS if rng.random() < 0.5 else StopReason.FAILED
    return replace(
        told,
        turns=tuple(
            replace(turn, observation=screen, state_key=screen, reward=pay)
            for turn, screen, pay in zip(told.turns, screens, pays, strict=True)
        ),
        stop=StopReason.SUCCESS if reward else lost,
        streams={
            name: tuple(turn.logprob_N + some(rng, len(turn.logprob_N)) for turn in told.turns)
            for name in STREAMS
        },
        hint_hash="h" if rng.random() < 0.9 else "",
        student_hint_hash="h" if rng.random() < 0.5 else "",
    )


@st.composite
def groups(draw, min_size=1, rewards=(0.0, 1.0), equal=False):
    shape_G = draw(shapes.filter(lambda shape_G: len(shape_G) >= min_size))
    pick = st.sampled_from(rewards)
    reward_G = [draw(pick)] * len(shape_G) if equal else [draw(pick) for _ in shape_G]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Group(
        TASK,
        tuple(member(i, shape_G[i], reward_G[i], rng) for i in range(len(shape_G))),
        notes={name: rng.random(len(shape_G)) for name in NOTES},
    )


def arrays(layout):
    return [values_N for values_K in layout or () for values_N in values_K]


def tokens(layout):
    return np.concatenate([np.zeros(0), *arrays(layout)])


@given(group=groups())
@settings(max_examples=25, deadline=None)
def test_finite_and_one_number_per_action_token(group):
    count_G = [[len(turn.logprob_N) for turn in t.turns] for t in group.trajectories]
    for case in CASES:
        credit = case.credit(group)
        for layout in (credit.advantage, credit.distill):
            if layout is not None:
                assert [[len(n) for n in k] for k in layout] == count_G, case.name
                assert np.isfinite(tokens(layout)).all(), case.name
        for name, values_GK in credit.figures.items():
            assert [len(k) for k in values_GK] == [len(k) for k in count_G], (case.name, name)
            assert np.isfinite(tokens([values_GK])).all(), (case.name, name)
        assert all(np.isfinite(value) for value in credit.metrics.values()), case.name


def test_no_members_no_credit():
    for case in CASES:
        assert not case.credit(Group(TASK, ())).has_signal, case.name


@given(group=groups(rewards=(0.0, 1.0, 0.3), equal=True))
@settings(max_examples=20, deadline=None)
def test_equal_rewards_and_lone_members_give_exactly_no_advantage(group):
    for case in CASES:
        if case.needs.zero_on_equal:
            credit = case.credit(group)
            assert not tokens(credit.advantage).any(), case.name
            assert case.needs.term or not credit.has_signal, case.name


@given(group=groups(min_size=3), data=st.data())
@settings(max_examples=12, deadline=None)
def test_permuting_the_group_permutes_the_credit(group, data):
    order = data.draw(st.permutations(range(len(group.trajectories))))
    moved = reordered(group, order)
    for case in CASES:
        plain, there = case.credit(group), case.credit(moved)
        for layout, other in ((plain.advantage, there.advantage), (plain.distill, there.distill)):
            assert (layout is None) == (other is None), case.name
            if layout is not None and other is not None:
                expected = tokens([layout[i] for i in order])
                assert np.allclose(tokens(other), expected, rtol=1e-9, atol=1e-9), case.name


@given(group=groups(min_size=2), share=st.floats(0, 1), bound=st.floats(0, 0.9))
@settings(max_examples=20, deadline=None)
def test_promised_signs_and_bounds_are_kept(group, share, bound):
    tried = 0
    for case in CASES:
        if not case.needs.bound:
            continue
        tried += 1
        for changes in ({}, {case.needs.mix: share, case.needs.bound: bound}):
            config = replace(case.config, **changes)
            b = getattr(config, case.needs.bound) * getattr(config, case.needs.mix)
            plain = tokens(grpo.credit(group, baseline_of(config)).advantage)
            given_T = tokens(case.method.credit(group, config).advantage)
            assert np.array_equal(np.sign(given_T), np.sign(plain)), case.name
            ratio = given_T[plain != 0] / plain[plain != 0]
            assert (np.abs(ratio - 1) <= b + 1e-12).all(), case.name
    assert tried >= 6


def baseline_of(config):
    return grpo.Config(**{name: getattr(config, name) for name in BASELINE})


@given(group=groups(min_size=2))
@settings(max_examples=20, deadline=None)
def test_without_its_mix_a_method_is_grpo_to_the_last_bit(group):
    tried = 0
    for case in CASES:
        if not case.needs.mix:
            continue
        tried += 1
        config = replace(case.config, **{case.needs.mix: 0.0})
        credit, plain = (
            case.method.credit(group, config),
            grpo.credit(group, baseline_of(config)),
        )
        mine, theirs = arrays(credit.advantage), arrays(plain.advantage)
        for a_N, b_N in zip(mine, theirs, strict=True):
            assert a_N.tobytes() == b_N.tobytes(), case.name
        assert not tokens(credit.distill).any(), case.name
    assert tried >= 12


@given(group=groups(min_size=2))
@settings(max_examples=20, deadline=None)
def test_how_many_turns_one_member_took_is_nothing_to_the_others(group):
    first, *others = group.trajectories
    longer = replace(group, trajectories=(twice(first), *others))
    for case in PLAIN:
        if not case.needs.independent:
            continue
        before, after = case.credit(group), case.credit(longer)
        for a_N, b_N in zip(arrays(before.advantage[1:]), arrays(after.advantage[1:]), strict=True):
            assert a_N.tobytes() == b_N.tobytes(), case.name


def twice(trajectory):
    """The same member with the rows of all its turns repeated."""
    shift = len(trajectory.tokens)
    return replace(
        trajectory,
        tokens=np.concatenate([trajectory.tokens, trajectory.tokens]),
        turns=(
            *trajectory.turns,
            *(replace(turn, start=turn.start + shift) for turn in trajectory.turns),
        ),
        teacher_K=trajectory.teacher_K * 2,
        streams={name: values_K * 2 for name, values_K in trajectory.streams.items()},
    )


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_a_method_asks_for_the_teacher_it_needs_and_for_no_other(case):
    group = Group(TASK, tuple(scored([[0.1], [0.2]], r, i) for i, r in enumerate([1.0, 0.0])))
    bare = replace(group, trajectories=tuple(unscored(t) for t in group.trajectories))
    if case.method.NEEDS_TEACHER:
        with pytest.raises(ConfigError, match="run the teacher"):
            case.credit(bare)
    elif not case.needs.streams:
        assert case.credit(bare).has_signal


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_methods_know_no_other_method_but_grpo(case):
    imported = {
        name
        for node in ast.walk(ast.parse(inspect.getsource(case.method)))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turncredit.credit")
        for name in [
            *(node.module or "").split(".")[2:],
            *(alias.name for alias in node.names if node.module == "turncredit.credit"),
        ]
    }
    assert imported & set(registry.names("method")) <= {"grpo"}
