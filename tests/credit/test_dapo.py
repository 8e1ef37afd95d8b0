"""DAPO by hand: the price of length, the sample deviation, and groups worth keeping."""

import numpy as np
import pytest

from samples import TASK, group_of, scored
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import dapo, grpo
from turncredit.credit.dapo import Config, credit, keep, overlong_G


def test_the_price_falls_linearly_over_the_cache():
    got = overlong_G(np.array([0, 3072, 3584, 4096, 9999]), limit=4096, cache=1024)
    assert got.tolist() == [0, 0, -0.5, -1, -1]
    assert overlong_G(np.array([9999]), limit=0, cache=0).tolist() == [0]


def values(group, config):
    return [turns[0][0] for turns in credit(group, config).advantage]


def test_short_trajectories_have_grpos_advantage_on_a_scale_of_two():
    group = group_of([1, 0, 0], [[0.0], [0.0], [0.0]])
    plain = grpo.advantage_G(group.reward_G, std="sample", epsilon=1e-9)
    assert values(group, Config()) == pytest.approx(plain.tolist(), abs=1e-7)
    assert values(group, Config(std="none")) == pytest.approx([4 / 3, -2 / 3, -2 / 3])


def test_a_long_success_earns_less_than_a_short_one():
    # Action tokens 1, 3 and 2 with a price from 1 to 3: rewards 1, 1 - 1 and -1 - .5.
    members = (
        scored([[0.0]], 1.0),
        scored([[0.0] * 2, [0.0]], 1.0, 1),
        scored([[0.0] * 2], 0.0, 2),
    )
    config = Config(std="none", overlong_limit=3, overlong_cache=2)
    mean = (1 + 0 - 1.5) / 3
    assert values(Group(TASK, members), config) == pytest.approx([1 - mean, -mean, -1.5 - mean])
    assert credit(Group(TASK, members), config).metrics["overlong_mean"] == pytest.approx(-0.5)


def test_only_groups_whose_outcomes_differ_are_kept():
    config = Config(overlong_limit=3, overlong_cache=2)
    assert keep(group_of([1, 0], [[0.0], [0.0]]), config)
    for rewards in ([1, 1], [0, 0], [1]):
        assert not keep(group_of(rewards, [[0.0]] * len(rewards)), config)
    lengths = Group(TASK, (scored([[0.0] * 3], 1.0), scored([[0.0]], 1.0, 1)))
    assert not keep(lengths, config)  # they differ in length alone


def test_equal_rewards_give_exactly_zero():
    assert not credit(group_of([1, 1, 1], [[0.0], [0.0, 0.0], []]), Config()).has_signal


def test_duplicating_a_turn_below_the_cache_changes_nothing():
    once, twice = (group_of([1, 0, 0], [[0.0] * k, [0.0], [0.0]]) for k in (1, 2))
    assert values(once, Config()) == values(twice, Config())


def test_what_it_needs():
    assert dapo.NEEDS.clip == (0.8, 1.28)
    assert (Config().std, Config().epsilon) == ("sample", 1e-8)


@pytest.mark.parametrize(
    "wrong", [{"overlong_limit": -1}, {"overlong_cache": 0}, {"overlong_cache": 5000}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
    if "overlong_cache" in wrong:
        assert Config(overlong_limit=0, **wrong)  # without a penalty nobody asks
