"""SEED as we read it: OPID's shift under one skill, as a term."""

import pytest

from samples import TASK, group_of, scored
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import seed
from turncredit.credit.seed import Config, credit
from turncredit.loop.terms import fold


@pytest.mark.parametrize(("clip", "pulls"), [(0.0, [2.0, -50.0, 0.0]), (1.0, [1.0, -1.0, 0.0])])
def test_folded_it_is_the_outcome_plus_the_weighted_gap(clip, pulls):
    group = Group(TASK, (scored([[2.0, -50.0, 0.0]], 1.0), scored([[0.0]], 0.0, 1)))
    config = Config(std="none", gap_clip=clip)
    given, one = credit(group, config), group.trajectories[0]
    got = fold(
        seed.NEEDS.term, given.advantage[0][0], given.distill[0][0], one.turns[0].logprob_N,
        one.teacher_K[0], seed.loss_settings(config),
    )  # fmt: skip
    assert got == pytest.approx([0.5 + 0.001 * pull for pull in pulls])


def test_equal_outcomes_leave_the_skill_alone_to_speak():
    given = credit(group_of([0, 0], [[0.5], [0.3]]), Config())
    assert not any(values.any() for turns in given.advantage for values in turns)
    assert given.has_signal


@pytest.mark.parametrize("wrong", [{"coefficient": -1.0}, {"gap_clip": -1.0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
