"""A start that failed leaves a folder; the mended command begins there, and nobody else meanwhile.

Real processes: the first stands still in its first update (or game) while others try the same
place.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from turncredit.cli.main import main
from turncredit.core.errors import BackendError
from turncredit.loop import sft, train
from turncredit.record.runlog import RunFolder

SIZE = ["--max-steps", "2", "--save-every", "1"]
TRAIN = ["train", "--recipe", "toy-grpo", *SIZE, "--tasks-per-update", "2", "--group-size", "2"]
SFT = ["sft", "--recipe", "toy-grpo", *SIZE, "--batch", "4", "--demonstrations", "6"]
COMMANDS = {"train": TRAIN, "sft": SFT}
EVAL = ["eval", "--env", "toy", "--policy", "model", "--backend", "tabular"]
EVAL += ["--limit-per-split", "3", "--games-per-batch", "1"]

# The first process stands still where `at` says, and goes on when it may.
STANDING = """
import sys, time
from pathlib import Path
from turncredit.cli import eval, main, progress

stand, go = Path(sys.argv[1]) / "stands", Path(sys.argv[1]) / "go"

def still(self, *given):
    if given[0] != 0:  # step 0 gathers demonstrations, before there is a folder
        stand.touch()
        while not go.exists():
            time.sleep(0.02)

progress.Terminal.phase = still
eval._Progress.game = still
sys.exit(main.main(sys.argv[2:]))
"""


def where(runs: Path, name: str = "run") -> list[str]:
    return ["--runs-dir", str(runs), "--run-name", name]


def contents(folder: Path) -> dict[str, bytes]:
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "run.lock"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@contextmanager
def standing(command: list[str], flags: Path) -> Iterator[None]:
    """A process of `command` that stands still; at the end it goes on, and must succeed."""
    flags.mkdir()
    words = [sys.executable, "-c", STANDING, str(flags), *command]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not (flags / "stands").exists():
                assert process.poll() is None, process.stderr and process.stderr.read()
                time.sleep(0.05)
            yield
        finally:
            (flags / "go").touch()
        assert process.wait(60) == 0, process.stderr and process.stderr.read()


# ── a start that failed ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", COMMANDS)
def test_the_mended_command_begins_where_one_failed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*COMMANDS[name], *where(tmp_path)]
    runner = {"train": train.Trainer, "sft": sft.Supervised}[name]

    async def refused(self: object) -> None:
        raise BackendError("no such model")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run", refused)
        assert main(command) == 2
    folder = RunFolder.open(tmp_path / "run")
    assert folder.metrics() == []
    assert main([*command, "--seed", "7"]) == 0
    assert folder.config()["schedule"]["seed"] == 7
    assert [row["step"] for row in folder.metrics()] == [1, 2]
    assert main([*command, "--seed", "7"]) == 2  # now something was made


@pytest.mark.parametrize("name", COMMANDS)
def test_a_place_that_is_taken_is_said_before_anything_is_opened_or_gathered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(*_: object) -> object:
        raise AssertionError("the parts of the run were opened")

    command = [*COMMANDS[name], *where(tmp_path)]
    assert main(command) == 0
    before = contents(tmp_path)
    monkeypatch.setattr(f"turncredit.cli.{name}.open_parts", opened)
    assert main(command) == 2
    assert "exists already" in capsys.readouterr().err
    with RunFolder.open(tmp_path / "run").locked():
        assert main([*command, "--overwrite"]) == 2
    assert "being written by process" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_training_keeps_demonstrations_it_could_not_gather_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(self: object) -> None:
        raise BackendError("no such model")

    with monkeypatch.context() as patch:
        patch.setattr(sft.Supervised, "run", refused)
        assert main([*SFT, *where(tmp_path)]) == 2
    before = contents(tmp_path)
    assert main([*TRAIN, *where(tmp_path)]) == 2
    assert "with trajectories in it" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_a_resume_that_is_refused_changes_no_settings(tmp_path: Path) -> None:
    for name, command in COMMANDS.items():
        assert main([*command, *where(tmp_path, name)]) == 0
        before = contents(tmp_path / name)
        flags = ["--max-steps", "9", "--max-cost", "1"]  # nobody knows a price
        assert main([name, "--resume", str(tmp_path / name), *flags]) == 2
        assert contents(tmp_path / name) == before


# ── two at once ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", COMMANDS)
def test_a_second_process_is_refused_and_harms_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMANDS[name], *where(tmp_path, "alone")]) == 0
    capsys.readouterr()
    run = str(tmp_path / "run")
    with standing([*COMMANDS[name], *where(tmp_path)], tmp_path / "flags"):
        before = contents(tmp_path / "run")
        others = [*COMMANDS.values(), [*COMMANDS[name], "--overwrite"]]
        tries = [[*other, *where(tmp_path), "--seed", "9"] for other in others]
        for words in (*tries, [name, "--resume", run, "--max-steps", "9"]):
            assert main(words) == 2, words
            said = capsys.readouterr().err
            assert "being written by process" in said or "exists already" in said, words
        assert contents(tmp_path / "run") == before
    alone, folder = RunFolder.open(tmp_path / "alone"), RunFolder.open(run)
    assert folder.config()["digest"] == alone.config()["digest"]
    for one, other in zip(folder.metrics(), alone.metrics(), strict=True):
        same = [key for key in other if not key.startswith("time/")]
        assert {key: one[key] for key in same} == {key: other[key] for key in same}


def test_a_second_evaluation_of_one_file_is_refused_and_harms_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, file = tmp_path / "alone.jsonl", tmp_path / "one.jsonl"
    assert main([*EVAL, "--output", str(alone)]) == 0
    with standing([*EVAL, "--output", str(file)], tmp_path / "flags"):
        before = file.read_bytes()
        assert before.count(b"\n") == 1
        capsys.readouterr()
        for flag in ("--resume", "--overwrite-output"):
            assert main([*EVAL, "--output", str(file), flag]) == 2
            assert "being written by process" in capsys.readouterr().err
        assert main([*EVAL, "--output", str(file)]) == 2
        assert "exists already" in capsys.readouterr().err
        assert file.read_bytes() == before
    assert not Path(f"{file}.lock").exists()
    games = [path.read_bytes().splitlines()[:-1] for path in (alone, file)]
    assert games[0] == games[1]
