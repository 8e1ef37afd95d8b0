"""TEMPO by hand: branches with an open end, and what a critic's answers earn."""

import numpy as np
import pytest

from samples import TASK, walk
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group, StopReason
from turncredit.credit import tempo
from turncredit.credit.tempo import Config, credit, critic_rewards, endpoint_value, parse_value

OPEN = {"stop": StopReason.MAX_TURNS}
MEMBERS = (
    walk(["a"], [1]),
    walk(["a", "b"], [0, 0], 1, **OPEN),
    walk(["a"], [0], 2),
    walk(["a"], [0], 3, **OPEN),
)


def values(given):
    return [turns[0].item() for turns in given.advantage]


def test_only_a_branch_out_of_turns_has_a_future():
    notes = {"endpoint_value": np.array([0.9, 0.5, 0.9, np.nan])}  # the last could not be read
    given = credit(Group(TASK, MEMBERS, notes=notes), Config())
    target = (1 + 0.5 + 0 + 0) / 4
    assert values(given) == pytest.approx([1 - target, 0.5 - target, -target, -target])
    assert given.metrics["value_target"] == pytest.approx(target)


def test_without_a_critic_it_is_the_centred_outcome():
    assert values(credit(Group(TASK, MEMBERS), Config())) == [0.75, -0.25, -0.25, -0.25]


def test_equal_branches_and_lone_ones_are_silent():
    notes = {"endpoint_value": np.array([0.4, 0.4])}
    group = Group(TASK, (MEMBERS[1], MEMBERS[3]), notes=notes)
    assert not credit(group, Config()).has_signal
    alone = Group(TASK, MEMBERS[1:2], notes={"endpoint_value": np.array([0.4])})
    assert not credit(alone, Config()).has_signal


def test_the_answers_nearest_to_the_target_earn_most():
    got = critic_rewards([0.25, 0.75, None], 0.5, reward_max=2.0)
    assert got.error.tolist() == [0.125, 0.125, 2.0]
    assert got.reward.tolist() == [-0.125, -0.125, -2.0]
    assert got.advantage == pytest.approx([0.625, 0.625, -1.25])
    assert not critic_rewards([None, None], 0.5).advantage.any()
    assert critic_rewards([], 0.5).advantage.tolist() == []


def test_an_endpoint_is_worth_the_mean_of_what_could_be_read():
    assert endpoint_value([0.2, None, 0.4]) == pytest.approx(0.3)
    assert endpoint_value([None, None]) == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<value>0.42</value>", 0.42), ("so <VALUE> .5 </value>.", 0.5), ("<value>1.</value>", 1.0),
        ("<value>7</value>", 1.0), ("<value>0.9</value> no, <value>0.1</value>", 0.1),
        ("<value>0.3</value><value>unsure</value>", 0.3), ("<value>-0.3</value>", None),
        ("<value>+0.3</value>", None), ("<value>1e-1</value>", None), ("<value></value>", None),
        ("<value>nan</value>", None), ("0.5", None), ("<value>.</value>", None),
    ],
)  # fmt: skip
def test_what_counts_as_an_answer(text, value):
    assert parse_value(text) == value


def test_what_it_needs():
    assert tempo.NEEDS.loss == "importance_sampling"
    with pytest.raises(ConfigError, match="reward_max"):
        Config(reward_max=0.0)
