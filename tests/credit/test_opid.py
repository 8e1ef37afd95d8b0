"""OPID by hand: two streams added to the outcome, per token."""

from dataclasses import replace

import numpy as np
import pytest

from samples import TASK, scored, unscored
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import grpo
from turncredit.credit.opid import Config, credit, moments


def member(reward, index, episode, step):
    """A trajectory with two turns of two tokens, and the gaps of both streams (None: no look)."""
    base = scored([[0.0, 0.0], [0.0, 0.0]], reward, index)
    streams = {
        name: tuple(np.array(gaps, float) - 1.0 for gaps in gap_K)
        for name, gap_K in (("episode", episode), ("step", step))
        if gap_K is not None
    }
    return replace(base, streams=streams)


NONE = [0.0, 0.0]
GROUP = Group(
    TASK,
    (
        member(1.0, 0, [NONE, [1.0, -3.0]], [[2.0, 0.5], NONE]),
        member(0.0, 1, [[-1.0, 0.0], [4.0, 0.0]], None),
    ),
)


def flat(given):
    return np.array([value for turns in given.advantage for values in turns for value in values])


def test_each_stream_has_its_weight():
    config = Config(std="none", episode_weight=0.1, step_weight=0.01)
    expected = [0.5 + 0.02, 0.5 + 0.005, 0.5 + 0.1, 0.5 - 0.3, -0.5 - 0.1, -0.5, -0.5 + 0.4, -0.5]
    assert flat(credit(GROUP, config)) == pytest.approx(expected)
    halved = flat(credit(GROUP, replace(config, weight=0.5)))
    assert halved - flat(grpo.credit(GROUP, config)) == pytest.approx(
        (np.array(expected) - flat(grpo.credit(GROUP, config))) / 2
    )


def test_a_gap_of_minus_fifty_costs_a_twentieth_and_may_turn_the_sign():
    group = Group(TASK, (member(1.0, 0, [[-50.0, 0.0], NONE], None), member(1.0, 1, None, None)))
    assert flat(credit(group, Config())).tolist() == pytest.approx([-0.05, *[0.0] * 7])


def test_standardised_over_the_tokens_a_stream_covers_and_then_clipped():
    config = Config(std="none", episode_weight=1.0, step_weight=0.0, gap_scale="standard")
    covered = np.array([1.0, -3.0, -1.0, 0.0, 4.0, 0.0])  # the first turn has no episode look
    expected = (covered - covered.mean()) / (covered.std() + 1e-6)
    added = flat(credit(GROUP, config)) - flat(grpo.credit(GROUP, config))
    assert added == pytest.approx(np.concatenate([NONE, expected]))
    clipped = flat(credit(GROUP, replace(config, gap_clip=0.5))) - flat(grpo.credit(GROUP, config))
    assert clipped == pytest.approx(np.concatenate([NONE, np.clip(expected, -0.5, 0.5)]))


def test_equal_gaps_are_centred_but_not_blown_up():
    assert moments(np.array([2.0, 2.0])) == (2.0, 1.0)
    assert moments(np.zeros(0)) == (0.0, 1.0)


def test_only_failures_are_corrected_when_so_asked():
    config = Config(std="none", members="failed")
    added = flat(credit(GROUP, config)) - flat(grpo.credit(GROUP, config))
    assert added == pytest.approx([0, 0, 0, 0, -0.001, 0, 0.004, 0])


def test_without_weight_it_is_grpo_to_the_last_bit():
    for config in (Config(weight=0.0), Config(episode_weight=0.0, step_weight=0.0)):
        assert flat(credit(GROUP, config)).tobytes() == flat(grpo.credit(GROUP, config)).tobytes()
    bare = Group(TASK, tuple(unscored(t) for t in GROUP.trajectories))
    assert credit(bare, Config(weight=0.0)).has_signal
    with pytest.raises(ConfigError, match="run the teacher"):
        credit(bare, Config())


def test_how_much_each_stream_covers_is_measured():
    metrics = credit(GROUP, Config()).metrics
    assert metrics["step_moved"] == pytest.approx(2 / 8)
    assert metrics["episode_gap_abs_mean"] == pytest.approx((1 + 3 + 1 + 4) / 8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": -1.0}, {"episode_weight": -1.0}, {"step_weight": -1.0}, {"gap_clip": -1.0},
        {"gap_scale": "log"}, {"members": "won"},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
