"""Rollouts one update ahead, on the toy with the exact table policy.

Guaranteed here: who samples, who scores and what is trained are of the snapshots the page on
training says; a run killed anywhere goes on to the bit; nothing is left running.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from turncredit import config
from turncredit.backends import tabular
from turncredit.cli.train import begin, reopen, train
from turncredit.core.errors import ConfigError, DataError, EnvError
from turncredit.envs import toy
from turncredit.loop import parts
from turncredit.loop.listener import Listener
from turncredit.record.runlog import RunFolder

STEPS = 4
SIZE = {"max_steps": STEPS, "tasks_per_update": 2, "group_size": 4, "save_every": 1}


def settings_of(method: str, folder: Path, name: str, /, **changes: Mapping) -> config.Run:
    schedule = {**SIZE, "async_level": 1, "runs_dir": str(folder), "run_name": name}
    layers = [{"schedule": schedule}, {"method": {"name": method}}, changes]
    return config.build(config.merge(config.read_recipe("toy-base"), *layers))


def run(method: str, folder: Path, name: str, /, **changes: Mapping) -> RunFolder:
    settings = settings_of(method, folder, name, **changes)
    made = begin(settings)
    train(settings, made, Listener())
    return made


def weights(folder: RunFolder) -> bytes:
    with np.load(Path(folder.resolve(folder.checkpoints()[-1]["state"]))) as state:
        return b"".join(name.encode() + state[name].tobytes() for name in sorted(state.files))


def numbers(folder: RunFolder) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if "time/" not in k} for row in folder.metrics()]


def cut(straight: RunFolder, path: Path, saved: int) -> RunFolder:
    """The run as a kill after checkpoint `saved` leaves it, resumed."""
    shutil.copytree(straight.path, path)
    lines = (path / "checkpoints.jsonl").read_text().splitlines(keepends=True)
    (path / "checkpoints.jsonl").write_text("".join(lines[:saved]))
    for later in range(saved + 2, STEPS + 1):
        shutil.rmtree(path / "checkpoints" / f"step-{later:06d}")
    folder, settings = reopen(path, {})
    train(settings, folder, Listener())
    return folder


def same(one: RunFolder, other: RunFolder) -> None:
    assert numbers(one) == numbers(other)
    assert weights(one) == weights(other)
    for step in range(1, STEPS + 1):
        file = Path("trajectories") / f"{step:06d}.jsonl.gz"
        assert (one.path / file).read_bytes() == (other.path / file).read_bytes()


CASES = {
    "agentopsd": {},
    "grpo": {},
    "skillsd": {"optim": {"epochs": 2, "minibatches": 2}},
    "dapo": {"schedule": {"group_size": 2}},
    "ucob": {},
    "stale": {"teacher": {"teacher_snapshot": "stale", "refresh_every": 2}},
    "stale always renewed": {"teacher": {"teacher_snapshot": "stale", "refresh_every": 1}},
    "stale from update 3": {
        "teacher": {"teacher_snapshot": "stale", "refresh_every": 3, "teacher_start": 3}
    },
    "initial": {"teacher": {"teacher_snapshot": "initial"}},
    "rescored": {"teacher": {"student_logprobs": "rescored"}},
}


@pytest.mark.parametrize("name", CASES)
def test_a_killed_run_goes_on_to_the_bit(name, tmp_path):
    method = name if name in ("grpo", "skillsd", "dapo", "ucob") else "agentopsd"
    straight = run(method, tmp_path, "straight", **CASES[name])
    # Where a teacher outlives updates, every save point is another case.
    for saved in range(1, STEPS) if name.startswith("stale") else (2,):
        same(cut(straight, tmp_path / f"cut{saved}", saved), straight)


def test_a_finished_run_can_be_extended(tmp_path):
    straight = run("agentopsd", tmp_path, "straight")
    run("agentopsd", tmp_path, "short", schedule={"max_steps": 2})
    folder, settings = reopen(tmp_path / "short", {"max_steps": STEPS})
    train(settings, folder, Listener())
    same(folder, straight)


def test_how_often_it_is_saved_changes_nothing(tmp_path):
    often = run("agentopsd", tmp_path, "often")
    same(run("agentopsd", tmp_path, "seldom", schedule={"save_every": 3}), often)


def snapshots(folder: RunFolder) -> list[set[str]]:
    return [
        {t.snapshot_id for r in folder.read_trajectories(n) for t in r.group.trajectories}
        for n in range(1, STEPS + 1)
    ]


def test_every_update_but_the_first_is_one_behind(tmp_path):
    """Weights after n updates sample update n + 2, and score it."""
    folder = run("agentopsd", tmp_path, "r", teacher={"skip_silent": False})
    sampled = snapshots(folder)
    assert sampled[0] == sampled[1]  # both come from the weights the run begins with
    backend = tabular.create(tabular.Config(table_optimizer="sgd"))

    async def after(n: int) -> str:
        path = folder.resolve(folder.checkpoints()[n - 1]["sampler"])
        return (await backend.create_sampling_client(model_path=path)).snapshot_id

    for n in range(1, STEPS - 1):
        assert sampled[n + 1] == {asyncio.run(after(n))}
    for n in range(1, STEPS + 1):
        for recorded in folder.read_trajectories(n):
            assert {t.teacher_snapshot_id for t in recorded.group.trajectories} == sampled[n - 1]
    assert [row["async/staleness"] for row in folder.metrics()] == [0, 1, 1, 1]
    first, *later = [row.get("train/approx_kl", 0.0) for row in folder.metrics()]
    assert first == 0
    assert any(later)  # what the ratio corrects


def test_level_0_knows_nothing_of_it(tmp_path):
    folder = run("agentopsd", tmp_path, "r", schedule={"async_level": 0})
    assert len({frozenset(ids) for ids in snapshots(folder)}) == STEPS
    assert not any("async" in name for row in folder.metrics() for name in row)
    assert not any("behind" in row for row in folder.checkpoints())
    assert not any(row.get("train/approx_kl") for row in folder.metrics())


def test_the_table_learns_at_level_1(tmp_path):
    size = {"max_steps": 12, "tasks_per_update": 2, "group_size": 8, "save_every": 12}
    one_corridor = {"corridor_colours": 1}
    rows = run("agentopsd", tmp_path, "r", schedule=size, env=one_corridor).metrics()
    first, last = (np.mean([row["reward/mean"] for row in part]) for part in (rows[:3], rows[-3:]))
    assert last > first + 0.3


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("grpo", {"schedule": {"async_level": 2}}, "async_level is 2; use 0"),
        ("sdar", {}, '"sdar", which has no probability ratio.*async_level 0'),
        ("seed", {}, '"opid", which has no probability ratio'),
        ("grpo", {"optim": {"kl_coefficient": 0.1}}, "leave the penalty out"),
        ("agentopsd", {"teacher": {"teacher_snapshot": "average"}}, "teacher_snapshot stale"),
    ],
)
def test_what_needs_present_weights_is_refused(method, changes, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        settings_of(method, tmp_path, "x", **changes)
    changes.setdefault("schedule", {})
    if changes["schedule"].get("async_level") != 2:
        changes["schedule"] = {"async_level": 0}
        settings_of(method, tmp_path, "x", **changes)


@pytest.mark.parametrize(
    ("capabilities", "words"),
    [
        ({"immutable_snapshots": False}, "do not stay"),
        ({"terms": frozenset()}, "a part of the adv"),
    ],
)
def test_a_backend_that_cannot_keep_them_apart_is_refused(
    capabilities, words, tmp_path, monkeypatch
):
    able = dataclasses.replace(tabular.CAPABILITIES, **capabilities)
    monkeypatch.setattr(tabular.TabularBackend, "capabilities", lambda _: able)
    method = "skillsd" if "terms" in capabilities else "grpo"
    with pytest.raises(ConfigError, match=words):
        parts.open_parts(settings_of(method, tmp_path, "x"))


def test_a_lost_rollout_is_missed_by_name(tmp_path):
    folder = run("grpo", tmp_path, "r", schedule={"max_steps": 3})
    path = folder.path / "checkpoints.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    shutil.rmtree(folder.path / "checkpoints" / "step-000003")
    (folder.path / "checkpoints" / "step-000002" / "ahead.jsonl.gz").unlink()
    again, settings = reopen(folder.path, {})
    with pytest.raises(DataError, match=r"ahead.jsonl.gz is missing"):
        train(settings, again, Listener())


class Slow:
    """The toy, whose answers take a moment; counts the episodes that are open."""

    def __init__(self, breaks_at: int = 0) -> None:
        self._toy = toy.create(toy.Config())
        self.open, self.begun, self._breaks_at = 0, 0, breaks_at

    def __getattr__(self, name):
        return getattr(self._toy, name)

    def episode(self, task):
        self.begun += 1
        return Slowly(self, self._toy.episode(task), 0 < self._breaks_at <= self.begun)


class Slowly:
    def __init__(self, env, episode, breaks):
        self._env, self._episode, self._breaks, self._is_open = env, episode, breaks, True
        env.open += 1

    async def start(self):
        if self._breaks:
            raise EnvError("out of order")
        await asyncio.sleep(0.002)
        return await self._episode.start()

    async def act(self, action):
        await asyncio.sleep(0.002)
        return await self._episode.act(action)

    async def close(self):
        self._env.open -= self._is_open
        self._is_open = False
        await self._episode.close()


def slowly(tmp_path, env, listener, **changes):
    settings = settings_of("agentopsd", tmp_path, "r", **changes)
    opened = dataclasses.replace(parts.open_parts(settings), environment=env)
    folder = begin(settings)
    train(settings, folder, listener, opened)
    return folder


class Stop(Listener):
    """Ends the run in the middle of an update, while the next rollout is under way."""

    def __init__(self, env):
        self._env, self.was_open = env, 0

    def phase(self, step, name):
        if (step, name) == (2, "update"):
            self.was_open = self._env.open
            raise KeyboardInterrupt


def test_a_run_that_is_stopped_leaves_nothing_open(tmp_path):
    env = Slow()
    watch = Stop(env)
    with pytest.raises(KeyboardInterrupt):
        slowly(tmp_path, env, watch)
    assert watch.was_open > 0
    assert env.open == 0


def test_an_error_of_the_next_rollout_ends_the_run_after_the_update(tmp_path):
    env = Slow(breaks_at=9)  # update 2 finds the environment broken
    with pytest.raises(EnvError, match="out of order"):
        slowly(tmp_path, env, Listener(), schedule={"save_every": 1})
    folder = RunFolder.open(tmp_path / "r")
    assert [row["step"] for row in folder.checkpoints()] == [1]
    assert env.open == 0


def test_slow_episodes_are_played_beside_the_update(tmp_path):
    """Some of the next rollout's episodes are begun before the update before it is recorded."""
    env, begun = Slow(), []

    class Watch(Listener):
        def step(self, step, metrics):
            begun.append(env.begun)

    slowly(tmp_path, env, Watch())
    assert begun == [16, 24, 32, 32]
