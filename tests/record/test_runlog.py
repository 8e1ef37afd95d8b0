"""The run folder: what is written reads back equal; a crash costs nothing that was committed."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.core.errors import AlignmentError, ConfigError, DataError
from turncredit.core.types import (
    Credit,
    Group,
    Observation,
    ScoredTrajectory,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from turncredit.record.runlog import RunFolder

TEXT = st.sampled_from(
    ["", "go to fridge 1", "é\n\u2028\x00\r", '"\\', "\ud800", "<|im_end|>", "NaN"]
)
FLOATS = st.sampled_from(
    [0.0, -0.0, -0.1, 1e-300, -5e-324, 1 / 3, 1e22, math.inf, -math.inf, math.nan]
)
REWARDS = st.sampled_from([0.0, 1.0, 0.25, -0.1])
REASONS = [reason for reason in StopReason if reason is not StopReason.ENV_ERROR]


@st.composite
def trajectories(draw: st.DrawFn, task: Task, *, fault: bool = False) -> Trajectory:
    prompt = draw(st.integers(0, 4))
    position, turns, lengths = prompt, [], []
    for _ in range(draw(st.integers(0, 3))):
        position += draw(st.integers(0, 3))
        lengths.append(draw(st.integers(0, 3)))
        turns.append(
            Turn(
                start=position,
                logprob_N=[draw(FLOATS) for _ in range(lengths[-1])],  # type: ignore[arg-type]
                observation=draw(TEXT),
                text=draw(TEXT),
                action=draw(st.none() | TEXT),
                admissible=draw(st.booleans()),
                reward=draw(REWARDS),
                state_key=draw(TEXT),
            )
        )
        position += lengths[-1]
    length = position + draw(st.integers(0, 2))
    fields: dict[str, Any] = {
        "task": task,
        "member": draw(st.integers(0, 9)),
        "seed": draw(st.integers(0, 2**48)),
        "snapshot_id": "snapshot",
        "tokens": draw(st.lists(st.integers(0, 2**18), min_size=length, max_size=length)),
        "prompt_length": prompt,
        "turns": tuple(turns),
        "reward": draw(REWARDS),
        "stop": StopReason.ENV_ERROR if fault else draw(st.sampled_from(REASONS)),
        "opening": Observation(draw(TEXT), tuple(draw(st.lists(TEXT, max_size=2))), draw(TEXT)),
        "final_observation": draw(TEXT),
        "error": "broken" if fault else "",
        "logprobs": draw(st.sampled_from(["sampled", "rescored"])),
        "student_hint_hash": draw(TEXT),
        "streams": {
            name: tuple(np.array([draw(FLOATS) for _ in range(n)]) for n in lengths)
            for name in draw(st.lists(TEXT, max_size=2, unique=True))
        },
    }
    if fault or draw(st.booleans()):
        return Trajectory(**fields)
    teacher = tuple(np.array([draw(FLOATS) for _ in range(n)]) for n in lengths)
    return ScoredTrajectory(
        **fields, teacher_K=teacher, hint_hash=draw(TEXT), teacher_snapshot_id="snapshot"
    )


@st.composite
def groups(draw: st.DrawFn) -> tuple[Group, Credit | None]:
    task = Task(id=draw(TEXT), env="e", split=draw(TEXT), task_type=draw(TEXT), digest=draw(TEXT))
    members = tuple(draw(trajectories(task)) for _ in range(draw(st.integers(0, 3))))
    faults = tuple(draw(trajectories(task, fault=True)) for _ in range(draw(st.integers(0, 1))))
    notes = {
        name: np.array([draw(FLOATS) for _ in members])
        for name in draw(st.lists(TEXT, max_size=2, unique=True))
    }
    group = Group(task, members, faults, notes)
    if draw(st.booleans()):
        return group, None

    def weights() -> tuple[tuple[Any, ...], ...]:
        return tuple(
            tuple(np.array([draw(FLOATS) for _ in turn.logprob_N]) for turn in member.turns)
            for member in members
        )

    credit = Credit(
        advantage=weights(),
        distill=weights() if members and draw(st.booleans()) else None,
        figures={
            name: tuple(np.array([draw(FLOATS) for _ in member.turns]) for member in members)
            for name in (draw(st.lists(TEXT, max_size=2, unique=True)) if members else [])
        },
        metrics=draw(st.dictionaries(TEXT, FLOATS, max_size=2)),
    )
    return group, credit


def plain(value: Any) -> Any:
    """Nested values with a sound `==`: arrays by dtype and bytes, so NaN equals NaN."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    if hasattr(value, "__dataclass_fields__"):
        return (type(value), *(plain(getattr(value, name)) for name in value.__dataclass_fields__))
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if hasattr(value, "items"):
        return {key: plain(item) for key, item in value.items()}
    return value


@settings(deadline=None, max_examples=60)
@given(st.lists(groups(), max_size=3))
def test_trajectories_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[Group, Credit | None]]
) -> None:
    folder = RunFolder.create(tmp_path_factory.mktemp("run") / "r")
    with_credit = all(credit is not None for _, credit in written)
    credits = [credit for _, credit in written if credit] if with_credit else None
    folder.write_trajectories(7, [group for group, _ in written], credits)
    found = folder.read_trajectories(7)
    assert [plain(r.group) for r in found] == [plain(group) for group, _ in written]
    if with_credit:
        assert [plain(r.credit) for r in found] == [plain(credit) for _, credit in written]
    else:
        assert all(recorded.credit is None for recorded in found)


# One group as runs wrote it before there were streams, notes and hints for the student.
OLD_ROWS = (
    b'{"kind":"group","group":0,"task":{"id":"a","env":"e","split":"s","task_type":"t",'
    b'"digest":"d"},"metrics":{"initial_belief":0.5}}\n'
    b'{"kind":"trajectory","group":0,"member":2,"seed":9,"snapshot_id":"w1","prompt_length":1,'
    b'"reward":1.0,"final_observation":"done","error":"","stop":"success","logprobs":"sampled",'
    b'"opening":{"text":"o","actions":["x"],"key":"k"},"tokens":[5,6,7],"turns":[{"start":1,'
    b'"observation":"o","text":"x","action":"x","admissible":true,"reward":0.0,"state_key":"k",'
    b'"logprob":[-0.5,-0.25]}],"teacher":{"logprob":[[-0.25,-0.25]],"hint_hash":"h",'
    b'"snapshot_id":"w1"},"credit":{"advantage":[[0.75,0.75]],"figures":{"weight":[1.5]}}}\n'
)


def test_rows_of_older_runs_still_read(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "old")
    path = folder.path / "trajectories" / "000001.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(OLD_ROWS))
    ((found, credit),) = ((r.group, r.credit) for r in folder.read_trajectories(1))
    (member,) = found.trajectories
    assert isinstance(member, ScoredTrajectory)
    assert (dict(member.streams), member.student_hint_hash, dict(found.notes)) == ({}, "", {})
    assert [gap_N.tolist() for gap_N in member.gap_K] == [[0.25, 0.0]]
    assert (member.turns[0].action, member.stop, member.reward) == ("x", StopReason.SUCCESS, 1.0)
    assert credit is not None
    assert credit.distill is None
    assert credit.advantage[0][0].tolist() == [0.75, 0.75]
    again = RunFolder.create(tmp_path / "again").write_trajectories(1, [found], [credit])
    assert gzip.decompress(again.read_bytes()) == OLD_ROWS  # what is new leaves no trace


TASK = Task(id="a", env="e", split="s", task_type="t", digest="d", payload={"big": "secret"})


def group(member: int = 0) -> Group:
    turn = Turn(start=1, logprob_N=[-0.1], observation="o", text="t", action="x")  # type: ignore[arg-type]
    one = Trajectory(
        task=TASK,
        member=member,
        seed=1,
        snapshot_id="s",
        tokens=[1, 2],  # type: ignore[arg-type]
        prompt_length=1,
        turns=(turn,),
        reward=1.0,
        stop=StopReason.SUCCESS,
    )
    return Group(TASK, (one,))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path / "run")
    run.write_config({"seed": 1})
    return run


def test_equal_steps_give_equal_bytes(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        paths.append(RunFolder.create(tmp_path / name).write_trajectories(1, [group()]))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].name == "000001.jsonl.gz"
    assert b"secret" not in gzip.decompress(paths[0].read_bytes())


def test_a_step_is_written_once(folder: RunFolder) -> None:
    folder.write_trajectories(1, [group()])
    with pytest.raises(ConfigError, match="written before"):
        folder.write_trajectories(1, [group()])
    with pytest.raises(AlignmentError, match="credits of a step"):
        folder.write_trajectories(2, [group()], [])


def test_missing_and_damaged_trajectories(folder: RunFolder) -> None:
    folder.write_trajectories(1, [group()])
    with pytest.raises(DataError, match=r"no trajectories of step 3; it has \[1\]"):
        folder.read_trajectories(3)
    path = folder.path / "trajectories" / "000001.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged"):
        folder.read_trajectories(1)


def test_nothing_existing_is_replaced_unasked(tmp_path: Path, folder: RunFolder) -> None:
    folder.append_metrics(1, {"loss": 0.5})
    with pytest.raises(ConfigError, match="--overwrite"):
        RunFolder.create(folder.path)
    assert RunFolder.open(folder.path).metrics() == [{"step": 1, "loss": 0.5}]
    assert RunFolder.create(folder.path, overwrite=True).metrics() == []
    assert list(folder.path.iterdir()) == []


@pytest.fixture
def failed(tmp_path: Path) -> RunFolder:
    """A run whose start failed after money was spent."""
    folder = RunFolder.create(tmp_path / "failed")
    folder.write_environment({})
    folder.write_config({"seed": 1})
    folder.write_spent({"currency": "CNY", "amount": 0.5})
    folder.write_probes([{"step": 0}])
    (folder.path / "trajectories").mkdir()
    (folder.path / "metrics.jsonl").touch()
    return folder


def test_a_start_that_made_nothing_is_begun_anew_and_forgets_nothing(failed: RunFolder) -> None:
    with RunFolder.begun(failed.path) as folder:
        folder.write_config({"seed": 2})
        with pytest.raises(ConfigError, match="being written"):
            RunFolder.create(failed.path)
    assert folder.spent() == {"currency": "CNY", "amount": 0.5}
    assert folder.probes() == [{"step": 0}]
    assert folder.config() == {"seed": 2}


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "ledger.jsonl",
        "checkpoints.jsonl",
        "trajectories/000001.jsonl.gz",
        "checkpoints/step-000001/state.npz",
        "report.html",
        "notes.txt",
    ],
)
def test_what_was_made_is_named_and_kept(name: str, failed: RunFolder) -> None:
    file = failed.path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"step": 1}\n')
    where = Path(name).parts[0]
    told = f"exists already, with {where} in it.*--resume.*--run-name.*--overwrite"
    with pytest.raises(ConfigError, match=told):
        RunFolder.create(failed.path)
    assert file.read_text() == '{"step": 1}\n'
    assert failed.config() == {"seed": 1}


def test_a_configuration_that_no_run_wrote_is_kept(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json"):
        RunFolder.create(tmp_path)


def test_only_who_makes_trajectories_again_may_remove_them(failed: RunFolder) -> None:
    failed.write_trajectories(0, [group()])
    with pytest.raises(ConfigError, match="trajectories"):
        RunFolder.create(failed.path)
    assert RunFolder.create(failed.path, remade=(0,)).trajectory_steps() == []
    failed.write_trajectories(1, [group()])
    with pytest.raises(ConfigError, match="trajectories"):
        RunFolder.create(failed.path, remade=(0,))


@pytest.mark.parametrize("place", ["/x/state", "trio://r/training_state/s"])
def test_stepping_back_speaks_of_folders_only_where_there_are(
    place: str, folder: RunFolder
) -> None:
    folder.append_checkpoint(1, {"state": place})
    assert "no earlier checkpoint" in folder.how_to_step_back()
    folder.append_checkpoint(2, {"state": place})
    told = folder.how_to_step_back()
    assert ("and the folder it names" in told) == ("://" not in place)
    assert told.endswith("to go on from 1")


def test_overwrite_never_removes_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        RunFolder.create(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_overwrite_never_removes_a_live_run(folder: RunFolder) -> None:
    with folder.locked(), pytest.raises(ConfigError, match="being written"):
        RunFolder.create(folder.path, overwrite=True)
    assert folder.config() == {"seed": 1}


def test_open_wants_a_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run folder"):
        RunFolder.open(tmp_path)


def test_numbers_survive(folder: RunFolder) -> None:
    folder.append_metrics(1, {"a": math.nan, "b": -math.inf, "c": 0.1})
    (row,) = folder.metrics()
    assert math.isnan(row["a"])
    assert (row["b"], row["c"]) == (-math.inf, 0.1)


def test_truncate_makes_it_what_it_was(folder: RunFolder) -> None:
    def step(n: int) -> None:
        folder.write_trajectories(n, [group()])
        folder.append_ledger(n, {"tokens": n})
        folder.append_metrics(n, {"loss": n / 10})

    def state() -> dict[str, bytes]:
        files = sorted(p for p in folder.path.rglob("*") if p.is_file())
        return {str(p.relative_to(folder.path)): p.read_bytes() for p in files}

    for n in (1, 2):
        step(n)
    folder.checkpoint_path(2).mkdir(parents=True)
    (folder.checkpoint_path(2) / "state").write_bytes(b"weights")
    folder.append_checkpoint(2, {"state": "x"})
    before = state()
    for n in (3, 4):
        step(n)
    folder.checkpoint_path(4).mkdir()
    (folder.checkpoint_path(4) / "state").write_bytes(b"half")  # never announced
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":5,"lo')
    with pytest.warns(UserWarning, match="torn last line"):
        folder.truncate_after(2)
    assert state() == before
    step(3)
    assert [row["step"] for row in folder.metrics()] == [1, 2, 3]


def test_truncate_keeps_announced_checkpoints_unless_told(folder: RunFolder) -> None:
    for n in (2, 4):
        folder.checkpoint_path(n).mkdir(parents=True)
        folder.append_checkpoint(n, {})
    with pytest.raises(ConfigError, match=r"\[4\]"):
        folder.truncate_after(2)
    folder.truncate_after(2, discard_checkpoints=True)
    assert [row["step"] for row in folder.checkpoints()] == [2]
    assert not folder.checkpoint_path(4).exists()
    assert folder.checkpoint_path(2).exists()


@pytest.mark.parametrize(
    "note",
    [
        "",
        "{",
        "[1]",
        '{"amount": 1}',
        '{"currency": "USD", "amount": "1"}',
        '{"currency": "USD", "amount": -1}',
        '{"currency": "USD", "amount": NaN}',
        '{"currency": 1, "amount": 1}',
    ],
)
def test_a_damaged_note_of_spending_is_said_with_its_cure(tmp_path: Path, note: str) -> None:
    folder = RunFolder.create(tmp_path / "run")
    assert folder.spent() is None
    folder.write_spent({"currency": "USD", "amount": 1.5, "price": "p"})
    assert (folder.spent() or {})["amount"] == 1.5
    (folder.path / "spent.json").write_text(note)
    with pytest.raises(DataError, match=r"spent\.json is damaged.*or remove it"):
        folder.spent()
