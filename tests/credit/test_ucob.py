"""UCOB's pairs by hand: who teaches whom, under which prompt, and how much."""

from dataclasses import replace

import pytest

from samples import TASK, walk
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import gigpo
from turncredit.credit.ucob import Config, credit, transfers

HINTED = "a hint"
GROUP = Group(
    TASK,
    (
        walk(["room", "desk"], [0, 1], student_hint_hash=HINTED),
        walk(["room", "hall", "desk"], [0, 0, 1], 1),
        walk(["room", "hall"], [0, 0], 2),
    ),
)


def found(config):
    return {
        (pair.winner.member, pair.winner.turn, pair.target.member, pair.target.turn): pair
        for pair in transfers(GROUP, config)
    }


def test_pairs_weights_and_branches():
    # Returns, gamma .5: hinted (.5, 1), unhinted winner (.25, .5, 1), loser (0, 0).
    pairs = found(Config(gamma=0.5, min_gap=0.0, gap_unit=1.0))
    assert set(pairs) == {(0, 0, 2, 0), (0, 0, 1, 0), (1, 1, 2, 1)}  # the desks are equal
    assert pairs[0, 0, 2, 0].weight == 0.5
    assert pairs[0, 0, 1, 0].weight == 0.25
    assert not pairs[0, 0, 2, 0].to_hinted  # what the skill taught, without the skill
    assert pairs[1, 1, 2, 1].to_hinted  # what worked without, with it
    assert pairs[1, 1, 2, 1].winner.value == 0.5


def test_weights_have_a_bound_and_small_gaps_are_left():
    assert {pair.weight for pair in found(Config(gamma=0.5)).values()} == {2.0}
    assert set(found(Config(gamma=0.5, min_gap=0.3))) == {(0, 0, 2, 0), (1, 1, 2, 1)}


def test_the_largest_gaps_of_an_anchor_come_first():
    assert set(found(Config(gamma=0.5, pairs=1))) == {(0, 0, 2, 0), (1, 1, 2, 1)}
    assert found(Config(pairs=0)) == {}


def test_turns_without_a_valid_action_or_tokens_take_no_part():
    first = GROUP.trajectories[0]
    lost = replace(first.turns[0], admissible=False)
    group = Group(TASK, (replace(first, turns=(lost, *first.turns[1:])), *GROUP.trajectories[1:]))
    config = Config(gamma=0.5, min_gap=0.0, gap_unit=1.0)
    assert all(pair.winner.member == 1 for pair in transfers(group, config))


def test_a_lone_turn_has_nobody_to_teach():
    assert transfers(Group(TASK, GROUP.trajectories[:1]), Config()) == ()


def test_credit_is_gigpos():
    mine, theirs = credit(GROUP, Config()), gigpo.credit(GROUP, gigpo.Config())
    for a_K, b_K in zip(mine.advantage, theirs.advantage, strict=True):
        assert [a.tobytes() for a in a_K] == [b.tobytes() for b in b_K]


@pytest.mark.parametrize(
    "wrong", [{"min_gap": -1.0}, {"gap_unit": 0.0}, {"weight_max": -1.0}, {"pairs": -1}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
