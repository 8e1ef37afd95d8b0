"""Extrapolation from the initial policy (our reading) by hand."""

from dataclasses import replace

import numpy as np
import pytest

from samples import TASK, scored, unscored
from turncredit.core.errors import ConfigError
from turncredit.core.types import REFERENCE, Group
from turncredit.credit import grpo
from turncredit.credit.extrapolation import Config, credit

UP = 1 / (1 + 2e-4)


def moved(way_K, reward, member):
    """A trajectory whose tokens' log-probs have moved so far since the initial policy."""
    told = scored([[9.0] * len(way_N) for way_N in way_K], reward, member)  # gaps are not read
    reference = tuple(-1.0 - np.array(way_N, float) for way_N in way_K)
    return replace(told, streams={REFERENCE: reference})


def test_success_leans_where_the_policy_went_and_failure_away_from_it():
    way_K = [[0.1], [-0.05, 9.0]]
    group = Group(TASK, (moved(way_K, 1.0, 0), moved(way_K, 0.0, 1)))
    won, lost = (np.concatenate(a) for a in credit(group, Config()).advantage)
    weights = 0.5 + 0.5 * np.array([np.exp(0.1), np.exp(-0.05), 1.2])
    assert won == pytest.approx(UP * weights)
    weights = 0.5 + 0.5 * np.array([np.exp(-0.1), np.exp(0.05), 0.8])
    assert lost == pytest.approx(-UP * weights)


def test_the_step_says_how_far_beyond():
    group = Group(TASK, (moved([[0.04]], 1.0, 0), moved([[0.0]], 0.0, 1)))
    won, _ = credit(group, Config(reach=2.0, mix=1.0)).advantage
    assert won[0] == pytest.approx([UP * np.exp(0.08)])


def test_before_anything_has_moved_it_is_grpo():
    group = Group(TASK, (moved([[0.0], [0.0]], 1.0, 0), moved([[0.0]], 0.0, 1)))
    plain = grpo.credit(group, grpo.Config()).advantage
    for mine, theirs in zip(credit(group, Config()).advantage, plain, strict=True):
        assert [a.tolist() for a in mine] == [b.tolist() for b in theirs]


def test_no_teacher_but_the_initial_policy_is_needed():
    told = (moved([[0.1]], 1.0, 0), moved([[0.1]], 0.0, 1))
    bare = tuple(replace(unscored(t), streams=t.streams) for t in told)
    assert credit(Group(TASK, bare), Config()).has_signal
    with pytest.raises(ConfigError, match="initial policy"):
        credit(Group(TASK, tuple(unscored(t) for t in told)), Config())


@pytest.mark.parametrize("wrong", [{"reach": 0.0}, {"reach": float("nan")}, {"mix": -1.0},
                                   {"weight_bound": 1.0}])  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
