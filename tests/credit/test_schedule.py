"""Schedules by hand."""

from dataclasses import dataclass

import pytest

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs
from turncredit.credit import agentopsd, rlsd
from turncredit.credit.schedule import factor, with_mix


def test_constant_by_default():
    assert [factor(step) for step in (1, 50, 10_000)] == [1.0] * 3


def test_linear_decay_counts_updates_from_one():
    # RLSD over 100: the first update has lost one part in a hundred, the hundredth has none left.
    got = [factor(step, decay_steps=100) for step in (1, 25, 50, 99, 100, 101, 500)]
    assert got == pytest.approx([0.99, 0.75, 0.5, 0.01, 0, 0, 0], abs=1e-15)
    assert factor(0, decay_steps=100) == 1.0


def test_nothing_before_start_and_after_stop():
    got = [factor(step, start=3, stop=5) for step in range(1, 8)]
    assert got == [0, 0, 1, 1, 1, 0, 0]


def test_decay_begins_where_the_share_does():
    got = [factor(step, decay_steps=4, start=11) for step in (10, 11, 12, 13, 14, 15)]
    assert got == [0, 0.75, 0.5, 0.25, 0, 0]
    assert factor(1, decay_steps=4, start=1) == factor(1, decay_steps=4) == 0.75


def test_the_mix_alone_is_scaled():
    config = rlsd.Config(mix=0.5, weight_bound=0.1, std="sample")
    assert with_mix(config, rlsd.NEEDS, 0.25) == rlsd.Config(
        mix=0.125, weight_bound=0.1, std="sample"
    )
    assert with_mix(config, rlsd.NEEDS, 1.0) is config
    assert with_mix(agentopsd.Config(), agentopsd.NEEDS, 0.0).reshape_lambda == 0.0


def test_a_method_without_a_mix_cannot_be_faded():
    @dataclass(frozen=True)
    class Config:
        beta: float = 1.0

    assert with_mix(Config(), Needs(), 1.0) == Config()
    with pytest.raises(ConfigError, match="no mix"):
        with_mix(Config(), Needs(), 0.5)
