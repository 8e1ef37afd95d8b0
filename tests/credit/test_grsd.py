"""GRSD by hand."""

from dataclasses import replace

import numpy as np
import pytest

from samples import TASK, scored
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import grpo, grsd
from turncredit.credit.grsd import Config, credit, reflection_advantage

UP = 1 / (1 + 2e-4)
LN = np.log


def pair(gaps_won, gaps_lost):
    return Group(TASK, (scored(gaps_won, 1.0, 0), scored(gaps_lost, 0.0, 1)))


def test_hand_computed_gates_of_turns():
    # Won turns: mean gaps ln 1.2 and 0; lost: -ln 1.1 (blamed, since the teacher disliked it).
    # Signals .2, 0, .1; their mean size is .1, so scaled 2, 0, 1, cut at 3.
    group = pair([[LN(1.2) + 1, LN(1.2) - 1], [0.0]], [[-LN(1.1)]])
    given = credit(group, Config(weight_bound=3.0))
    won, lost = given.advantage
    assert won[0] == pytest.approx([UP * 2.0] * 2, rel=1e-4)  # 1 + .5 * 2
    assert won[1] == pytest.approx([UP])
    assert lost[0] == pytest.approx([-UP * 1.5], rel=1e-4)
    assert given.figures["weight"][0] == pytest.approx([3.0, 1.0], rel=1e-4)
    assert credit(group, Config()).advantage[0][0] == pytest.approx([UP * 1.1] * 2)


def test_the_floor_keeps_the_sign():
    # A signal of almost -1 beside a dozen of 0: scaled far below -2.
    group = pair([[-20.0], *([[0.0]] * 12)], [[0.0]])
    given = credit(group, Config(weight_bound=3.0))
    assert given.advantage[0][0] == pytest.approx([UP * 0.1])  # 1 - .5 * 3 would be -.5


def test_small_signals_fall_in_the_dead_zone():
    group = pair([[LN(1.3)], [LN(1.1)]], [[0.0]])  # signals .3, .1, 0; mean .4 / 3
    won = credit(group, Config(dead_zone=0.8, weight_bound=3.0)).advantage[0]
    assert won[0] == pytest.approx([UP * (1 + 0.5 * 0.3 * 3 / 0.4)], rel=1e-4)
    assert won[1] == pytest.approx([UP])  # .75 lies within .8


def test_tokens_have_gates_of_their_own():
    group = pair([[LN(1.1), -LN(2)]], [[0.0, 0.0]])
    plain = credit(group, Config(level="token", weight_bound=3.0)).advantage[0][0]
    assert plain == pytest.approx([UP * 1.05, UP * 0.75])  # signals .1 and -.5, not scaled
    scaled = credit(group, Config(level="token", token_norm="group", weight_bound=5.0))
    # Mean size .6 / 4 = .15: scaled .667 and -3.33.
    assert scaled.advantage[0][0] == pytest.approx([UP * (1 + 1 / 3), UP * 0.1], rel=1e-4)


def test_a_turn_without_tokens_is_no_entry_of_the_scale():
    gaps = [[LN(1.2)], [LN(1.4)]]
    with_empty = credit(pair([*gaps, []], [[0.0]]), Config(weight_bound=3.0)).advantage[0]
    without = credit(pair(gaps, [[0.0]]), Config(weight_bound=3.0)).advantage[0]
    assert with_empty[0].tolist() == without[0].tolist()


@pytest.mark.parametrize("level", ["turn", "token"])
def test_without_both_outcomes_or_a_hint_it_is_grpo(level):
    unhinted = pair([[2.0], [-1.0]], [[0.5]])
    unhinted = replace(
        unhinted, trajectories=tuple(replace(t, hint_hash="") for t in unhinted.trajectories)
    )
    # Two failures of different reward: an advantage, but no success to learn from.
    failed = Group(TASK, (scored([[2.0]], -1.0, 0), scored([[1.0]], 0.0, 1)))
    for group in (unhinted, failed):
        given = credit(group, Config(level=level, weight_bound=3.0))
        plain = grpo.credit(group, grpo.Config())
        assert plain.has_signal
        for mine, theirs in zip(given.advantage, plain.advantage, strict=True):
            assert [a.tolist() for a in mine] == [a.tolist() for a in theirs]


def test_a_member_without_a_hint_keeps_its_advantage_and_is_no_entry():
    group = Group(
        TASK,
        (
            scored([[LN(1.2)]], 1.0, 0),
            scored([[LN(1.2)], [0.0]], 0.0, 1),
            replace(scored([[5.0]], 0.0, 2), hint_hash=""),
        ),
    )
    config = Config(weight_bound=3.0)
    outcome_G = grpo.outcome_G(group, config)
    got = credit(group, config).advantage
    assert got[2][0] == pytest.approx([outcome_G[2]])
    signals = [0.2, 1 / 1.2 - 1, 0.0]  # of the hinted turns alone
    scale = np.abs(signals).mean()
    assert got[0][0] == pytest.approx([outcome_G[0] * (1 + 0.5 * 0.2 / scale)], rel=1e-4)


def test_reflections_are_compared_among_the_valid_ones():
    # Of 0, 2 and (not valid) 9: mean 1, deviation 1.
    assert reflection_advantage([0, 9, 2], [1, 0, 1]) == pytest.approx([-1, 0, 1], rel=1e-5)
    assert reflection_advantage([3, 1], [0, 1]).tolist() == [0.0, 0.0]
    assert reflection_advantage([2, 2, 2], [1, 1, 1]).tolist() == [0.0] * 3
    assert reflection_advantage([], []).tolist() == []


def test_extreme_signals_stay_finite():
    with np.errstate(all="raise", under="ignore"):
        signals = grsd.signal(np.array([1e4, -1e4]), np.array([1.0, 1.0]))
    assert signals == pytest.approx([np.expm1(20.0), np.expm1(-20.0)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"mix": 1.5}, {"floor": 0.0}, {"floor": 1.1}, {"dead_zone": -0.1}, {"weight_bound": -1.0},
        {"weight_bound": float("inf")},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
