"""Rows that carry exactly the right tokens."""

import numpy as np
import pytest

from samples import TASK, group_of, scored
from turncredit.core.errors import AlignmentError
from turncredit.core.types import Credit, Group, StopReason, Trajectory, Turn
from turncredit.credit import grpo
from turncredit.loop.data import build_rows, to_data
from turncredit.loop.loss import PPOConfig, ppo


def spans(*bounds: tuple[int, int], length: int, reward: float, member: int) -> Trajectory:
    turns = tuple(Turn(start=a, logprob_N=np.full(b - a + 1, -0.5)) for a, b in bounds)
    stop = StopReason.SUCCESS if reward else StopReason.FAILED
    return Trajectory(
        task=TASK, member=member, seed=0, snapshot_id="s", tokens=np.arange(length),
        prompt_length=5, turns=turns, reward=reward, stop=stop,
    )  # fmt: skip


def test_credit_lands_on_exactly_the_action_tokens():
    # Spans 5-7, 20-29 and 41-41 of one trajectory: 3 + 10 + 1 tokens carry +1, all others 0.
    trajectory = spans((5, 7), (20, 29), (41, 41), length=45, reward=1.0, member=0)
    ones = tuple(np.ones(len(turn.logprob_N)) for turn in trajectory.turns)
    (row,) = to_data([Group(TASK, (trajectory,))], [Credit((ones,))])
    wanted = [*range(5, 8), *range(20, 30), 41]
    assert np.flatnonzero(row.mask).tolist() == wanted
    assert np.flatnonzero(row.advantages).tolist() == wanted
    assert row.advantages[wanted] == pytest.approx(1 / 14)
    assert row.advantages.sum() == pytest.approx(1.0)


def test_summing_the_rows_is_the_token_mean():
    group = group_of([1, 0, 0], [[0.1, 0.2], [0.3], [0.1] * 4], tokens=2)
    credit = grpo.credit(group, grpo.Config())
    rows = build_rows([group], [credit])
    width = max(len(row.tokens) for row in rows.data)
    old, advantage, mask = (
        np.stack([np.pad(getattr(r, name), (0, width - len(r.tokens))) for r in rows.data])
        for name in ("logprobs", "advantages", "mask")
    )
    new = old + np.random.default_rng(0).normal(0, 0.3, old.shape)
    tokens = mask.sum()
    reference = ppo(new, old, advantage * tokens, mask)
    summed = ppo(new, old, advantage, mask, PPOConfig(aggregation="seq-mean-token-sum"))
    assert summed.loss * len(rows.data) == pytest.approx(reference.loss)
    assert summed.grad_DT * len(rows.data) == pytest.approx(reference.grad_DT)


def test_what_is_left_out_is_counted_with_a_reason():
    mixed = Group(TASK, (scored([[0.1]], 1.0), scored([], 0.0, 1), scored([[]], 0.0, 2)))
    even = group_of([1, 1], [[0.1], [0.2]])
    rows = build_rows([mixed, even], [grpo.credit(g, grpo.Config()) for g in (mixed, even)])
    assert rows.counts == {
        "groups": 2, "groups_skipped": 1, "rows": 1, "rows_zero": 2, "rows_empty": 2,
        "rows_nonfinite": 0, "action_tokens": 1,
    }  # fmt: skip
    assert rows.reasons == (
        "t#1: no action tokens", "t#2: no action tokens", "t#0: zero advantage",
        "t#1: zero advantage",
    )  # fmt: skip


def test_all_equal_rewards_leave_no_rows_at_all():
    group = group_of([0, 0, 0], [[0.4], [-0.4], [0.2]])
    assert to_data([group], [grpo.credit(group, grpo.Config())]) == []


def test_a_non_finite_log_prob_drops_its_trajectory_only():
    group = group_of([1, 0], [[0.1], [0.2]])
    bad = spans((5, 6), length=9, reward=0.0, member=1)
    broken = Turn(start=5, logprob_N=np.array([-1.0, -np.inf]))
    bad = Trajectory(**{n: getattr(bad, n) for n in (
        "task", "member", "seed", "snapshot_id", "tokens", "prompt_length", "reward", "stop")},
        turns=(broken,))  # fmt: skip
    group = Group(TASK, (group.trajectories[0], bad))
    rows = build_rows([group], [grpo.credit(group, grpo.Config())])
    assert (rows.counts["rows"], rows.counts["rows_nonfinite"]) == (1, 1)
    assert "not finite" in rows.reasons[0]


def test_a_credit_of_another_group_is_refused():
    group, other = group_of([1, 0], [[0.1], [0.2]]), group_of([1, 0], [[0.1] * 2, [0.2] * 2])
    with pytest.raises(AlignmentError):
        build_rows([group], [grpo.credit(other, grpo.Config())])
