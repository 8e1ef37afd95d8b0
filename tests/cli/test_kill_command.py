"""`kill` ends a command as Ctrl-C does, whoever listens to Ctrl-C, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from turncredit.cli.main import main
from turncredit.cli.signals import kill_is_ctrl_c


@pytest.fixture(autouse=True)
def _signals_are_heard() -> Iterator[None]:
    """Whoever starts tests in the background of a shell has them ignore Ctrl-C."""
    before = [(n, signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before:
        signal.signal(number, handler)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("heard", [True, False], ids=["foreground", "background"])
def test_kill_interrupts(heard: bool) -> None:
    if not heard:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with kill_is_ctrl_c() as killed:
        assert not killed()
        with pytest.raises(KeyboardInterrupt):
            _kill()
        assert killed()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("heard", [True, False], ids=["foreground", "background"])
def test_kill_lets_a_loop_end_its_tasks(heard: bool) -> None:
    if not heard:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.01)
            ended.append("in order")

    async def run() -> None:
        asyncio.get_running_loop().call_later(0.01, _kill)
        await work()

    with kill_is_ctrl_c(), pytest.raises(KeyboardInterrupt):
        asyncio.run(run())
    assert ended == ["in order"]


def test_who_ignores_kill_is_left_alone() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with kill_is_ctrl_c() as killed:
        _kill()
        assert not killed()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "kill"]
)
def test_a_command_says_how_it_ended(
    number: int,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from turncredit.cli import doctor

    monkeypatch.setattr(doctor, "run", lambda _: os.kill(os.getpid(), number))
    assert main(["doctor"]) == status
    assert "interrupted; what was committed is on disk" in capsys.readouterr().err
