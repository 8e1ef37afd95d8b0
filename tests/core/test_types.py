"""Wrong states cannot be built."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from fakes import make_task
from turncredit.core.datum import Datum
from turncredit.core.errors import AlignmentError
from turncredit.core.types import (
    Credit,
    Group,
    Observation,
    ScoredTrajectory,
    Step,
    StopReason,
    Trajectory,
    Turn,
    Usage,
)


def turn(start: int, n: int = 2) -> Turn:
    return Turn(start=start, logprob_N=np.full(n, -1.0))


def trajectory(**changes: object) -> Trajectory:
    values: dict[str, object] = {
        "task": make_task(), "member": 3, "seed": 1, "snapshot_id": "s", "tokens": range(10),
        "prompt_length": 2, "turns": (turn(2), turn(6)), "reward": 1.0, "stop": StopReason.SUCCESS,
    }  # fmt: skip
    return Trajectory(**values | changes)  # type: ignore[arg-type]


def scored(teacher_K: tuple[object, ...]) -> ScoredTrajectory:
    t = trajectory()
    values = {name: getattr(t, name) for name in Trajectory.__dataclass_fields__}
    return ScoredTrajectory(
        **values, teacher_K=teacher_K, hint_hash="h", teacher_snapshot_id="s"  # type: ignore[arg-type]
    )  # fmt: skip


def test_done_is_not_success() -> None:
    assert not Step(observation=Observation("over"), done=True).success
    with pytest.raises(ValueError, match="must also be done"):
        Step(observation=Observation(""), success=True)
    assert not trajectory(stop=StopReason.FAILED, reward=1.0).success


def test_stop_reasons_are_distinct_and_say_what_a_budget_ended() -> None:
    assert len({str(reason) for reason in StopReason}) == 6
    assert [reason for reason in StopReason if reason.truncated] == [
        StopReason.MAX_TURNS, StopReason.TRAJECTORY_TOKENS, StopReason.ACTION_TOKENS,
    ]  # fmt: skip


def test_values_are_frozen_and_arrays_are_copies() -> None:
    mine = np.array([-1.0, -2.0])
    one = Turn(start=0, logprob_N=mine)
    mine[0] = 5
    assert one.logprob_N.tolist() == [-1.0, -2.0]
    with pytest.raises(ValueError, match="read-only"):
        one.logprob_N[0] = 0
    with pytest.raises(FrozenInstanceError):
        one.start = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        trajectory().tokens[0] = 0


@pytest.mark.parametrize(
    "changes",
    [
        {"turns": (turn(1),)},  # inside the prompt
        {"turns": (turn(2), turn(3))},  # overlapping
        {"turns": (turn(6), turn(2))},  # out of order
        {"turns": (turn(9),)},  # past the end
        {"prompt_length": 11, "turns": ()},
    ],
)
def test_spans_must_be_disjoint_increasing_and_inside(changes: dict[str, object]) -> None:
    with pytest.raises(AlignmentError, match="game-0#3"):
        trajectory(**changes)


def test_an_env_error_carries_its_text_and_only_it() -> None:
    assert trajectory(stop=StopReason.ENV_ERROR, error="broke").error == "broke"
    for wrong in ({"stop": StopReason.ENV_ERROR}, {"error": "broke"}):
        with pytest.raises(ValueError, match="error text"):
            trajectory(**wrong)


def test_teacher_scores_must_match_turn_by_turn() -> None:
    good = scored(([-0.5, -0.5], [-1.0, -3.0]))
    assert [gap.tolist() for gap in good.gap_K] == [[0.5, 0.5], [0.0, -2.0]]
    with pytest.raises(AlignmentError, match="expected 2, got 1"):
        scored(([-1.0, -1.0],))
    with pytest.raises(
        AlignmentError, match="turn 1 starting at token 6: expected 2 teacher log-probs, got 3"
    ):
        scored(([-1.0, -1.0], [-1.0, -1.0, -1.0]))
    assert replace(good, reward=0.0).teacher_K[0].tolist() == [-0.5, -0.5]


def test_a_group_is_one_task_one_snapshot_and_keeps_faults_apart() -> None:
    good, fault = trajectory(), trajectory(stop=StopReason.ENV_ERROR, error="e", reward=0.0)
    group = Group(make_task(), (good, good), (fault,))
    assert group.reward_G.tolist() == group.success_G.tolist() == [1.0, 1.0]
    with pytest.raises(AlignmentError, match="game-1"):
        Group(make_task(1), (good,))
    with pytest.raises(AlignmentError, match="one sampling snapshot"):
        Group(make_task(), (good, trajectory(snapshot_id="other")))
    for members in (((fault,), ()), ((), (good,))):
        with pytest.raises(ValueError, match="belong in faults"):
            Group(make_task(), *members)


def test_credit_knows_whether_it_has_a_signal() -> None:
    assert not Credit(advantage=((np.zeros(3),), ())).has_signal
    assert Credit(advantage=((np.array([0.0, 1e-9]),),)).has_signal
    distill = ((np.ones(1),),)
    assert Credit(advantage=((np.zeros(1),),), distill=distill).has_signal


def test_a_datum_is_rectangular_and_trains_something() -> None:
    values: dict[str, object] = {
        "tokens": [1, 2, 3], "logprobs": [0, -1, -1], "advantages": [0, 1, 1],
        "mask": [False, True, True],
    }  # fmt: skip
    assert Datum(**values).mask.tolist() == [False, True, True]  # type: ignore[arg-type]
    for wrong, what in (
        ({"logprobs": [0, -1]}, "logprobs: expected 3, got 2"),
        ({"distill": [1.0]}, "distill: expected 3, got 1"),
        ({"mask": [False] * 3}, "at least one action token"),
        ({"mask": [True] * 3}, "first token with context"),
    ):
        with pytest.raises(AlignmentError, match=what):
            Datum(**values | wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not finite"):
        Datum(**values | {"logprobs": [0, -1, np.nan]})  # type: ignore[arg-type]


def test_usage_adds_and_unknown_stays_unknown() -> None:
    total = Usage(prefill=5, cached=2, requests=1) + Usage(prefill=1, sampled=3, requests=1)
    assert total == Usage(prefill=6, cached=2, sampled=3, requests=2)
    assert (total + Usage(cached=None)).cached is None
