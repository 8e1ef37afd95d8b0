"""The benchmarks run, on jobs of a moment: their figures are nobody's business here."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
HERE = Path(__file__).parents[1] / "benchmarks"
BAR = re.compile(r"^bar \S+ \S+ \S+ (pass|fail)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def _as_a_script_sees_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder is on the path; one thread, since other tests run beside."""
    import torch

    monkeypatch.syspath_prepend(str(HERE))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_forced_games_have_exactly_the_tokens_of_the_job() -> None:
    from _common import Job
    from _ours import Side

    job = Job(groups=2, size=2, turns=3, prompt=30, observe=5, act=4, hint=12)
    side = Side("household-tiny")
    groups = side.rollout(job)
    assert [len(g.trajectories) for g in groups] == [2, 2]
    for group in groups:
        assert sorted(group.reward_G) == [0.0, 1.0]  # hence a signal
        for t in group.trajectories:
            assert (len(t.tokens), t.prompt_length) == (job.length, job.prompt)
            assert [len(turn.logprob_N) for turn in t.turns] == [job.act] * job.turns
        first, second = (t.tokens[job.prompt + job.act :] for t in group.trajectories)
        assert not np.array_equal(first[: job.observe], second[: job.observe])


def test_an_update_changes_the_weights_and_gives_credit() -> None:
    from _common import Job
    from _ours import Side

    job = Job(size=2, turns=2, prompt=30, observe=5, act=4, hint=12)
    side = Side("household-tiny")
    side.update(job)
    assert any(credit.has_signal for credit in side.credits)
    before = side.groups[0].trajectories[0].snapshot_id
    side.update(replace(job, hint=0))
    assert side.groups[0].trajectories[0].snapshot_id != before


def test_the_loop_shape_plays_the_same_job() -> None:
    from _common import ForcedChat, ForcedWorld, Job
    from _loop_shape import LoopShape

    job = Job(size=2, turns=3, prompt=30, observe=5, act=4, hint=12)
    shape = LoopShape("household-tiny")
    chat = ForcedChat(job, 1024)
    rows = [(task, "a") for task in ForcedWorld(job).tasks()]
    played, spans = shape._play(job, chat, rows)
    assert [len(ids) for ids in played] == [job.length]
    assert spans == [30, 31, 32, 33, 39, 40, 41, 42, 48, 49, 50, 51]
    shape.update(job)


def test_peak_bytes_counts_what_was_alive_at_once() -> None:
    import torch
    from _common import peak_bytes

    def work() -> None:
        first = torch.ones(2**18)
        second = first * 2
        del first
        third = torch.ones(2**19)
        del second, third

    assert peak_bytes(work) == 3 * 2**20


def test_a_bar_says_whether_it_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    from _common import bar

    assert bar("x", 3.0, 3.0)
    assert not bar("x", float("nan"), 3.0)
    assert capsys.readouterr().out == "bar x 3 3 pass\nbar x nan 3 fail\n"


def _run(script: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / script), *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert BAR.search(done.stdout), done.stdout
    return done.stdout


TINY = ("--model", "household-tiny")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("rollouts.py", (*TINY, "--turns", "2", "3", "--size", "2", "--rounds", "1")),
        ("rescoring.py", (*TINY, "--hint", "40", "--length", "96", "--size", "2")),
        ("memory.py", (*TINY, "--length", "128", "--actions", "16")),
        ("environments.py", ("--games", "1", "3", "--turns", "3", "--rounds", "1")),
        ("growth.py", ("--turns", "1", "2", "--size", "1", "2", "--prompt", "32", "--rounds", "1")),
    ],
)
def test_scripts_end_with_bars(script: str, flags: tuple[str, ...]) -> None:
    _run(script, *flags)


@pytest.mark.slow
def test_an_update_with_and_without_everything_is_the_same() -> None:
    out = _run("update.py", "--parts", "same")
    assert "bar d-same-numbers 1 1 pass" in out


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="make bench installs TRL")
def test_trl_plays_several_turns(tmp_path: Path) -> None:
    import _trl_peer
    from _common import Job

    _trl_peer.quiet()
    wanted = Job(size=2, turns=2, prompt=60, observe=40, act=8)
    peer = _trl_peer.Peer("household-tiny", wanted, checkpointing=False, folder=tmp_path)
    peer.update()
    job = peer.job_played()
    assert (job.turns, job.size) == (2, 2)
    assert job.observe > 0
    peer.update()
    peer.check(job)
    with pytest.raises(RuntimeError, match="TRL played"):
        peer.check(replace(job, prompt=1))
