"""AgentOPSD by hand, at its edges, and against GRPO."""

import math

import numpy as np
import pytest

from samples import TASK, group_of, scored, unscored
from turncredit.core.errors import ConfigError
from turncredit.core.needs import needs_of
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


def test_tokens_of_a_turn_are_walked_like_turns_and_the_belief_begins_again():
    gaps = [[1.0, 0.0], [], [1.0, 0.0], [0.7]]
    group = Group(TASK, (scored(gaps, 1.0, 0), scored([[0.0]], 0.0, 1)))
    given = credit(group, Config(granularity="token"))
    advantage = grpo.outcome_G(group, grpo.Config())[0]
    turn = reshape_turns(np.array([1.0, 0.0]), advantage, 0.5, Config())
    first, empty, second, lone = given.advantage[0]
    assert first.tolist() == second.tolist() == turn.advantage.tolist()
    assert first[0] > first[1]
    assert len(empty) == 0
    assert lone.tolist() == [advantage]  # one token has none to be compared with
    assert given.figures["belief_before"][0].tolist() == [0.5] * 4
    assert given.figures["belief_after"][0][[0, 1]] == pytest.approx([turn.belief_after[1], 0.5])
    assert given.figures["delta_b"][0][0] == pytest.approx(turn.delta_b.sum())
    assert given.figures["evidence"][0] == pytest.approx([1.0, 0.0, 1.0, 0.7])
    assert given.figures["weight"][0] == pytest.approx([turn.weight.mean(), 1.0] * 2)


def test_the_belief_may_begin_at_the_mean_reward():
    group = group_of([0.9, 0.3, 0.0], [[0.1], [0.1], [0.1]])
    by_rate, by_return = (
        credit(group, Config(belief_source=source)).metrics["initial_belief"]
        for source in ("success_rate", "return")
    )
    assert by_rate == pytest.approx(2 / 3)
    assert by_return == pytest.approx(0.4)
    # On a scale of ten a single success pins it at the clamp: why it is not the default.
    ten = group_of([10.0, 0.0, 0.0], [[0.1], [0.1], [0.1]])
    assert credit(ten, Config(belief_source="return")).metrics["initial_belief"] == 1 - 1e-4


EVIDENCE = np.array([2.0, -1.0, 0.5])
AFTER = 1 / (1 + np.exp(-np.array([2.0, 1.0, 1.5])))  # gamma 1, from one half
DELTA = np.diff(np.concatenate([[0.5], AFTER]))


def ablated(variant, advantage=-1.0, outcome=0.0, share=0.5, **more):
    config = Config(variant=variant, gamma=1.0, reshape_lambda=share, epsilon=1e-9)
    return reshape_turns(EVIDENCE, advantage, 0.5, config, outcome=outcome, **more)


def weights_of(values):
    return np.clip(1 + 0.2 * (values - values.mean()) / values.std(), 0.8, 1.2)


def test_unsigned_weighs_the_size_of_steps_whatever_the_outcome():
    assert ablated("unsigned").weight == pytest.approx(weights_of(np.abs(DELTA)))
    assert ablated("unsigned", 1.0).weight == pytest.approx(ablated("unsigned").weight)


def test_no_gate_weighs_raw_evidence():
    assert ablated("no_gate").weight == pytest.approx(weights_of(-EVIDENCE))


def test_tether_weighs_the_mean_gap_of_a_turn_alone():
    got = ablated("tether", tokens_K=np.array([20, 10, 0]))
    assert got.weight == pytest.approx([np.exp(-0.1), np.exp(0.1), 0.8])  # exp(-.5) is cut
    assert got.advantage == pytest.approx(-(0.5 + 0.5 * got.weight))


def test_tether_counts_the_tokens_of_each_turn():
    group = Group(TASK, (scored([[0.1, 0.1], [0.1]], 1.0), scored([[0.0]], 0.0, 1)))
    weight_K = credit(group, Config(variant="tether")).figures["weight"][0]
    assert weight_K == pytest.approx([np.exp(0.1)] * 2)


def test_telescoping_steps_sum_to_outcome_minus_prior():
    whole = ablated("telescoping", share=1.0)
    assert whole.advantage.sum() == pytest.approx(-0.5)
    assert whole.advantage == pytest.approx(DELTA * -0.5 / DELTA.sum())
    assert whole.advantage[1] > 0  # against the outcome: this one keeps no sign
    half = ablated("telescoping", share=0.5)
    assert half.advantage == pytest.approx(-0.5 + 0.5 * whole.advantage)


def test_telescoping_steps_that_cancel_say_nothing():
    config = Config(variant="telescoping", gamma=1.0, reshape_lambda=1.0)
    got = reshape_turns(np.array([1.0, -1.0]), 1.0, 0.5, config, outcome=1.0)
    assert got.advantage.tolist() == [0.0, 0.0]


def test_anchored_steps_keep_the_outcomes_sign():
    got = ablated("anchored", share=1.0)
    assert got.advantage == pytest.approx(-0.5 * np.abs(DELTA) / np.abs(DELTA).sum())
    won = ablated("anchored", advantage=1.0, outcome=1.0, share=1.0)
    assert won.advantage == pytest.approx(0.5 * np.abs(DELTA) / np.abs(DELTA).sum())


def test_replaced_steps_reach_for_the_success_or_the_reward_as_the_belief_does():
    group = group_of([0.6, 0.0], [[1.0, 1.0], [0.3]])
    for source, target in (("success_rate", 1 - 0.5), ("return", 0.6 - 0.3)):
        config = Config(variant="anchored", belief_source=source, reshape_lambda=1.0)
        assert sum(np.concatenate(credit(group, config).advantage[0])) == pytest.approx(target)


def test_only_ablations_that_replace_the_outcome_promise_no_bound():
    promised = {v: bool(needs_of(agentopsd, Config(variant=v)).bound) for v in agentopsd.VARIANTS}
    assert promised == {
        "full": True, "unsigned": True, "no_gate": True, "tether": True,
        "telescoping": False, "anchored": False,
    }  # fmt: skip


@pytest.mark.parametrize("variant", ["telescoping", "anchored"])
def test_replaced_steps_of_equal_outcomes_are_nothing(variant):
    # The prior's clamp leaves a target of 1e-4, which is no reason to move.
    group = group_of([1, 1], [[1.0, 0.3], [-2.0]])
    given = credit(group, Config(variant=variant, reshape_lambda=1.0))
    assert not given.has_signal
