"""The wall clock may jump by hours: it is set, or a machine slept. Nothing waits or ends by it.

The service's own clock stays right.
"""

from __future__ import annotations

import datetime
import importlib
import itertools
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from run_rig import SERVICES, Heard, Rehearsed, ServiceName, go, rehearsed, resumed, settings

from turncredit.record.runlog import RunFolder

HOURS = (5.0, -5.0, 30.0, 0.0, -30.0)
_ACTORS = ("pytrio.transport.actor.http_base", "pytrio.transport.actor.base")


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> ServiceName:
    return request.param


class Wall:
    """The wall clock of this process, off by some hours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._right = time.time  # noqa: TID251
        self._off, self._hours, self.jumps = 0.0, itertools.cycle(HOURS), 0
        monkeypatch.setattr(time, "time", self)
        monkeypatch.setattr(time, "time_ns", lambda: int(self() * 1e9))
        wall = self

        class Shifted(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
                return cls.fromtimestamp(wall(), tz)

        for name in _ACTORS if find_spec("pytrio") else ():
            if find_spec(name):
                monkeypatch.setattr(importlib.import_module(name), "datetime", Shifted)

    def __call__(self) -> float:
        return self._right() + self._off

    def jump(self) -> None:
        self._off = 3600.0 * next(self._hours)
        self.jumps += 1


def _jumping(made: Rehearsed, wall: Wall) -> None:
    """The clock jumps whenever the service is about to answer: while calls are under way."""
    for name in ("sample", "score", "forward_backward", "optim_step", "save_state"):
        plain = getattr(made.muscle, name)

        async def answered(*args: Any, plain: Any = plain, **given: Any) -> Any:
            wall.jump()
            return await plain(*args, **given)

        setattr(made.muscle, name, answered)


def _numbers(folder: RunFolder) -> list[dict[str, float]]:
    return [
        {name: value for name, value in row.items() if not name.startswith("time/")}
        for row in folder.metrics()
    ]


@pytest.mark.timeout(200)
def test_a_wall_clock_that_jumps_changes_nothing(
    service: ServiceName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[RunFolder] = []
    used: list[Any] = []
    for name in ("steady", "jumping"):
        (tmp_path / name).mkdir()
        heard = Heard()
        with rehearsed(service, tmp_path / name) as made:
            if name == "jumping":
                wall, began = Wall(monkeypatch), time.monotonic()
                _jumping(made, wall)
            schedule = {"max_steps": 2}
            go(settings(made, tmp_path / name, "toy-stepopsd", schedule=schedule), heard)
            folders.append(resumed(tmp_path / name / "run", heard, max_steps=3))
            used.append(made.used)
        assert not [note for note in heard.notes if "wait" in note or "again" in note]
    assert wall.jumps > 20
    assert used[0] == used[1]  # no call was given up, or made twice
    assert _numbers(folders[0]) == _numbers(folders[1])
    took = time.monotonic() - began
    for row in folders[1].metrics():
        assert all(0 <= row[name] <= took for name in row if name.startswith("time/"))
