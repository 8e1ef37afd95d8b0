"""GRPO by hand: trajectory statistics, deviations, and groups without a signal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples import group_of
from turncredit.core.errors import ConfigError
from turncredit.credit import grpo
from turncredit.credit.grpo import Config, advantage_G, credit, outcome_G


def test_long_trajectories_weigh_no_more_than_short_ones():
    # Five turns against one: sample deviation of (1, 0) is 1/sqrt 2, so +-0.7071. Statistics over
    # the six turn rows would give +0.408 and -2.041.
    group = group_of([1, 0], [[0.0] * 5, [0.0]])
    got = outcome_G(group, Config(std="sample", epsilon=1e-12))
    assert got == pytest.approx([2**-0.5, -(2**-0.5)])


def test_duplicating_a_turn_changes_no_advantage():
    once = outcome_G(group_of([1, 0, 0], [[0.0] * 2, [0.0], [0.0] * 3]), Config())
    twice = outcome_G(group_of([1, 0, 0], [[0.0] * 9, [0.0], [0.0] * 3]), Config())
    assert np.array_equal(once, twice)


def test_hand_computed_population_sample_and_none():
    reward_G = np.array([1.0, 0.0, 0.0, 1.0])  # mean .5, population std .5, sample std 1/sqrt 3
    assert advantage_G(reward_G) == pytest.approx(np.array([0.5, -0.5, -0.5, 0.5]) / 0.5001)
    assert advantage_G(reward_G, std="sample", epsilon=1e-6)[0] == pytest.approx(
        0.5 / (3**-0.5 + 1e-6)
    )
    assert advantage_G(reward_G, std="none").tolist() == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.parametrize("std", grpo.STD_CHOICES)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 0.3, 0.7, 10.0])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_equal_rewards_give_exactly_zero(std, reward, size):
    got = advantage_G(np.full(size, reward), std=std)
    assert got.tolist() == [0.0] * size


def test_rounding_noise_is_not_a_signal():
    assert not advantage_G(np.array([0.1 + 0.2, 0.3, 0.3])).any()


def test_every_action_token_carries_its_trajectorys_advantage():
    group = group_of([1, 0], [[0.0, 0.0], [0.0]], tokens=3)
    given_credit = credit(group, Config())
    expected = outcome_G(group, Config())
    for i, turns in enumerate(given_credit.advantage):
        for values in turns:
            assert values.tolist() == [expected[i]] * 3
    assert given_credit.has_signal
    assert not credit(group_of([1, 1], [[0.0], [0.0]]), Config()).has_signal


@given(st.permutations(range(5)))
@settings(max_examples=30, deadline=None)
def test_permuting_members_permutes_advantages(order):
    reward_G = np.array([1.0, 0.0, 0.25, 1.0, 0.5])
    assert advantage_G(reward_G[list(order)]) == pytest.approx(advantage_G(reward_G)[list(order)])


@pytest.mark.parametrize("wrong", [{"std": "both"}, {"epsilon": 0.0}, {"epsilon": -1.0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)


def test_turn_rows_weigh_long_trajectories_more():
    # 4 successes of 10 turns, 4 failures of 50: of 240 rows 40 are 1. Published: +2.231, -0.446.
    reward_G, turns_G = np.array([1.0] * 4 + [0.0] * 4), [10] * 4 + [50] * 4
    got = advantage_G(reward_G, std="sample", epsilon=1e-6, baseline="turn_rows", turns_G=turns_G)
    assert got == pytest.approx([2.2314] * 4 + [-0.4463] * 4, abs=1e-4)
    own = advantage_G(reward_G, std="sample", epsilon=1e-6)
    assert own == pytest.approx([0.9354] * 4 + [-0.9354] * 4, abs=1e-4)


def test_turn_rows_are_counted_from_the_group():
    group = group_of([1, 0], [[0.0] * 3, [0.0]])  # rows 1 1 1 0: mean .75
    assert outcome_G(group, Config(baseline="turn_rows", std="none")).tolist() == [0.25, -0.75]
    with pytest.raises(ConfigError, match="turns_G"):
        advantage_G(np.array([1.0, 0.0]), baseline="turn_rows")


def test_turn_rows_that_do_not_differ_say_nothing_even_of_a_member_without_turns():
    group = group_of([1, 0, 0], [[], [0.0] * 3, [0.0]])
    assert outcome_G(group, Config(baseline="turn_rows")).tolist() == [0.0] * 3
    assert outcome_G(group_of([1], [[0.0] * 3]), Config(baseline="turn_rows")).tolist() == [0.0]


def test_leave_one_out_compares_with_the_others():
    reward_G = np.array([1.0, 0.0, 0.0, 0.5])  # means of the others: 1/6, 1/2, 1/2, 1/3
    got = advantage_G(reward_G, baseline="leave_one_out", std="none")
    assert got == pytest.approx([5 / 6, -1 / 2, -1 / 2, 1 / 6])
    scaled = advantage_G(reward_G, baseline="leave_one_out")
    assert scaled == pytest.approx(np.array(got) / (reward_G.std() + 1e-4))


@pytest.mark.parametrize("baseline", grpo.BASELINE_CHOICES)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_equal_rewards_are_zero_under_every_baseline(baseline, size):
    got = advantage_G(np.full(size, 0.3), baseline=baseline, turns_G=range(size))
    assert got.tolist() == [0.0] * size


def test_an_unknown_baseline_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r'baseline is .* Did you mean "turn_rows"'):
        Config(baseline="turn_row")  # type: ignore[arg-type]
