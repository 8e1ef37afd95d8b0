"""StepOPSD (our reading) by hand."""

import numpy as np
import pytest

from samples import TASK, scored
from turncredit.core.errors import ConfigError
from turncredit.core.needs import needs_of
from turncredit.core.types import Group
from turncredit.credit import stepopsd
from turncredit.credit.stepopsd import Config, changes, credit

EXACT = Config(epsilon=1e-12)
LN = np.log  # 2 sigmoid(ln((1 + u) / (1 - u))) - 1 = u


def gap(*change):
    """Gaps whose raw change is this."""
    u = np.array(change, float)
    return LN((1 + u) / (1 - u))


def test_steps_end_with_the_same_mean_change():
    # Means 0.04 and 0.08: the budget is 0.06 for both steps.
    got = changes([gap(0.02, 0.06), gap(-0.08)], 1.0, EXACT)
    assert got[0] == pytest.approx([0.03, 0.09])
    assert got[1] == pytest.approx([-0.06])


def test_clip_comes_before_the_budget_and_again_after_it():
    # Raw 0.9 is cut to 0.2 first; means .1 and .02, budget .06. Step 1: (0.2, 0) -> (0.12, 0).
    got = changes([gap(0.9, 0.0), gap(0.02)], 1.0, EXACT)
    assert got[0] == pytest.approx([0.12, 0.0])
    assert got[1] == pytest.approx([0.06])
    # Means .2 and .05, budget .125: scaled to (.25, 0), which the second clip cuts to .2.
    got = changes([gap(0.5, 0.5), gap(0.1, 0.0)], 1.0, EXACT)
    assert got[0] == pytest.approx([0.125, 0.125])
    assert got[1] == pytest.approx([0.2, 0.0])


def test_a_failure_turns_the_gap_round():
    assert changes([gap(0.1)], -1.0, EXACT)[0] == pytest.approx([-0.1])
    assert changes([gap(0.1)], 0.0, EXACT)[0] == pytest.approx([0.0])


def test_steps_without_tokens_have_no_part_in_the_budget():
    with_gap, empty, other = changes([gap(0.02), np.zeros(0), gap(0.06)], 1.0, EXACT)
    assert with_gap == pytest.approx([0.04])
    assert other == pytest.approx([0.04])
    assert len(empty) == 0
    assert changes([], 1.0, EXACT) == []


def test_a_fifth_of_the_change_reaches_the_advantage():
    up = 1 / (1 + 2e-4)
    gaps = [gap(0.1).tolist()]
    given = credit(Group(TASK, (scored(gaps, 1.0, 0), scored(gaps, 0.0, 1))), Config())
    change = 0.1 * 0.1 / (0.1 + 1e-4)  # the only step is its own budget, but for epsilon
    assert given.advantage[0][0] == pytest.approx([up * (1 + 0.2 * change)])
    assert given.advantage[1][0] == pytest.approx([-up * (1 - 0.2 * change)])


def test_it_is_scored_by_a_stale_snapshot_that_reads_hindsight():
    needs = needs_of(stepopsd)
    assert (needs.snapshot, needs.hint, needs.decay_steps) == ("stale", "hindsight", 50)


@pytest.mark.parametrize("wrong", [{"mix": 1.5}, {"weight_bound": 1.0}, {"std": "sd"}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
