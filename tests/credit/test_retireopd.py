"""RetireOPD as we read it: when the teacher goes, and that it never comes back."""

import json

import pytest

from samples import TASK, group_of, scored
from turncredit.core.errors import ConfigError
from turncredit.core.types import Group
from turncredit.credit import grpo, retireopd
from turncredit.credit.retireopd import Config, credit, retire
from turncredit.loop.terms import fold


def run(config, discrepancies, successes, teacher=0.8):
    """States after each update."""
    states, state = [], {}
    for discrepancy, success in zip(discrepancies, successes, strict=True):
        seen = {"discrepancy": discrepancy, "success": success, "teacher_success": teacher}
        state = retire(state, seen, config)
        states.append(state)
    return states


def test_folded_the_trained_teachers_gap_is_added_to_the_outcome():
    group = Group(TASK, (scored([[2.0, -1.0]], 1.0), scored([[0.0]], 0.0, 1)))
    given, one = credit(group, Config(std="none")), group.trajectories[0]
    got = fold(
        retireopd.NEEDS.term, given.advantage[0][0], given.distill[0][0],
        one.turns[0].logprob_N, one.teacher_K[0], retireopd.loss_settings(Config()),
    )  # fmt: skip
    assert got == pytest.approx([0.5 + 0.2, 0.5 - 0.1])


def test_averages_by_hand():
    states = run(Config(smoothing=0.75), [1.0, 0.2], [0.0, 0.4])
    assert states[0]["discrepancy"] == 1.0
    assert states[1]["discrepancy"] == pytest.approx(0.75 * 1.0 + 0.25 * 0.2)
    assert states[1]["success"] == pytest.approx(0.25 * 0.4)


def test_both_conditions_are_needed():
    config = Config(patience=2, smoothing=0.0, fraction=0.5)
    flat, good, bad = [1.0] * 4, [0.4] * 4, [0.3] * 4
    assert [s["retired"] for s in run(config, flat, good)] == [0, 0, 1, 1]
    assert not any(s["retired"] for s in run(config, flat, bad))  # below half of 0.8
    assert not any(s["retired"] for s in run(config, [1.0, 0.9, 0.8, 0.7], good))  # still shrinking


def test_a_hair_below_the_last_low_is_not_shrinking():
    config = Config(patience=2, smoothing=0.0)
    states = run(config, [1.0, 0.995, 0.9901, 0.9], [1.0] * 4)
    assert [s["stalled"] for s in states] == [0, 1, 2, 2]
    assert [s["retired"] for s in states] == [0, 0, 1, 1]


def test_a_new_low_starts_patience_again():
    config = Config(patience=3, smoothing=0.0)
    states = run(config, [1.0, 1.1, 1.2, 0.5, 0.6, 0.7], [1.0] * 6)
    assert [s["stalled"] for s in states] == [0, 1, 2, 0, 1, 2]


def test_retired_is_for_good_and_asks_for_no_more_numbers():
    state = run(Config(patience=1, smoothing=0.0), [1.0, 1.0], [1.0, 1.0])[-1]
    assert state["retired"] == 1.0
    assert retire(state, {}, Config()) == state


def test_the_state_survives_json():
    config = Config(patience=2, smoothing=0.5)
    whole = run(config, [1.0, 0.9, 0.95, 0.96, 0.97], [0.9] * 5)
    state = json.loads(json.dumps(whole[1]))
    for i, discrepancy in enumerate([0.95, 0.96, 0.97]):
        seen = {"discrepancy": discrepancy, "success": 0.9, "teacher_success": 0.8}
        state = retire(state, seen, config)
        assert state == whole[2 + i]


def test_without_a_coefficient_it_is_grpo():
    group = group_of([1, 0, 0], [[0.5, 0.1], [0.3], []])
    given, plain = credit(group, Config(coefficient=0.0)), grpo.credit(group, grpo.Config())
    assert given.distill is None
    assert all(
        a.tobytes() == b.tobytes()
        for mine, theirs in zip(given.advantage, plain.advantage, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"coefficient": -1.0}, {"gap_clip": -1.0}, {"fraction": -0.1}, {"patience": 0},
        {"smoothing": 1.0},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
