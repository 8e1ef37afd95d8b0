"""One trajectory with its credit as one line of JSON, and back: nothing is lost on the way.

Only `Task.payload` is left out: it can be large, and the environment gives it back by task id.
Streams, notes and the hash of a student's hint are written where there are any, and read as none
where a row lacks them: rows of older runs do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turncredit.core.errors import AlignmentError
from turncredit.core.types import (
    Array,
    Credit,
    Group,
    Observation,
    ScoredTrajectory,
    StopReason,
    Task,
    Trajectory,
    Turn,
    frozen_array,
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One group of a step as it was written: its trajectories, and its credit if it had any."""

    group: Group
    credit: Credit | None = None


def group_to_rows(index: int, group: Group, credit: Credit | None) -> list[dict[str, Any]]:
    """The rows of one group: a head, then one row a trajectory (members, then faults)."""
    if credit is not None and len(credit.advantage) != len(group.trajectories):
        raise AlignmentError(
            f"credit of group {group.task.id}",
            expected=f"{len(group.trajectories)} trajectories",
            got=len(credit.advantage),
        )
    head: dict[str, Any] = {"kind": "group", "group": index, "task": _task_out(group.task)}
    if credit is not None:
        head["metrics"] = {name: float(value) for name, value in credit.metrics.items()}
    if group.notes:
        head["notes"] = {name: _floats(values_G) for name, values_G in group.notes.items()}
    rows = [head]
    for g, trajectory in enumerate(group.trajectories):
        row = _trajectory_out(trajectory)
        if credit is not None:
            row["credit"] = _credit_out(credit, g)
        rows.append({"kind": "trajectory", "group": index, **row})
    rows += [{"kind": "fault", "group": index, **_trajectory_out(t)} for t in group.faults]
    return rows


def rows_to_groups(rows: Sequence[Mapping[str, Any]]) -> list[Recorded]:
    """Undo `group_to_rows` for all groups of a step."""
    heads = {row["group"]: row for row in rows if row["kind"] == "group"}
    groups: list[Recorded] = []
    for index, head in sorted(heads.items()):
        task = _task_in(head["task"])
        mine = [row for row in rows if row["group"] == index]
        members = [row for row in mine if row["kind"] == "trajectory"]
        group = Group(
            task,
            tuple(_trajectory_in(task, row) for row in members),
            tuple(_trajectory_in(task, row) for row in mine if row["kind"] == "fault"),
            {name: _array(values) for name, values in head.get("notes", {}).items()},
        )
        credit = _credit_in(head, members) if "metrics" in head else None
        groups.append(Recorded(group, credit))
    return groups


def _task_out(task: Task) -> dict[str, str]:
    return {name: getattr(task, name) for name in ("id", "env", "split", "task_type", "digest")}


def _task_in(row: Mapping[str, Any]) -> Task:
    return Task(**row)


def _floats(array: Array) -> list[float]:
    return array.tolist()


def _array(values: Sequence[Any]) -> Array:
    return frozen_array([float(value) for value in values])


_PLAIN = ("member", "seed", "snapshot_id", "prompt_length", "reward", "final_observation", "error")
_TURN = ("start", "observation", "text", "action", "admissible", "reward", "state_key")


def _trajectory_out(trajectory: Trajectory) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(trajectory, name) for name in _PLAIN}
    row |= {"stop": str(trajectory.stop), "logprobs": trajectory.logprobs}
    shown = trajectory.opening
    row["opening"] = {"text": shown.text, "actions": shown.actions, "key": shown.state_key}
    row["tokens"] = trajectory.tokens.tolist()
    row["turns"] = [
        {name: getattr(turn, name) for name in _TURN} | {"logprob": _floats(turn.logprob_N)}
        for turn in trajectory.turns
    ]
    if trajectory.student_hint_hash:
        row["student_hint_hash"] = trajectory.student_hint_hash
    if trajectory.streams:
        row["streams"] = {
            name: [_floats(values_N) for values_N in values_K]
            for name, values_K in trajectory.streams.items()
        }
    if isinstance(trajectory, ScoredTrajectory):
        row["teacher"] = {
            "logprob": [_floats(values_N) for values_N in trajectory.teacher_K],
            "hint_hash": trajectory.hint_hash,
            "snapshot_id": trajectory.teacher_snapshot_id,
        }
    return row


def _trajectory_in(task: Task, row: Mapping[str, Any]) -> Trajectory:
    fields: dict[str, Any] = {name: row[name] for name in _PLAIN}
    fields |= {"task": task, "tokens": row["tokens"], "logprobs": row["logprobs"]}
    fields["reward"] = float(row["reward"])
    shown = row["opening"]
    fields["opening"] = Observation(shown["text"], tuple(shown["actions"]), shown["key"])
    fields["stop"] = StopReason(row["stop"])
    fields["turns"] = tuple(
        Turn(
            **{name: turn[name] for name in _TURN if name != "reward"},
            reward=float(turn["reward"]),
            logprob_N=_array(turn["logprob"]),
        )
        for turn in row["turns"]
    )
    fields["student_hint_hash"] = row.get("student_hint_hash", "")
    fields["streams"] = {
        name: tuple(_array(values) for values in values_K)
        for name, values_K in row.get("streams", {}).items()
    }
    teacher = row.get("teacher")
    if teacher is None:
        return Trajectory(**fields)
    return ScoredTrajectory(
        **fields,
        teacher_K=tuple(_array(values) for values in teacher["logprob"]),
        hint_hash=teacher["hint_hash"],
        teacher_snapshot_id=teacher["snapshot_id"],
    )


def _credit_out(credit: Credit, g: int) -> dict[str, Any]:
    row: dict[str, Any] = {"advantage": [_floats(values_N) for values_N in credit.advantage[g]]}
    if credit.distill is not None:
        row["distill"] = [_floats(values_N) for values_N in credit.distill[g]]
    row["figures"] = {name: _floats(rows[g]) for name, rows in credit.figures.items()}
    return row


def _credit_in(head: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> Credit:
    rows = [row["credit"] for row in members]
    names = list(rows[0]["figures"]) if rows else []
    has_distill = bool(rows) and "distill" in rows[0]
    return Credit(
        advantage=tuple(tuple(_array(v) for v in row["advantage"]) for row in rows),
        distill=tuple(tuple(_array(v) for v in row["distill"]) for row in rows)
        if has_distill
        else None,
        figures={name: tuple(_array(row["figures"][name]) for row in rows) for name in names},
        metrics={name: float(value) for name, value in head["metrics"].items()},
    )
