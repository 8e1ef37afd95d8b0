"""The wheel as a whole, on the toy with the exact table policy.

Guaranteed here: resuming from any save point repeats the uninterrupted run bit for bit; a control
with reshape_lambda 0 is GRPO; what cannot work is refused before anything runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turncredit import config
from turncredit.backends import tabular
from turncredit.cli.train import begin, reopen, train
from turncredit.core.errors import ConfigError, DataError, EnvError
from turncredit.loop.listener import Listener
from turncredit.record.runlog import RunFolder

STEPS = 4
SIZE = {"max_steps": STEPS, "tasks_per_update": 2, "group_size": 4, "save_every": 1}
BASE = config.merge(config.read_recipe("toy-agentopsd"), {"schedule": SIZE})


def run(tmp_path: Path, name: str, **changes: dict) -> RunFolder:
    schedule = {"schedule": {"runs_dir": str(tmp_path), "run_name": name}}
    settings = config.build(config.merge(BASE, schedule, changes))
    folder = begin(settings)
    train(settings, folder, Listener())
    return folder


def numbers(folder: RunFolder) -> list[dict[str, float]]:
    """All metrics that are not wall-clock."""
    return [{k: v for k, v in row.items() if "time/" not in k} for row in folder.metrics()]


def weights(folder: RunFolder) -> bytes:
    path = Path(folder.resolve(folder.checkpoints()[-1]["state"]))
    with np.load(path) as state:
        return b"".join(name.encode() + state[name].tobytes() for name in sorted(state.files))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("runs"), "straight")


def test_a_run_records_every_step(straight: RunFolder) -> None:
    rows = straight.metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert straight.trajectory_steps() == [1, 2, 3, 4]
    assert [row["step"] for row in straight.checkpoints()] == [1, 2, 3, 4]
    for prefix in ("reward/", "trajectory/", "advantage/", "opsd/", "tokens/", "train/", "time/"):
        assert any(name.startswith(prefix) for name in rows[0]), prefix


def test_two_runs_with_one_seed_are_one_run(straight: RunFolder, tmp_path: Path) -> None:
    again = run(tmp_path, "again")
    assert numbers(again) == numbers(straight)
    assert weights(again) == weights(straight)
    other = run(tmp_path, "other", schedule={"seed": 43})
    assert numbers(other) != numbers(straight)


@pytest.mark.parametrize("saved", range(STEPS))
def test_resume_from_any_save_point_is_exact(
    straight: RunFolder, tmp_path: Path, saved: int
) -> None:
    """As after a kill: records beyond the checkpoint, one line torn, a checkpoint half written."""
    path = tmp_path / "resumed"
    shutil.copytree(straight.path, path)
    lines = (path / "checkpoints.jsonl").read_text().splitlines(keepends=True)
    (path / "checkpoints.jsonl").write_text("".join(lines[:saved]))
    for later in range(saved + 2, STEPS + 1):
        shutil.rmtree(path / "checkpoints" / f"step-{later:06d}")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')
    folder, settings = reopen(path, {})
    with pytest.warns(UserWarning, match="torn last line"):
        train(settings, folder, Listener())
    assert numbers(folder) == numbers(straight)
    assert weights(folder) == weights(straight)
    assert folder.trajectory_steps() == [1, 2, 3, 4]


def test_a_finished_run_resumes_to_nothing_and_can_be_extended(
    straight: RunFolder, tmp_path: Path
) -> None:
    path = tmp_path / "more"
    shutil.copytree(straight.path, path)
    folder, settings = reopen(path, {"max_steps": STEPS + 1})
    train(settings, folder, Listener())
    longer = run(tmp_path, "longer", schedule={"max_steps": STEPS + 1})
    assert numbers(folder) == numbers(longer)
    assert weights(folder) == weights(longer)


def test_kill_nine_and_resume(straight: RunFolder, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "turncredit.cli.main", "train"]
    flags = ["--runs-dir", str(tmp_path), "--run-name", "killed", "--recipe", "toy-agentopsd"]
    flags += ["--max-steps", "4", "--tasks-per-update", "2", "--group-size", "4"]
    flags += ["--save-every", "1"]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)
    path = tmp_path / "killed"
    deadline = time.monotonic() + 60
    while not (path / "checkpoints.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run([*command, "--resume", str(path)], check=True, stderr=subprocess.DEVNULL)
    assert numbers(RunFolder.open(path)) == numbers(straight)
    assert weights(RunFolder.open(path)) == weights(straight)


def test_the_control_with_lambda_zero_is_grpo(tmp_path: Path) -> None:
    control = run(tmp_path, "control", method={"reshape_lambda": 0.0})
    grpo = run(tmp_path, "grpo", method={"name": "grpo"}, hint={"name": "none"})
    assert weights(control) == weights(grpo)
    rewards = [row["reward/mean"] for row in control.metrics()]
    assert rewards == [row["reward/mean"] for row in grpo.metrics()]


def test_arms_play_the_same_games_with_the_same_seeds(tmp_path: Path) -> None:
    arms = [
        run(tmp_path, "a", schedule={"max_steps": 2}),
        run(tmp_path, "b", schedule={"max_steps": 2}, method={"name": "grpo"}),
    ]
    played = [
        [
            (t.task.id, t.member, t.seed)
            for step in (1, 2)
            for recorded in arm.read_trajectories(step)
            for t in recorded.group.trajectories
        ]
        for arm in arms
    ]
    assert played[0] == played[1]


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("schedule", {"group_size": 1}, "zero advantage"),
        ("rollout", {"temperature": 0.7}, "training needs 1"),
        ("rollout", {"top_p": 0.9}, "training needs 1"),
        ("optim", {"ppo_clip_low": 0.2}, ""),
        ("optim", {"ppo_clip_high": 0.24}, "bounds of the ratio"),
        ("hint", {"name": "none"}, "needs a teacher"),
        ("schedule", {"gruop_size": 4}, 'Did you mean "group_size"'),
        ("method", {"name": "agentospd"}, 'Did you mean "agentopsd"'),
        ("schedle", {}, 'Did you mean "schedule"'),
        ("schedule", {"max_steps": "4"}, "whole number"),
    ],
)
def test_what_cannot_work_is_refused(section: str, values: dict, words: str) -> None:
    layers = config.merge(BASE, {section: values})
    if not words:
        config.build(layers)
        return
    with pytest.raises(ConfigError, match=words):
        config.build(layers)


def test_a_remote_backend_that_cannot_be_tried_out_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabular, "CAPABILITIES", replace(tabular.CAPABILITIES, remote=True))
    with pytest.raises(ConfigError, match="says that it is remote"):
        run(tmp_path, "far")


def test_a_split_smaller_than_an_update_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tasks_per_update"):
        run(tmp_path, "wide", schedule={"tasks_per_update": 1_000_000})


def test_an_existing_run_is_not_overwritten(straight: RunFolder) -> None:
    settings = config.build(straight_config(straight))
    with pytest.raises(ConfigError, match="--overwrite"):
        begin(settings)


def test_resume_takes_no_other_settings(straight: RunFolder) -> None:
    with pytest.raises(ConfigError, match="--gamma"):
        reopen(straight.path, {"gamma": 0.5})
    with pytest.raises(DataError, match="no run folder"):
        reopen(straight.path / "nothing", {})


def straight_config(folder: RunFolder) -> dict:
    saved = folder.config()
    saved.pop("digest")
    return saved


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_stays_flat_over_200_updates(tmp_path: Path) -> None:
    resident = []

    class Watch(Listener):
        def step(self, step: int, metrics: object) -> None:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

    name = {"runs_dir": str(tmp_path), "run_name": "long", "max_steps": 200, "save_every": 50}
    settings = config.build(config.merge(BASE, {"schedule": {**name, "tasks_per_update": 1}}))
    train(settings, begin(settings), Watch())
    assert len(resident) == 200
    assert resident[-1] - resident[49] < 8, "MiB gained over the last 150 updates"


def test_a_run_without_any_signal_ends_well(tmp_path: Path) -> None:
    """The log-prob check at the start leaves nothing that a save could trip over."""
    deaf = {"max_action_tokens": 1, "max_turns": 1}  # no action is ever complete: all fail alike
    folder = run(tmp_path, "deaf", rollout=deaf, method={"name": "grpo"}, hint={"name": "none"})
    assert all(row["train/skipped"] == 1.0 for row in folder.metrics())
    assert [row["step"] for row in folder.checkpoints()] == [1, 2, 3, 4]


def test_an_environment_that_always_breaks_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "broken_env.py").write_text(
        "from turncredit.core.errors import EnvError\n"
        "from turncredit.envs import toy\n"
        "class Env:\n"
        "    def __init__(self):\n"
        "        self.toy = toy.create(toy.Config())\n"
        "    def __getattr__(self, name):\n"
        "        return getattr(self.toy, name)\n"
        "    def episode(self, task):\n"
        "        raise EnvError('no key fits')\n"
    )
    env = {"env": {"name": "broken_env:Env"}}
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(EnvError, match=r"all 8 trajectories.*no key fits"):
            run(tmp_path, "broken", **env)
    finally:
        sys.path.remove(str(tmp_path))
