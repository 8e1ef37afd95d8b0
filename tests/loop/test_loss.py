"""PPO by hand and by finite differences."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from turncredit.core.errors import ConfigError
from turncredit.loop.loss import Aggregation, PPOConfig, ppo, token_weight

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
