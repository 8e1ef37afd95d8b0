"""Skill-SD: at the weights that sampled, its pull is the coefficient times the gap."""

import pytest

from samples import TASK, group_of, scored
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import skillsd
from turncredit.credit.skillsd import Config, credit
from turncredit.loop.terms import fold


def test_tokens_the_teacher_rejects_are_pushed_down():
    group = Group(TASK, (scored([[1.0, -2.0, 0.0]], 1.0),))  # alone: advantage 0
    given, one = credit(group, Config()), group.trajectories[0]
    pull = fold(
        skillsd.NEEDS.term, given.advantage[0][0], given.distill[0][0], one.turns[0].logprob_N,
        one.teacher_K[0],
    )  # fmt: skip
    assert pull == pytest.approx([0.001, -0.002, 0.0])


def test_the_outcome_is_untouched():
    given = credit(group_of([1, 0], [[0.5], [0.3]]), Config(std="none"))
    assert [a.tolist() for turns in given.advantage for a in turns] == [[0.5], [-0.5]]


def test_a_negative_coefficient_is_refused():
    with pytest.raises(ConfigError, match="coefficient"):
        Config(coefficient=-1.0)
