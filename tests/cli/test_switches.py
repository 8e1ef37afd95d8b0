"""Every switch that saves work, off at once and typed as a person would: nothing learnt changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from turncredit.core.types import Array, Credit
from turncredit.record.rows import Recorded
from turncredit.record.runlog import RunFolder

pytest.importorskip("torch", reason="pip install 'turncredit[local]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 2
TRAIN = [
    *["train", "--recipe", "household-agentopsd", "--max-steps", str(STEPS), "--seed", "11"],
    *["--tasks-per-update", "4", "--group-size", "4", "--max-turns", "14"],
    *["--learning-rate", "1e-3", "--device", "cpu", "--dtype", "float32"],
]
CACHES_OFF = ["--no-reuse-prefixes", "--no-share-prefixes", "--no-lean"]
STAGES_OFF = ["--no-overlap", "--no-skip-silent"]
TOLERANCE = 1e-3  # of credit: float32 rounding, through exponentials of summed log-probs


def run(folder: Path, name: str, *flags: str) -> RunFolder:
    """In a process of its own, its input closed, as a service would start it."""
    words = [sys.executable, "-m", "turncredit.cli.main", *TRAIN, *flags]
    place = ["--runs-dir", str(folder), "--run-name", name]
    done = subprocess.run(
        [*words, *place],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return RunFolder.open(folder / name)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("runs"), "usual")


def recorded(folder: RunFolder) -> Iterator[Recorded]:
    for step in range(1, STEPS + 1):
        yield from folder.read_trajectories(step)


def played(folder: RunFolder) -> list[tuple[list[int], float]]:
    return [(t.tokens.tolist(), t.reward) for r in recorded(folder) for t in r.group.trajectories]


def advantages(credit: Credit | None) -> Array:
    assert credit is not None
    return np.concatenate([tokens for turns in credit.advantage for tokens in turns])


@pytest.mark.parametrize(
    "flags",
    [
        ["--checkpointing", "on"],
        [*CACHES_OFF, *STAGES_OFF, "--checkpointing", "on"],
        [*CACHES_OFF, *STAGES_OFF, "--checkpointing", "off", "--batch-tokens", "256"],
    ],
    ids=["checkpointing", "all off", "all off, small passes"],
)
def test_the_same_tokens_rewards_and_credit(
    usual: RunFolder, tmp_path: Path, flags: list[str]
) -> None:
    assert any(row["train/skipped"] == 0 for row in usual.metrics()), "nothing was trained"
    other = run(tmp_path, "other", *flags)
    assert played(other) == played(usual)
    for one, two in zip(recorded(usual), recorded(other), strict=True):
        ours, theirs = advantages(one.credit), advantages(two.credit)
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)
    assert any(np.abs(advantages(r.credit)).max() > 10 * TOLERANCE for r in recorded(usual))


def test_they_were_really_off(usual: RunFolder, tmp_path: Path) -> None:
    other = run(tmp_path, "other", *CACHES_OFF, *STAGES_OFF)
    few, many = usual.ledger()[-1]["tokens"], other.ledger()[-1]["tokens"]
    assert few["cached"] > 0
    assert many["cached"] == 0
    assert many["prefill"] > 2 * few["prefill"]
    assert many["teacher"] > few["teacher"]
