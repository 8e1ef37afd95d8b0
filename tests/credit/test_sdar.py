"""SDAR by hand: the outcome untouched, a weight on every token, a gate that closes on rejection."""

import numpy as np
import pytest

from samples import TASK, group_of, scored, unscored
from turncredit.core.errors import ConfigError
from turncredit.core.needs import needs_of
from turncredit.core.types import Group
from turncredit.credit import grpo, sdar
from turncredit.credit.sdar import Config, credit
from turncredit.loop.terms import fold

GROUP = group_of([1, 0], [[0.5, -0.2], [0.3]], tokens=2)


def test_the_outcome_is_grpos_and_every_token_has_the_coefficient():
    given, plain = credit(GROUP, Config(coefficient=0.03)), grpo.credit(GROUP, grpo.Config())
    for mine_K, theirs_K in zip(given.advantage, plain.advantage, strict=True):
        for mine_N, theirs_N in zip(mine_K, theirs_K, strict=True):
            assert mine_N.tobytes() == theirs_N.tobytes()
    assert given.distill is not None
    assert [[w.tolist() for w in turns] for turns in given.distill] == [
        [[0.03, 0.03], [0.03, 0.03]],
        [[0.03, 0.03]],
    ]


def test_folded_the_pull_is_the_gate_and_never_a_push():
    group = Group(TASK, (scored([[1.0, -1.0, 0.0, 50.0, -50.0]], 1.0),))  # alone: advantage 0
    given, config = credit(group, Config(coefficient=0.5)), Config()
    turn, teacher_N = group.trajectories[0].turns[0], group.trajectories[0].teacher_K[0]
    pull = fold(
        "sdar", given.advantage[0][0], given.distill[0][0], turn.logprob_N, teacher_N,
        sdar.loss_settings(config),
    )  # fmt: skip
    gate = [1 / (1 + np.exp(-5)), 1 / (1 + np.exp(5)), 0.5, 1.0, 0.0]
    assert pull == pytest.approx(0.5 * np.array(gate), abs=1e-12)


def test_a_member_nobody_looked_at_has_no_term():
    looked, alone = scored([[0.4]], 1.0), scored([[0.0]], 0.0, 1)
    blind = type(alone)(
        **{f: getattr(alone, f) for f in alone.__dataclass_fields__ if f != "hint_hash"},
        hint_hash="",
    )
    given = credit(Group(TASK, (looked, blind)), Config())
    assert [w.tolist() for turns in given.distill for w in turns] == [[0.01], [0.0]]


def test_gaps_are_shown_per_turn_and_as_metrics():
    given = credit(GROUP, Config())
    assert given.figures["gap"][0].tolist() == pytest.approx([0.25, -0.1])
    assert given.metrics["gap_abs_mean"] == pytest.approx((0.25 * 2 + 0.1 * 2 + 0.15 * 2) / 6)
    assert given.metrics["gap_mean"] == pytest.approx((0.25 * 2 - 0.1 * 2 + 0.15 * 2) / 6)


def test_without_a_coefficient_it_is_grpo_and_asks_for_no_teacher():
    bare = Group(TASK, tuple(unscored(t) for t in GROUP.trajectories))
    given = credit(bare, Config(coefficient=0.0))
    assert given.distill is None
    with pytest.raises(ConfigError, match="run the teacher"):
        credit(bare, Config())


def test_what_it_needs():
    needs = needs_of(sdar, Config())
    assert (needs.hint, needs.snapshot, needs.term) == ("skillbank", "current", "sdar")
    assert sdar.loss_settings(Config()) == {"sdar_beta": 5.0}


@pytest.mark.parametrize("wrong", [{"coefficient": -0.1}, {"beta": -1.0}, {"std": "sd"}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
