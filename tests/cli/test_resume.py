"""`turncredit train --resume` and `--overwrite` on damaged, foreign and busy folders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from turncredit.cli.main import main
from turncredit.record.runlog import RunFolder

SIZE = ["--tasks-per-update", "2", "--group-size", "2", "--save-every", "1"]
TRAIN = ["train", "--recipe", "toy-agentopsd", "--max-steps", "3", *SIZE]
SHORT = "checkpoints/step-000003/state.npz"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert main([*TRAIN, "--runs-dir", str(folder), "--run-name", "run"]) == 0
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def append(name: str, line: str) -> Callable[[Path], object]:
    def damage(run: Path) -> None:
        with (run / name).open("a") as file:
            file.write(line + "\n")

    return damage


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(text)


def edit(run: Path) -> None:
    file = run / "config.json"
    file.write_text(file.read_text().replace('"group_size": 2', '"group_size": 6'))


@pytest.mark.parametrize(
    ("damage", "answer"),
    [
        (append("metrics.jsonl", "[1]"), "line 4 is no record of a step"),
        (append("ledger.jsonl", '{"step": "x"}'), "line 4 is no record of a step"),
        (append("checkpoints.jsonl", "5"), "line 4 is no record of a step"),
        (append("checkpoints.jsonl", '{"step": 3}'), "lacks state"),
        (write("checkpoints.jsonl", ""), "does not name step-000001, step-000002, step-000003"),
        (write("config.json", "{"), "is not JSON"),
        (write("config.json", "[]"), "restore it"),
        (write("config.json", "{}"), "digest differs"),
        (write("config.json", '{"env": 3}'), "lies in no section"),
        (edit, "digest differs"),
        (write(SHORT, "torn"), "Delete the last line"),
        (lambda run: (run / SHORT).unlink(), "Delete the last line"),
    ],
)
def test_damage_is_named_and_nothing_is_lost(
    damage: Callable[[Path], object],
    answer: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(run)
    before = contents(run)
    assert main(["train", "--resume", str(run)]) == 2
    assert answer in capsys.readouterr().err
    assert contents(run) == before


def test_stepping_back_as_told_goes_on(run: Path) -> None:
    (run / SHORT).write_bytes(b"torn")
    file = run / "checkpoints.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert main(["train", "--resume", str(run)]) == 0
    assert [row["step"] for row in RunFolder.open(run).metrics()] == [1, 2, 3]


@pytest.mark.parametrize(
    "flags",
    [
        ["--seed", "3"],
        ["--method", "grpo"],
        ["--env=alfworld"],
        ["--recipe", "toy-agentopsd"],
        ["--overwrite"],
        ["--max-steps", "2"],
    ],
)
def test_what_cannot_change_half_way(
    flags: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run)
    assert main(["train", "--resume", str(run), *flags]) == 2
    assert flags[0].partition("=")[0] in capsys.readouterr().err
    assert contents(run) == before


def test_a_finished_run_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(run)]) == 0
    assert "all 3 updates are made" in capsys.readouterr().err


def test_a_busy_run_is_left_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    with RunFolder.open(run).locked():
        assert main(["train", "--resume", str(run), "--max-steps", "9"]) == 2
    assert "being written by process" in capsys.readouterr().err
    assert contents(run) == before


def test_own_files_among_a_runs_survive(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("checkpoints/best/weights", "trajectories/notes.jsonl.gz"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    (run / ".config.json.0a1b2c3d.tmp").write_text("half")
    assert main(["train", "--resume", str(run), "--max-steps", "4"]) == 0
    assert (run / "checkpoints/best/weights").exists()
    assert (run / "trajectories/notes.jsonl.gz").exists()
    assert not (run / ".config.json.0a1b2c3d.tmp").exists()
    argv = [*TRAIN, "--runs-dir", str(run.parent), "--run-name", "run", "--overwrite"]
    assert main(argv) == 2
    assert "checkpoints/best" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--train-split", "nowhere"],
        ["--tasks-per-update", "1000"],
        ["--trackers", "nothing"],
    ],
)
def test_a_set_up_that_cannot_work_replaces_nothing(flags: list[str], run: Path) -> None:
    before = contents(run)
    place = ["--runs-dir", str(run.parent), "--run-name"]
    assert main([*TRAIN, *place, "run", "--overwrite", *flags]) == 2
    assert contents(run) == before
    assert main([*TRAIN, *place, "new", *flags]) == 2
    assert not (run.parent / "new").exists()
