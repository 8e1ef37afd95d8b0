"""GiGPO by hand: returns, anchors, and turns against those that began in the same state."""

from dataclasses import replace

import numpy as np
import pytest

from samples import TASK, group_of, reordered, walk
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import anchors, grpo
from turncredit.credit.gigpo import Config, credit

# The winner needs three turns from the room, the detour four; the loser never leaves the hall.
GROUP = Group(
    TASK,
    (
        walk(["room", "hall", "desk"], [0, 0, 1]),
        walk(["room", "room", "hall", "desk"], [0, 0, 0, 1], 1),
        walk(["room", "hall"], [0, 0], 2),
    ),
)


def test_returns_by_hand():
    assert anchors.discounted([0, 0, 1], 0.5).tolist() == [0.25, 0.5, 1.0]
    assert anchors.discounted([1, 0, 2], 0.5).tolist() == [1.5, 1.0, 2.0]
    assert anchors.discounted([], 0.5).tolist() == []


def test_a_turn_is_compared_with_those_of_its_state():
    given = credit(GROUP, Config(gamma=0.5, std="none", step_std="none"))
    room = np.array([0.25, 0.125, 0.25, 0.0])  # three members, one of them twice
    hall = np.array([0.5, 0.5, 0.0])
    assert given.figures["return"][1].tolist() == [0.125, 0.25, 0.5, 1.0]
    step = given.figures["step_advantage"]
    assert step[0] == pytest.approx([0.25 - room.mean(), 0.5 - hall.mean(), 0.0])
    assert step[2] == pytest.approx([0.0 - room.mean(), 0.0 - hall.mean()])
    assert given.figures["anchor_size"][1].tolist() == [4, 4, 3, 2]
    total = [values.item() for values in given.advantage[0]]
    assert total == pytest.approx((1 / 3 + step[0]).tolist())  # outcome 1 - 2/3


def test_the_steps_deviation_is_the_sample_one_by_default():
    given = credit(Group(TASK, (walk(["a"], [1]), walk(["a"], [0], 1))), Config(epsilon=1e-9))
    assert given.figures["step_advantage"][0] == pytest.approx([0.5 / 0.5**0.5])


def test_alone_in_a_state_nothing_is_said():
    group = Group(TASK, (walk(["a", "b"], [0, 1]), walk(["c"], [0], 1)))
    given = credit(group, Config())
    assert not any(values_K.any() for values_K in given.figures["step_advantage"])
    assert given.metrics["turns_alone"] == 1.0


def test_a_group_of_successes_prefers_the_shorter_way():
    given = credit(Group(TASK, GROUP.trajectories[:2]), Config())
    assert given.advantage[0][0].item() > 0 > given.advantage[1][0].item()


def test_a_group_of_failures_is_silent():
    group = Group(TASK, (walk(["a", "b"], [0, 0]), walk(["a"], [0], 1)))
    assert not credit(group, Config()).has_signal


def test_without_step_weight_it_is_grpo_to_the_last_bit():
    given, plain = credit(GROUP, Config(step_weight=0.0)), grpo.credit(GROUP, grpo.Config())
    for mine, theirs in zip(given.advantage, plain.advantage, strict=True):
        assert [a.tobytes() for a in mine] == [b.tobytes() for b in theirs]


def test_similar_observations_join_the_first_they_resemble():
    keys = ["you see a mug 1.", "you see a mug 2.", "a desk", "you see a mug 11."]
    assert anchors.labels(keys) == [0, 1, 2, 3]
    assert anchors.labels(keys, 0.9) == [0, 0, 1, 0]


def test_the_environments_own_key_can_be_the_state():
    turns = [replace(t, state_key=key) for t, key in zip(GROUP.trajectories[0].turns, "xyx",
                                                        strict=True)]  # fmt: skip
    keyed = Group(TASK, (replace(GROUP.trajectories[0], turns=tuple(turns)),))
    given = credit(keyed, Config(anchor="state_key"))
    assert given.figures["anchor_size"][0].tolist() == [2, 1, 2]
    with pytest.raises(ConfigError, match="--anchor observation"):
        credit(GROUP, Config(anchor="state_key"))


def test_the_order_of_the_members_does_not_matter():
    moved = credit(reordered(GROUP, [2, 0, 1]), Config())
    for here, there in enumerate([2, 0, 1]):
        for a, b in zip(moved.advantage[here], credit(GROUP, Config()).advantage[there],
                        strict=True):  # fmt: skip
            assert a == pytest.approx(b)


def test_no_members_and_no_turns_are_no_accident():
    assert credit(Group(TASK, ()), Config()).advantage == ()
    assert credit(group_of([1, 0], [[], []]), Config()).metrics == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"gamma": 1.1}, {"step_weight": -1.0}, {"step_std": "sd"}, {"similarity": 0.0},
        {"similarity": 0.9, "anchor": "state_key"},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
