"""GRPO + OPSD: SDAR's term with its gate held at one half."""

import pytest

from samples import TASK, scored
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import grpo_opsd
from turncredit.credit.grpo_opsd import Config, credit
from turncredit.loop.terms import fold


def test_every_token_is_pulled_up_by_half_the_coefficient_whatever_the_teacher_says():
    group = Group(TASK, (scored([[1.0, -1.0, 50.0, -50.0]], 1.0),))  # alone: advantage 0
    given = credit(group, Config())
    one = group.trajectories[0]
    pull = fold(
        "sdar", given.advantage[0][0], given.distill[0][0], one.turns[0].logprob_N,
        one.teacher_K[0], grpo_opsd.loss_settings(Config()),
    )  # fmt: skip
    assert pull == pytest.approx([0.005] * 4)


def test_a_negative_coefficient_is_refused():
    with pytest.raises(ConfigError, match="coefficient"):
        Config(coefficient=-1.0)
