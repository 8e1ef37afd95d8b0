"""Task order, the numbers of an update, and what a person is told about them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import make_task
from turncredit.core.errors import ConfigError
from turncredit.core.types import Credit, Group, StopReason, Task, Trajectory, Turn
from turncredit.loop.metrics import credit_metrics, rollout_metrics
from turncredit.loop.order import TaskOrder
from turncredit.loop.remarks import remarks


def tasks(count: int) -> list[Task]:
    return [
        Task(id=str(i), env="toy", split="train", task_type="red", digest=str(i))
        for i in range(count)
    ]


@given(count=st.integers(1, 40), per_step=st.integers(1, 8), seed=st.integers(0, 5))
def test_an_epoch_has_no_task_twice_and_a_step_is_a_function_of_the_seed(
    count: int, per_step: int, seed: int
) -> None:
    if per_step > count:
        with pytest.raises(ConfigError, match="tasks_per_update"):
            TaskOrder(tasks(count), seed=seed, per_step=per_step)
        return
    order = TaskOrder(tasks(count), seed=seed, per_step=per_step)
    steps = count // per_step
    epoch = [task.id for step in range(steps) for task in order.take(step)]
    assert len(set(epoch)) == len(epoch) == steps * per_step
    fresh = TaskOrder(tasks(count), seed=seed, per_step=per_step)
    assert [t.id for t in fresh.take(steps + 1)] == [t.id for t in order.take(steps + 1)]


def trajectory(task: Task, member: int, stop: StopReason, actions: list[str | None]) -> Trajectory:
    turns = tuple(
        Turn(start=2 + 3 * k, logprob_N=[-1.0, -1.0], action=action, admissible=action == "go")  # type: ignore[arg-type]
        for k, action in enumerate(actions)
    )
    return Trajectory(
        task=task,
        member=member,
        seed=0,
        snapshot_id="s",
        tokens=list(range(2 + 3 * len(actions))),  # type: ignore[arg-type]
        prompt_length=2,
        turns=turns,
        reward=float(stop is StopReason.SUCCESS),
        stop=stop,
        error="broke" if stop is StopReason.ENV_ERROR else "",
    )


def test_numbers_of_an_update_by_hand() -> None:
    task = make_task()
    group = Group(
        task,
        (
            trajectory(task, 0, StopReason.SUCCESS, ["go", "go"]),
            trajectory(task, 1, StopReason.MAX_TURNS, ["go", None, "fly", "fly"]),
        ),
        (trajectory(task, 2, StopReason.ENV_ERROR, ["go"]),),
    )
    row = rollout_metrics([group])
    assert row["reward/mean"] == row["reward/success_rate"] == 0.5
    assert (row["reward/mixed_groups"], row["reward/groups"]) == (1, 1)
    assert (row["trajectory/count"], row["trajectory/env_errors"]) == (2, 1)
    assert row["trajectory/turns_mean"] == 3
    assert row["trajectory/invalid_format_mean"] == 0.5
    assert row["trajectory/inadmissible_mean"] == 1
    assert row["trajectory/truncated_rate"] == row["trajectory/stop/max_turns"] == 0.5
    assert row["tokens/action"] == 12
    assert row["tokens/context"] == (8 + 14) - 12


def test_only_groups_with_a_signal_speak_for_the_method() -> None:
    quiet = Credit((), metrics={"weight_min": 0.1, "evidence_abs_mean": 9.0})
    loud = [
        Credit(((value,),), metrics={"weight_min": low, "evidence_abs_mean": mean})  # type: ignore[arg-type]
        for value, low, mean in (([1.0], 0.8, 1.0), ([-3.0], 0.9, 2.0))
    ]
    row = credit_metrics([quiet, *loud])
    assert row["advantage/groups_with_signal"] == 2
    assert row["advantage/degenerate_groups"] == 1
    assert row["advantage/abs_mean"] == 2
    assert row["opsd/weight_min"] == 0.8
    assert row["opsd/evidence_abs_mean"] == 1.5


def test_noise_near_the_evidence_is_said() -> None:
    row = {"train/skipped": 0.0, "reward/groups": 4.0, "trajectory/env_errors": 0.0}
    assert not list(remarks({**row, "opsd/evidence_noise": 0.1, "opsd/evidence_abs_mean": 1.0}))
    (said,) = remarks({**row, "opsd/evidence_noise": 0.6, "opsd/evidence_abs_mean": 1.0})
    assert "--student-logprobs rescored" in said
    (said,) = remarks({**row, "train/skipped": 1.0})
    assert "0 of 4 groups" in said
