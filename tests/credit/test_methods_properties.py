"""What every registered method must satisfy, whatever the numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples import TASK, reordered, scored
from turncredit.core import registry
from turncredit.core.types import Group

METHODS = registry.names("method")
each_method = pytest.mark.parametrize("name", METHODS)

gaps = st.floats(-50, 50) | st.just(0.0)
turns = st.lists(st.lists(gaps, max_size=3), max_size=5)  # empty turns and no turns included


@st.composite
def groups(draw, min_size=1):
    members = draw(st.lists(st.tuples(turns, st.sampled_from([0.0, 1.0])), min_size=min_size,
                            max_size=5))  # fmt: skip
    return Group(TASK, tuple(scored(t, r, i) for i, (t, r) in enumerate(members)))


def credit_of(name, group):
    method = registry.load("method", name)
    return method.target.credit(group, method.config_type())


@each_method
@given(group=groups())
@settings(max_examples=60, deadline=None)
def test_finite_and_one_number_per_action_token(name, group):
    credit = credit_of(name, group)
    assert len(credit.advantage) == len(group.trajectories)
    for trajectory, turns_K in zip(group.trajectories, credit.advantage, strict=True):
        shapes = [len(turn.logprob_N) for turn in trajectory.turns]
        assert [len(values) for values in turns_K] == shapes
        assert all(np.isfinite(values).all() for values in turns_K)
    assert all(np.isfinite(v).all() for values in credit.figures.values() for v in values)
    assert all(np.isfinite(value) for value in credit.metrics.values())


@each_method
@given(members=st.lists(turns, min_size=1, max_size=4), reward=st.sampled_from([0.0, 1.0, 0.3]))
@settings(max_examples=30, deadline=None)
def test_equal_rewards_and_lone_members_give_exactly_nothing(name, members, reward):
    group = Group(TASK, tuple(scored(t, reward, i) for i, t in enumerate(members)))
    assert not credit_of(name, group).has_signal


@each_method
@given(group=groups(min_size=3), data=st.data())
@settings(max_examples=30, deadline=None)
def test_permuting_the_group_permutes_the_credit(name, group, data):
    order = data.draw(st.permutations(range(len(group.trajectories))))
    plain, moved = credit_of(name, group), credit_of(name, reordered(group, order))
    for here, there in enumerate(order):
        for a, b in zip(moved.advantage[here], plain.advantage[there], strict=True):
            assert a == pytest.approx(b, abs=1e-12)


@given(group=groups(min_size=2))
@settings(max_examples=100, deadline=None)
def test_agentopsd_keeps_the_sign_and_stays_within_a_tenth(group):
    plain, shaped = credit_of("grpo", group), credit_of("agentopsd", group)
    for a_K, b_K in zip(plain.advantage, shaped.advantage, strict=True):
        for a, b in zip(a_K, b_K, strict=True):
            assert np.array_equal(np.sign(a), np.sign(b))
            kept = a != 0
            assert ((b[kept] / a[kept] >= 0.9 - 1e-12) & (b[kept] / a[kept] <= 1.1 + 1e-12)).all()
