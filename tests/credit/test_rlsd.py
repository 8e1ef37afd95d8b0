"""RLSD by hand."""

import math

import numpy as np
import pytest

from samples import TASK, group_of, scored
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit.rlsd import Config, credit

UP = 1 / (1 + 2e-4)  # (1 - .5) / (.5 + 1e-4): what a group of a success and a failure gets


def test_hand_computed_weights_on_both_sides_of_the_outcome():
    gap_K = [[0.1, -0.1], [3.0]]
    group = Group(TASK, (scored(gap_K, 1.0, 0), scored(gap_K, 0.0, 1)))
    won, lost = credit(group, Config()).advantage
    half_up, half_down = 0.5 + 0.5 * math.exp(0.1), 0.5 + 0.5 * math.exp(-0.1)
    assert won[0] == pytest.approx([UP * half_up, UP * half_down])
    assert won[1] == pytest.approx([UP * 1.1])  # exp 3 is cut to 1.2, half of which counts
    # A failure is blamed on what the teacher disliked: the sign of the gap turns round.
    assert lost[0] == pytest.approx([-UP * half_down, -UP * half_up])
    assert lost[1] == pytest.approx([-UP * 0.9])


def test_figures_keep_evidence_weight_and_advantage_of_every_turn():
    group = Group(TASK, (scored([[0.1, -0.1], [], [3.0]], 1.0, 0), scored([[0.0]], 0.0, 1)))
    given = credit(group, Config(mix=1.0))
    assert given.figures["evidence"][0] == pytest.approx([0.0, 0.0, 3.0])
    assert given.figures["weight"][0] == pytest.approx([math.cosh(0.1), 1.0, 1.2])
    assert given.figures["advantage"][0] == pytest.approx([UP * math.cosh(0.1), 0.0, UP * 1.2])
    assert given.metrics["evidence_abs_mean"] == pytest.approx(3.0 / 4)
    assert given.metrics["weight_max"] == pytest.approx(1.2)


@pytest.mark.parametrize("gap", [700.0, -700.0, 1e6])
def test_huge_gaps_neither_overflow_nor_warn(gap):
    with np.errstate(all="raise", under="ignore"):
        given = credit(group_of([1, 0], [[gap], [gap]]), Config())
    assert given.advantage[0][0] == pytest.approx([UP * (1.1 if gap > 0 else 0.9)])


@pytest.mark.parametrize("wrong", [{"mix": 1.5}, {"mix": -0.1}, {"weight_bound": 1.0},
                                   {"weight_bound": -0.1}, {"baseline": "rows"}])  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
