"""PPO by hand and by finite differences; rows that carry exactly the right tokens."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from samples import TASK, group_of, scored
from turncredit.core.errors import AlignmentError, ConfigError
from turncredit.core.types import Credit, Group, StopReason, Trajectory, Turn
from turncredit.credit import grpo
from turncredit.loop.loss import Aggregation, PPOConfig, build_rows, ppo, to_data, token_weight

ONE = np.ones((1, 1), bool)


def single(log_ratio, advantage, **config):
    return ppo(
        np.array([[log_ratio]]), np.zeros((1, 1)), np.array([[advantage]]), ONE, PPOConfig(**config)
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 1.0, -1.24, 0.0),  # clipped above: nothing more to gain
        (0.5, 1.0, -0.5, -0.5),  # a wanted token that became rare: still pulled up
        (0.5, -1.0, 0.8, 0.0),  # clipped below
        (1.5, -1.0, 1.5, 1.5),  # an unwanted token that became likely: pushed down
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_hand_computed_tokens(ratio, advantage, loss, slope):
    got = single(np.log(ratio), advantage)
    assert got.loss == pytest.approx(loss)
    assert got.grad_DT[0, 0] == pytest.approx(slope)


def test_dual_clip_caps_the_loss_of_unwanted_tokens():
    assert single(np.log(5.0), -1.0).loss == pytest.approx(5.0)
    capped = single(np.log(5.0), -1.0, dual_clip=3.0)
    assert (capped.loss, capped.grad_DT[0, 0]) == pytest.approx((3.0, 0.0))
    assert capped.dual_clip_fraction == pytest.approx(1.0)


@given(seed=st.integers(0, 10_000), aggregation=st.sampled_from(get_args(Aggregation)))
@settings(max_examples=40, deadline=None)
def test_gradient_by_finite_differences(seed, aggregation):
    rng = np.random.default_rng(seed)
    old, new, advantage = rng.normal(-1, 0.5, (3, 3, 4))
    mask = rng.random((3, 4)) < 0.6
    config = PPOConfig(dual_clip=3.0, aggregation=aggregation)
    ratio = np.exp(new - old)
    assume(np.min(np.abs(ratio[..., None] - [0.8, 1.24, 3.0])) > 1e-4)  # kinks have no slope
    got = ppo(new, old, advantage, mask, config)
    for place in np.ndindex(new.shape):
        up, down = new.copy(), new.copy()
        up[place] += 1e-6
        down[place] -= 1e-6
        slope = (
            ppo(up, old, advantage, mask, config).loss
            - ppo(down, old, advantage, mask, config).loss
        ) / 2e-6
        assert got.grad_DT[place] == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_tokens_outside_the_mask_change_nothing(aggregation):
    rng = np.random.default_rng(1)
    new, old, advantage = rng.normal(size=(3, 2, 5))
    mask = np.array([[True, False, True, False, False], [False] * 5])
    config = PPOConfig(aggregation=aggregation)
    plain = ppo(new, old, advantage, mask, config)
    for junk in (1e3, np.nan, np.inf):
        other = ppo(*(np.where(mask, x, junk) for x in (new, old, advantage)), mask, config)
        assert other.loss == plain.loss
        assert np.array_equal(other.grad_DT, plain.grad_DT)


def test_empty_rows_and_batches_are_zero_not_nan():
    for aggregation in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        mask = np.array([[False, False], [True, True]])
        weight = token_weight(mask, aggregation)
        assert np.isfinite(weight).all()
        assert not weight[0].any()
    nothing = ppo(*np.ones((3, 1, 2)), np.zeros((1, 2), bool))
    assert (nothing.loss, nothing.clip_fraction, nothing.approx_kl) == (0, 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [{"clip_low": 1.2}, {"clip_high": 0.24}, {"dual_clip": 0.5}, {"aggregation": "token-meen"}],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        PPOConfig(**wrong)


# ── rows ─────────────────────────────────────────────────────────────────────────────────────


def spans(*bounds: tuple[int, int], length: int, reward: float, member: int) -> Trajectory:
    turns = tuple(Turn(start=a, logprob_N=np.full(b - a + 1, -0.5)) for a, b in bounds)
    stop = StopReason.SUCCESS if reward else StopReason.FAILED
    return Trajectory(
        task=TASK, member=member, seed=0, snapshot_id="s", tokens=np.arange(length),
        prompt_length=5, turns=turns, reward=reward, stop=stop,
    )  # fmt: skip


def test_credit_lands_on_exactly_the_action_tokens():
    # Spans 5-7, 20-29 and 41-41 of one trajectory: 3 + 10 + 1 tokens carry +1, all others 0.
    trajectory = spans((5, 7), (20, 29), (41, 41), length=45, reward=1.0, member=0)
    ones = tuple(np.ones(len(turn.logprob_N)) for turn in trajectory.turns)
    (row,) = to_data([Group(TASK, (trajectory,))], [Credit((ones,))])
    wanted = [*range(5, 8), *range(20, 30), 41]
    assert np.flatnonzero(row.mask).tolist() == wanted
    assert np.flatnonzero(row.advantages).tolist() == wanted
    assert row.advantages[wanted] == pytest.approx(1 / 14)
    assert row.advantages.sum() == pytest.approx(1.0)


def test_summing_the_rows_is_the_token_mean():
    group = group_of([1, 0, 0], [[0.1, 0.2], [0.3], [0.1] * 4], tokens=2)
    credit = grpo.credit(group, grpo.Config())
    rows = build_rows([group], [credit])
    width = max(len(row.tokens) for row in rows.data)
    old, advantage, mask = (
        np.stack([np.pad(getattr(r, name), (0, width - len(r.tokens))) for r in rows.data])
        for name in ("logprobs", "advantages", "mask")
    )
    new = old + np.random.default_rng(0).normal(0, 0.3, old.shape)
    tokens = mask.sum()
    reference = ppo(new, old, advantage * tokens, mask)
    summed = ppo(new, old, advantage, mask, PPOConfig(aggregation="seq-mean-token-sum"))
    assert summed.loss * len(rows.data) == pytest.approx(reference.loss)
    assert summed.grad_DT * len(rows.data) == pytest.approx(reference.grad_DT)


def test_what_is_left_out_is_counted_with_a_reason():
    mixed = Group(TASK, (scored([[0.1]], 1.0), scored([], 0.0, 1), scored([[]], 0.0, 2)))
    even = group_of([1, 1], [[0.1], [0.2]])
    rows = build_rows([mixed, even], [grpo.credit(g, grpo.Config()) for g in (mixed, even)])
    assert rows.counts == {
        "groups": 2, "groups_skipped": 1, "rows": 1, "rows_zero": 2, "rows_empty": 2,
        "rows_nonfinite": 0, "action_tokens": 1,
    }  # fmt: skip
    assert rows.reasons == (
        "t#1: no action tokens", "t#2: no action tokens", "t#0: zero advantage",
        "t#1: zero advantage",
    )  # fmt: skip


def test_all_equal_rewards_leave_no_rows_at_all():
    group = group_of([0, 0, 0], [[0.4], [-0.4], [0.2]])
    assert to_data([group], [grpo.credit(group, grpo.Config())]) == []


def test_a_non_finite_log_prob_drops_its_trajectory_only():
    group = group_of([1, 0], [[0.1], [0.2]])
    bad = spans((5, 6), length=9, reward=0.0, member=1)
    broken = Turn(start=5, logprob_N=np.array([-1.0, -np.inf]))
    bad = Trajectory(**{n: getattr(bad, n) for n in (
        "task", "member", "seed", "snapshot_id", "tokens", "prompt_length", "reward", "stop")},
        turns=(broken,))  # fmt: skip
    group = Group(TASK, (group.trajectories[0], bad))
    rows = build_rows([group], [grpo.credit(group, grpo.Config())])
    assert (rows.counts["rows"], rows.counts["rows_nonfinite"]) == (1, 1)
    assert "not finite" in rows.reasons[0]


def test_a_credit_of_another_group_is_refused():
    group, other = group_of([1, 0], [[0.1], [0.2]]), group_of([1, 0], [[0.1] * 2, [0.2] * 2])
    with pytest.raises(AlignmentError):
        build_rows([group], [grpo.credit(other, grpo.Config())])
