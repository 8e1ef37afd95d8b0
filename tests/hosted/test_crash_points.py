"""A run ended before, after and within everything it writes: no update is lost or doubled.

A process that is gone writes nothing more, and neither does one whose disk is full, so either is
played in this process: from the nth write on, nothing reaches the disk.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from run_rig import SERVICES, Heard, ServiceName, go, rehearsed, resumed, settings

from turncredit.cli.train import begin
from turncredit.core.errors import ConfigError, TurncreditError
from turncredit.record import atomic
from turncredit.record.runlog import RunFolder

Moment = Literal["before", "after", "within", "full"]
SHORT = {"max_steps": 2, "save_every": 1}
SCHEDULE = {"max_steps": 3, "save_every": 2}
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> ServiceName:
    return request.param


class Gone(BaseException):
    """The process is no more. (Nothing may catch it.)"""


@contextmanager
def _disk(nth: int, moment: Moment) -> Iterator[list[str]]:
    """Names of the files written; the nth write (from 0) is the last.

    "full" is a disk without room: the write fails as others do that come after it.
    """
    written: list[str] = []

    def stops(write: Callable[[Path, Any], None]) -> Callable[[Path, Any], None]:
        def instead(path: Path, value: Any) -> None:
            written.append(path.name)
            if len(written) - 1 < nth:
                write(path, value)
                return
            if len(written) - 1 == nth and moment == "after":
                write(path, value)
            if len(written) - 1 == nth and moment == "within" and path.suffix == ".jsonl":
                line = atomic.dump_line(value)
                with path.open("ab") as file:
                    file.write(line[: len(line) // 2])
            raise OSError(errno.ENOSPC, "No space left on device") if moment == "full" else Gone

        return instead

    with pytest.MonkeyPatch.context() as patch:
        for name in ("append_line", "write_bytes"):
            patch.setattr(atomic, name, stops(getattr(atomic, name)))
        yield written


def _numbers(folder: RunFolder) -> list[Any]:
    wanted = ("step", "train/loss", "train/grad_norm", "reward/mean")
    return [[row.get(name, 0.0) for name in wanted] for row in folder.metrics()]


def _moments(written: list[str], *, all_of_them: bool) -> list[tuple[int, Moment]]:
    """Writes, each with a moment of its own; the first checkpoint with all moments.

    Notes of money are many and alike: a few. Of the others all, or the last of each file.
    """
    notes = [n for n, name in enumerate(written) if name == "spent.json"]
    few = 8 if all_of_them else 2
    chosen: list[tuple[int, Moment]] = [
        (n, "before") for n in notes[len(notes) // 2 :: len(notes) // few]
    ]
    first = written.index("checkpoints.jsonl")
    chosen += [(first, "before"), (first, "within"), (first, "after"), (first, "full")]
    last = {name: n for n, name in enumerate(written)}
    for n, name in enumerate(written):
        if name != "spent.json" and n != first and (all_of_them or n == last[name]):
            chosen.append((n, ("full", "before", "within", "after")[n % 4]))  # type: ignore[arg-type]
    return chosen


@pytest.mark.parametrize(
    "all_of_them",
    [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.kills])],
    ids=["some", "all"],
)
def test_a_run_that_ends_at_any_write_goes_on_exactly(
    service: ServiceName, all_of_them: bool, tmp_path: Path
) -> None:
    def made_in(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    with rehearsed(service, made_in("calm")) as made:
        run = settings(made, tmp_path / "calm", schedule=SHORT)
        folder = begin(run)
        with _disk(10**9, "before") as written:
            go(run, Heard(), folder)
        wanted = _numbers(folder)
    moments = _moments(written, all_of_them=all_of_them)
    assert {name for name in written if "." in name} <= {written[n] for n, _ in moments}
    with rehearsed(service, made_in("rough")) as made:
        for n, moment in moments:
            before, place = made.billed, made_in(f"{n}-{moment}")
            run = settings(made, place, schedule=SHORT)
            folder = begin(run)
            with _disk(n, moment), pytest.raises((Gone, OSError)):
                go(run, Heard(), folder)
            committed = [row["step"] for row in folder.checkpoints()]
            resumed(folder.path, Heard())
            where = f"{moment} write {n}, {written[n]}"
            assert [row["step"] for row in folder.checkpoints()] == [1, 2], where
            assert committed in ([], [1], [1, 2]), where
            assert _numbers(folder) == [pytest.approx(row, abs=1e-6) for row in wanted], where
            spent = (folder.spent() or {})["amount"]
            assert made.billed - before <= spent * (1 + 1e-9), where


# ── limits, and others at the same run ───────────────────────────────────────────────────────


def test_a_limit_below_what_is_spent_asks_for_nothing_and_forgets_nothing(
    service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:
        folder = go(settings(made, tmp_path, schedule=SCHEDULE), Heard())
        before, spent, rows = made.billed, folder.spent(), folder.checkpoints()
        with pytest.raises(TurncreditError, match="--max-cost"):
            resumed(folder.path, Heard(), max_cost=0.5 * before, max_steps=5)
        assert made.billed == before
        assert folder.spent() == pytest.approx(spent)
        assert folder.checkpoints() == rows
        resumed(folder.path, Heard(), max_cost=10 * before, max_steps=5)
        assert [row["step"] for row in folder.checkpoints()] == [2, 3, 4, 5]
        assert made.billed <= (folder.spent() or {})["amount"] * (1 + 1e-9)


def test_two_copies_of_a_run_go_on_alike_and_apart(service: ServiceName, tmp_path: Path) -> None:
    """Both from one state of the service, with saves of the same names."""
    with rehearsed(service, tmp_path) as made:
        folder = go(settings(made, tmp_path, schedule=SCHEDULE), Heard())
        copy = RunFolder(shutil.copytree(folder.path, tmp_path / "copy"))
        resumed(folder.path, Heard(), max_steps=5)
        resumed(copy.path, Heard(), max_steps=5)
        assert _numbers(copy) == [pytest.approx(row, abs=1e-6) for row in _numbers(folder)]
        last = [row["state"] for run in (folder, copy) for row in run.checkpoints()[-1:]]
        assert last[0] != last[1]
        resumed(folder.path, Heard(), max_steps=6)  # its own states are still there
        resumed(copy.path, Heard(), max_steps=6)
        assert _numbers(copy) == [pytest.approx(row, abs=1e-6) for row in _numbers(folder)]


def test_a_run_that_somebody_trains_is_refused_before_anything_is_asked(
    service: ServiceName, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:
        folder = go(settings(made, tmp_path, schedule=SCHEDULE), Heard())
        seen = made.server.faults.seen.total()
        with folder.locked(), pytest.raises(ConfigError, match="being written by process"):
            resumed(folder.path, Heard(), max_steps=5)
        assert made.server.faults.seen.total() == seen


def test_an_interrupted_save_is_the_save_that_is_waited_for(
    service: ServiceName, tmp_path: Path
) -> None:
    """Services refuse a name twice: the second asker gets the answer to the first."""
    from turncredit.backends.loopback.faults import Fault, Rule

    async def main() -> None:
        with rehearsed(service, tmp_path) as made:
            import importlib

            adapter: Any = importlib.import_module(f"turncredit.backends.{service}")
            backend = adapter.create(adapter.Config(base_model="table", base_url=made.server.url))
            training = await backend.create_training_client(seed=0, save_dir="")
            for save in (training.save_state, training.save_weights_for_sampler):
                made.server.faults.rules.append(Rule(fault=Fault("delay", seconds=0.3), times=1))
                task = asyncio.ensure_future(save("step-1"))
                await asyncio.sleep(0.1)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                found = await save("step-1")
                assert found == await save("step-1")
                made.server.faults.rules.clear()
            await backend.aclose()

    asyncio.run(main())
