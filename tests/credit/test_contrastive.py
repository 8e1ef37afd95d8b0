"""The contrast of a right hint with wrong ones (our reading) by hand."""

from dataclasses import replace

import numpy as np
import pytest

from samples import TASK, scored
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import rlsd
from turncredit.credit.contrastive import Config, contrast, credit, log_mean_exp

LN = np.log


def judged(right_K, wrong_JK, reward=1.0, member=0):
    """Gaps under the right hint, and under each wrong one; the student's log-probs are -1."""
    streams = {
        f"wrong{j}": tuple(np.array(gap_N) - 1.0 for gap_N in gap_K)
        for j, gap_K in enumerate(wrong_JK)
    }
    return replace(scored(right_K, reward, member), streams=streams)


def test_what_all_hints_share_cancels():
    same = judged([[0.7, -0.3], [0.2]], [[[0.7, -0.3], [0.2]]] * 2)
    assert np.concatenate(contrast(same)) == pytest.approx([0.0, 0.0, 0.0])


def test_wrong_hints_are_averaged_as_probabilities():
    # Wrong gaps ln 1 and ln 3: their mean is 2, so the contrast is ln 3 - ln 2.
    told = judged([[LN(3)]], [[[LN(1)]], [[LN(3)]]])
    assert contrast(told)[0] == pytest.approx([LN(1.5)])
    assert log_mean_exp(np.array([[700.0, -1e4], [700.0, -1e4]])).tolist() == [700.0, -1e4]


def test_hand_computed_credit():
    won = judged([[LN(1.1)], [2.0]], [[[0.0], [0.0]]])
    lost = judged([[LN(1.1)], [2.0]], [[[0.0], [2.0]]], reward=0.0, member=1)
    up = 1 / (1 + 2e-4)
    given = credit(Group(TASK, (won, lost)), Config())
    assert np.concatenate(given.advantage[0]) == pytest.approx([up * 1.05, up * 1.1])
    assert np.concatenate(given.advantage[1]) == pytest.approx([-up * (0.5 + 0.5 / 1.1), -up])
    assert given.figures["evidence"][1] == pytest.approx([LN(1.1), 0.0])


def test_only_streams_named_wrong_are_wrong_hints():
    told = judged([[0.4]], [[[0.1]]])
    noisy = replace(told, streams={**told.streams, "wrongly": told.teacher_K, "reference":
                                   (np.zeros(1),)})  # fmt: skip
    assert contrast(noisy)[0].tolist() == contrast(told)[0].tolist()


def test_without_wrong_hints_it_is_the_plain_gap():
    group = Group(TASK, (judged([[0.1], []], []), judged([[-0.1]], [], 0.0, 1)))
    mine, theirs = credit(group, Config()), rlsd.credit(group, rlsd.Config())
    for a_K, b_K in zip(mine.advantage, theirs.advantage, strict=True):
        assert [a.tolist() for a in a_K] == [b.tolist() for b in b_K]


@pytest.mark.parametrize("wrong", [{"mix": 1.5}, {"weight_bound": 1.0}, {"epsilon": 0.0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
