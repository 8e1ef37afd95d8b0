"""AgentOPSD by hand, at its edges, and against GRPO."""

import math

import numpy as np
import pytest

from samples import TASK, group_of, scored, unscored
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import agentopsd, grpo
from turncredit.credit.agentopsd import Config, credit, reshape_turns


def test_hand_computed_recursion():
    # e = (1, 0), gamma .95, prior .5: c = (1, .95), B = (sigmoid 1, sigmoid .95).
    b1, b2 = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-0.95))
    got = reshape_turns(np.array([1.0, 0.0]), 1.0, 0.5, Config())
    assert got.cumulative == pytest.approx([1, 0.95])
    assert got.belief_before == pytest.approx([0.5, b1])
    assert got.belief_after == pytest.approx([b1, b2])
    assert got.delta_b == pytest.approx([b1 - 0.5, b2 - b1])
    # Two turns lie one deviation from their mean, on either side (but for epsilon).
    deviation = (got.delta_b[0] - got.delta_b[1]) / 2
    assert got.z == pytest.approx([deviation / (deviation + 1e-4), -deviation / (deviation + 1e-4)])
    assert got.weight == pytest.approx(1 + 0.2 * got.z)
    assert got.advantage == pytest.approx(0.5 + 0.5 * got.weight)


def test_decay_acts_on_evidence_so_quiet_turns_fall_back():
    got = reshape_turns(np.array([1.0, 0.0, 0.0, 0.0]), 1.0, 0.5, Config())
    assert got.delta_b == pytest.approx([0.231, -0.0099, -0.0097, -0.0094], abs=1e-4)
    assert got.weight == pytest.approx([1.2, 0.884, 0.885, 0.885], abs=1e-3)


def test_a_failure_blames_the_turn_the_teacher_disliked():
    got = reshape_turns(np.array([0.1, -3.0, 0.1]), -1.0, 0.5, Config())
    assert np.argmax(got.weight) == 1
    assert got.advantage[1] == pytest.approx(-1.1)
    assert (got.advantage < 0).all()


def test_every_intermediate_is_kept_per_turn():
    group = group_of([1, 0], [[0.5, -0.2, 0.1], [0.3]], tokens=2)
    given = credit(group, Config())
    assert set(given.figures) == set(agentopsd.FIGURES)
    for values_G in given.figures.values():
        assert [len(values_K) for values_K in values_G] == [3, 1]
    for i, turns in enumerate(given.advantage):
        for k, values in enumerate(turns):
            assert values.tolist() == [given.figures["advantage"][i][k]] * 2
    assert given.metrics["evidence_abs_mean"] == pytest.approx((0.5 + 0.2 + 0.1 + 0.3) / 4)
    assert given.metrics["weight_max"] <= 1.2


def test_evidence_is_the_sum_over_tokens_not_the_mean():
    group = Group(TASK, (scored([[0.5, 0.25, -0.125], [1.0]], 1.0), scored([[0.0]], 0.0, 1)))
    assert credit(group, Config()).figures["evidence"][0].tolist() == [0.625, 1.0]


def test_prior_is_the_success_rate_whatever_the_scale_of_the_reward():
    group = group_of([10.0, 0.0, 0.0, 0.0], [[0.1], [0.1], [0.1], [0.1]])
    assert credit(group, Config()).figures["belief_before"][0][0] == 0.25
    lost = group_of([0.0, 0.0], [[0.1], [0.1]])
    assert credit(lost, Config()).metrics["initial_belief"] == 1e-4


@pytest.mark.parametrize("std", grpo.STD_CHOICES)
def test_lambda_zero_is_grpo_to_the_last_bit(std):
    rng = np.random.default_rng(0)
    rewards = [1, 0, 0, 1, 0, 1, 1]
    group = group_of(rewards, [rng.normal(0, 3, 1 + i).tolist() for i in range(7)], tokens=3)
    mine = credit(group, Config(reshape_lambda=0.0, std=std)).advantage
    plain = grpo.credit(group, grpo.Config(std=std)).advantage
    for a_K, b_K in zip(mine, plain, strict=True):
        for a_N, b_N in zip(a_K, b_K, strict=True):
            assert a_N.tobytes() == b_N.tobytes()


def test_the_text_of_a_turn_does_not_matter():
    gaps = [[[0.4, 0.1], [-0.3]], [[0.2], [0.9]]]
    plain, noisy = (
        Group(TASK, (scored(gaps[0], 1.0, 0, text), scored(gaps[1], 0.0, 1, text)))
        for text in ("", "go go go")
    )
    for name, values in credit(plain, Config()).figures.items():
        for a, b in zip(values, credit(noisy, Config()).figures[name], strict=True):
            assert np.array_equal(a, b)


def test_an_unscored_group_is_told_what_to_do():
    group = group_of([1, 0], [[0.1], [0.2]])
    bare = Group(TASK, tuple(unscored(t) for t in group.trajectories))
    with pytest.raises(ConfigError, match="run the teacher"):
        credit(bare, Config())
    assert grpo.credit(bare, grpo.Config()).has_signal


@pytest.mark.parametrize("evidence", [700.0, -700.0, 1e6])
def test_huge_evidence_neither_overflows_nor_warns(evidence):
    with np.errstate(all="raise", under="ignore"):
        got = reshape_turns(np.array([evidence, -evidence, 0.0]), 1.0, 0.5, Config())
    assert all(np.isfinite(getattr(got, name)).all() for name in agentopsd.FIGURES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"gamma": 1.01}, {"gamma": -0.1}, {"reshape_lambda": 1.5}, {"reshape_lambda": -0.5},
        {"weight_bound": 1.0}, {"weight_bound": -0.2}, {"epsilon": 0.0}, {"std": "sd"},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
