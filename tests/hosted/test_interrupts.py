"""Ctrl-C at any point of a run on a service: it gives everything back and can be gone on with."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_rig import SERVICES, Heard, ServiceName, go, opened, rehearsed, resumed, settings

from turncredit.backends.hosted.calls import Calls
from turncredit.backends.loopback.faults import Fault, Plan
from turncredit.record.runlog import RunFolder

SLOW = Fault("delay", seconds=0.2)  # so that others are under way
# Where samples and updates are asked for (PyTRIO has one address for all of a training run).
PATHS = {
    "pytrio": {"rollout": "/sample$", "update": "/events$"},
    "tinker": {"rollout": "/asample$", "update": "/forward_backward$"},
}


@pytest.fixture(autouse=True)
def _sigint_is_heard() -> Iterator[None]:
    """Whoever starts tests in the background of a shell has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupts(Plan):
    """Once armed, Ctrl-C for this process with a request of an address, all of which are slow."""

    def __init__(self, path: str, nth: int) -> None:
        super().__init__()
        self.armed = False
        self._path, self._nth = path, nth

    def meet(self, path: str) -> Fault | None:
        super().meet(path)
        if not self.armed or not re.search(self._path, path):
            return None
        self._nth -= 1
        if self._nth == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return SLOW


def _calls(backend: Any) -> Calls:
    return (backend._shared if backend.name == "pytrio" else backend._link).calls


def _numbers(folder: RunFolder) -> list[Any]:
    wanted = ("train/loss", "train/grad_norm", "reward/mean")
    return [[row.get(name) for name in wanted] for row in folder.metrics()]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("where", "nth", "saved"),
    [
        ("rollout", 3, 3),  # of update 4: three are whole, and saved by Ctrl-C
        ("update", 1, 2),  # the middle of update 4: nobody knows, so back to what was saved
    ],
)
def test_ctrl_c_frees_what_it_held_and_loses_nothing_whole(
    service: ServiceName, where: str, nth: int, saved: int, tmp_path: Path
) -> None:
    schedule = {"max_steps": 5, "save_every": 2}
    with rehearsed(service, tmp_path / "a") as made:
        whole = go(settings(made, tmp_path / "a", schedule=schedule), Heard())
    plan = Interrupts(PATHS[service][where], nth)

    def arm(step: int, name: str) -> None:
        plan.armed |= (step, name) == (4, where)

    heard = Heard(arm)
    with rehearsed(service, tmp_path / "b", plan=plan) as made:
        run = settings(made, tmp_path / "b", schedule=schedule)
        parts = opened(run)
        calls = _calls(parts.backend)
        limit = calls._slots._free
        with pytest.raises(KeyboardInterrupt):
            go(run, heard, parts=parts)
        plan.armed = False
        folder = RunFolder.open(tmp_path / "b" / "run")
        assert calls._slots._free == limit
        assert not calls._slots._waiting
        assert calls.counts.abandoned >= 1
        (note,) = [
            note
            for note in heard.notes
            if "calls were given up" in note or "call was given up" in note
        ]
        assert note.startswith(f"{calls.counts.abandoned} ")
        assert [row["step"] for row in folder.checkpoints()][-1] == saved
        # What it gave up counts as if it had been done, so that no bill is a surprise.
        assert made.billed <= (folder.spent() or {})["amount"] <= 1.5 * made.billed
        resumed(folder.path, Heard())
    assert len(_numbers(whole)) == 5
    assert _numbers(folder) == [pytest.approx(row, abs=1e-6) for row in _numbers(whole)]


@pytest.mark.parametrize("service", SERVICES)
def test_ctrl_c_while_a_save_waits_for_the_next_rollout_still_saves(
    service: ServiceName, tmp_path: Path
) -> None:
    """One update ahead. The weights are saved by then, and services take no name twice."""
    plan = Interrupts(PATHS[service]["rollout"], 6)

    def arm(step: int, name: str) -> None:
        plan.armed |= (step, name) == (4, "save")

    heard = Heard(arm)
    with rehearsed(service, tmp_path, plan=plan) as made:
        schedule = {"max_steps": 6, "save_every": 2, "async_level": 1}
        with pytest.raises(KeyboardInterrupt):
            go(settings(made, tmp_path, schedule=schedule), heard)
        plan.armed = False
        folder = RunFolder.open(tmp_path / "run")
        assert [row["step"] for row in folder.checkpoints()] == [2, 4]
        assert not any("could not be saved" in note for note in heard.notes)
        resumed(folder.path, Heard())
    assert [row["step"] for row in folder.checkpoints()] == [2, 4, 6]
