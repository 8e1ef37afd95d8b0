"""Policy losses by hand and by finite differences."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from turncredit.core.errors import ConfigError
from turncredit.core.losses import POLICY_LOSSES
from turncredit.core.needs import Aggregation
from turncredit.loop.loss import POLICIES, PPOConfig, ppo, token_weight

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


# ── the other policy losses, one row at a time ───────────────────────────────────────────────

WIDE = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.24}


def row_of(name, log_ratio, advantage, **settings):
    old = np.full(len(log_ratio), -2.0)
    chosen = {**POLICY_LOSSES[name], **settings}
    return POLICIES[name](old + log_ratio, old, np.asarray(advantage, float), chosen)


def test_importance_sampling_never_clips():
    got = row_of("importance_sampling", np.log([5.0, 0.1]), [1.0, -2.0])
    assert got.value == pytest.approx([-5.0, 0.2])
    assert got.slope == pytest.approx([-5.0, 0.2])
    assert not got.clipped.any()


def test_cispo_clips_the_weight_and_keeps_every_gradient():
    got = row_of("cispo", np.log([0.5, 1.5, 1.1]), [1.0, 1.0, -2.0], **WIDE)
    assert got.slope == pytest.approx([-0.8, -1.24, 2.2])
    assert got.value == pytest.approx(got.slope * (np.log([0.5, 1.5, 1.1]) - 2.0))
    assert got.clipped.tolist() == [True, True, False]


def test_cispo_has_no_lower_bound_unless_asked():
    assert row_of("cispo", np.log([1e-3, 9.0]), [1.0, 1.0]).slope == pytest.approx([-1e-3, -5.0])


def test_gspo_has_one_ratio_for_the_row():
    got = row_of("gspo", np.array([0.2, -0.1]), [1.0, 1.0], **WIDE)
    assert got.value == pytest.approx([-np.exp(0.05)] * 2)
    assert got.slope == pytest.approx([-np.exp(0.05)] * 2)  # either token is half of the mean


@pytest.mark.parametrize(("advantage", "value", "slope"), [(2, -2.0008, 0), (-2, 2.1025, 2.1025)])
def test_gspo_clips_the_whole_row_at_once(advantage, value, slope):
    got = row_of("gspo", np.array([0.2, -0.1]), [advantage] * 2)
    assert got.value == pytest.approx([value] * 2, abs=1e-4)
    assert got.slope == pytest.approx([slope] * 2, abs=1e-4)


@given(
    name=st.sampled_from(["importance_sampling", "gspo", "ppo", "cross_entropy"]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=40, deadline=None)
def test_gradients_of_rows_by_finite_differences(name, seed):
    """Advantages that differ within the row too: each token moves the ratio of a GSPO row."""
    rng = np.random.default_rng(seed)
    old, new, advantage = rng.normal(-1, 0.3, (3, 4))
    chosen = {**POLICY_LOSSES[name], **(WIDE if name == "gspo" else {})}
    ratio = np.exp(np.array([*(new - old), (new - old).mean()]))
    assume(np.abs(ratio[:, None] - [0.8, 1.24]).min() > 1e-4)
    got = POLICIES[name](new, old, advantage, chosen)
    for t in range(4):
        up, down = new + 1e-6 * (np.arange(4) == t), new - 1e-6 * (np.arange(4) == t)
        above, below = (POLICIES[name](x, old, advantage, chosen).value.sum() for x in (up, down))
        assert got.slope[t] == pytest.approx((above - below) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("name", POLICIES)
def test_no_loss_overflows_or_minds_an_empty_row(name):
    with np.errstate(over="raise", invalid="raise"):
        for log_ratio in (50.0, -50.0, 5000.0):
            got = row_of(name, np.full(2, log_ratio), [1.0, -1.0])
            assert np.isfinite(got.value).all()
            assert np.isfinite(got.slope).all()
        empty = row_of(name, np.zeros(0), [])
        assert (len(empty.value), len(empty.slope)) == (0, 0)


@pytest.mark.parametrize("name", ["ppo", "importance_sampling", "cispo", "gspo"])
def test_all_losses_agree_where_nothing_has_moved(name):
    """The slope there is minus the advantage: the fact that lets a term fold into it."""
    got = row_of(name, np.zeros(3), [0.4] * 3)
    assert got.slope == pytest.approx([-0.4] * 3)
