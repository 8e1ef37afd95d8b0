"""Our engine against TextWorld itself. Slow, and needs the textworld extra."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from turncredit.core.errors import EnvError
from turncredit.envs import alfworld
from turncredit.envs.check import check_environment
from turncredit.envs.household import files
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.generator import generate, to_file_json
from turncredit.envs.household.verify import Tally, compare
from turncredit.envs.textworld_engine import Pool, TextWorldPlayer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
pytest.importorskip("textworld", reason="pip install 'turncredit[textworld]'")


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(2, 300.0)
    yield pool
    pool.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def compared(pool: Pool, paths: list[Path], steps: int) -> Tally:
    async def one(path: Path, tally: Tally) -> None:
        loaded = files.read(path)
        await compare(
            str(path), loaded, TextWorldPlayer(pool, path), Random(str(path)), steps, tally
        )

    async def every() -> Tally:
        tally = Tally()
        await asyncio.gather(*(one(path, tally) for path in paths))
        return tally

    return asyncio.run(every())


def test_official_games(official_games: Path, pool: Pool) -> None:
    rng, paths = Random(7), []
    for split in ("train", "valid_seen", "valid_unseen"):
        games = files.discover(official_games, split).games
        for task_type in TASK_TYPES:
            paths.append(rng.choice([g.path for g in games if g.task_type == task_type]))
    paths += [g.path for g in rng.sample(files.discover(official_games, "train").games, 3)]
    tally = compared(pool, paths, steps=60)
    assert tally.differences == []
    assert (tally.games, tally.steps) == (21, 21 * 60)
    assert {"take", "move", "open", "use", "examine", "go", "look"} <= set(tally.kinds)


@pytest.mark.parametrize("own_rules", [True, False])
def test_generated_games(tmp_path: Path, pool: Pool, own_rules: bool) -> None:
    """Also without domain and grammar of their own: those of the installed alfworld serve."""
    paths = []
    for seed, task_type in enumerate(TASK_TYPES):
        size = "full" if seed % 2 else "small"
        data = to_file_json(generate(task_type, seed, split="valid_unseen", size=size))
        if not own_rules:
            del data["pddl_domain"]
            data["grammar"] = json.dumps(
                {"task": "Your task is to: look at cd under the desklamp."}
            )
        paths.append(tmp_path / f"{seed}.tw-pddl")
        paths[-1].write_text(json.dumps(data))
    assert compared(pool, paths, steps=40).differences == []


def test_conformance_of_the_environment_on_textworld(tmp_path: Path) -> None:
    for seed in range(2):
        made = generate(TASK_TYPES[seed], seed, split="train", size="small")
        path = tmp_path / "train" / TASK_TYPES[seed] / f"trial_{seed}" / files.FILE_NAME
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(to_file_json(made)))
    config = alfworld.Config(data_root=str(tmp_path), engine="textworld", textworld_workers=2)
    one, two = alfworld.create(config), alfworld.create(config)
    try:
        results = asyncio.run(check_environment(one, twin=two))
    finally:
        one.close()
        two.close()
    assert [result for result in results if not result.passed] == []


def test_a_killed_worker_is_named_at_once_and_replaced(official_games: Path, pool: Pool) -> None:
    path = files.discover(official_games, "valid_seen").games[0].path

    async def scene() -> tuple[int, float, str]:
        player = TextWorldPlayer(pool, path)
        await player.open()
        [pid] = pool.pids()
        os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(EnvError) as error:
            await player.act("look")
        took = time.monotonic() - start
        await player.close()
        again = TextWorldPlayer(pool, path)
        await again.open()
        await again.close()
        return pid, took, str(error.value)

    pid, took, message = asyncio.run(scene())
    assert took < 5
    assert f"worker {pid} died (signal 9)" in message
    assert pool.pids()
    assert pid not in pool.pids()
    pids = pool.pids()
    pool.close()
    assert not any(alive(p) for p in pids)


def test_a_slow_step_is_ended_with_a_named_cause(official_games: Path) -> None:
    path = files.discover(official_games, "valid_seen").games[0].path
    pool = Pool(1, 0.01)  # no load is that fast

    async def scene() -> str:
        player = TextWorldPlayer(pool, path)
        with pytest.raises(EnvError) as error:
            await player.open()
        await player.close()
        return str(error.value)

    message = asyncio.run(scene())
    assert "no answer to load" in message
    assert "within 0.01 s" in message
    assert pool.pids() == []


def test_workers_end_with_their_parent(official_games: Path) -> None:
    path = files.discover(official_games, "valid_seen").games[0].path
    script = (
        "import asyncio, os, sys, time\n"
        "from pathlib import Path\n"
        "from turncredit.envs.textworld_engine import Pool, TextWorldPlayer\n"
        "pool = Pool(1, 300)\n"
        "asyncio.run(TextWorldPlayer(pool, Path(sys.argv[1])).open())\n"
        "print(*pool.pids(), flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(pid)
