"""SIGKILL at random moments of a training on the shipped policy, one update ahead.

Guaranteed here: whatever the moment, the resumed run has the weights, optimizer, numbers and
trajectories of the one that nobody killed, to the bit.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from turncredit import config
from turncredit.cli.train import begin, reopen, train
from turncredit.loop.listener import Listener
from turncredit.record.runlog import RunFolder

pytest.importorskip("torch", reason="pip install 'turncredit[local]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL"),
]
STEPS, KILLS, LONGEST_S = 4, 8, 600.0
SIZE = {"tasks_per_update": 2, "group_size": 3, "max_steps": STEPS, "async_level": 1}
CASES: dict[str, dict[str, Any]] = {
    "every update saved": {"schedule": {"save_every": 1, "seed": 11}},
    "every other saved": {"schedule": {"save_every": 2, "seed": 5}},
}


def count_down(left: int, wait: float, counted: Any) -> None:
    """Count what the event loop runs; at the end of the count, and a moment later, SIGKILL.

    A count, not a time: the points are as random on a busy machine as on an idle one.
    """
    run_one = asyncio.events.Handle._run

    def counting(handle: asyncio.Handle) -> None:
        counted.value += 1
        if counted.value == left:
            threading.Timer(wait, os.kill, (os.getpid(), signal.SIGKILL)).start()
        run_one(handle)

    asyncio.events.Handle._run = counting


def live(path: Path, changes: dict[str, Any], left: int, wait: float, counted: Any) -> None:
    """One life of a trainer, from the beginning or the last checkpoint."""
    count_down(left, wait, counted)
    if (path / "config.json").exists():
        folder, settings = reopen(path, {})
    else:
        layers = [
            config.read_recipe("household-agentopsd"),
            {"schedule": {**SIZE, "runs_dir": str(path.parent), "run_name": path.name}},
            {"rollout": {"max_turns": 8}, "optim": {"learning_rate": 1e-3}},
            changes,
        ]
        settings = config.build(config.merge(*layers))
        folder = begin(settings)
    train(settings, folder, Listener())


class Lives:
    """Trainers of one folder, in processes of their own: forks of one that has all loaded."""

    def __init__(self, path: Path, changes: dict[str, Any]) -> None:
        self.path, self._changes = path, changes
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["turncredit.backends.local.backend"])

    def one(self, kill_at: int = 0, wait: float = 0.0) -> tuple[bool, int]:
        """One life; (it was killed, how much its event loop had run).

        Args:
            kill_at: after so many callbacks; 0: never.
            wait: seconds later.
        """
        counted = self._processes.Value("q", 0)
        given = (self.path, self._changes, kill_at, wait, counted)
        process = self._processes.Process(target=live, args=given)
        process.start()
        process.join(LONGEST_S)
        assert process.exitcode in (0, -signal.SIGKILL), f"it ended with {process.exitcode}"
        return process.exitcode != 0, counted.value


def contents(path: Path) -> dict[str, Any]:
    """All that must be equal: the numbers but for times, and files as they are."""
    folder = RunFolder(path)
    state = Path(folder.resolve(folder.checkpoints()[-1]["state"]))
    found: dict[str, Any] = {
        "metrics": [{k: v for k, v in row.items() if "time/" not in k} for row in folder.metrics()],
        "checkpoints": folder.checkpoints(),
        "ledger": [(row["step"], row["tokens"], row["games"]) for row in folder.ledger()],
    }
    for file in [*state.glob("*.safetensors"), *(path / "trajectories").glob("*")]:
        found[file.name] = file.read_bytes()
    return found


@pytest.mark.parametrize("name", CASES)
def test_killed_anywhere_it_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    straight = Lives(tmp_path / "straight", CASES[name])
    killed, whole = straight.one()
    assert not killed
    want = contents(straight.path)
    assert len(want["metrics"]) == STEPS

    chance = random.Random(name)
    lives = Lives(tmp_path / "run", CASES[name])
    deaths = 0
    while lives.one(chance.randint(1, whole // 2), chance.random() * 0.05)[0]:
        deaths += 1
        if deaths == KILLS:
            assert not lives.one()[0]
            break
    assert deaths >= 2
    got = contents(lives.path)
    assert got.keys() == want.keys()
    for part, value in want.items():
        assert got[part] == value, part
