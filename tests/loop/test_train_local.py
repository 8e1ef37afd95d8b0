"""The wheel on the shipped policy: a real network resumes bit for bit, and the control is GRPO."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from turncredit import config
from turncredit.cli.train import begin, reopen, train
from turncredit.loop.listener import Listener
from turncredit.record.runlog import RunFolder

pytest.importorskip("torch", reason="pip install 'turncredit[local]'")
STEPS = 3
SIZE = {"max_steps": STEPS, "tasks_per_update": 2, "group_size": 3, "save_every": 1}


LONGER = {"max_turns": 14}


def run(tmp_path: Path, recipe: str, changes: dict | None = None, /, **method: float) -> RunFolder:
    layers = [
        config.read_recipe(recipe),
        {"schedule": {**SIZE, "runs_dir": str(tmp_path), "run_name": "run"}},
        {"rollout": {"max_turns": 6}, "optim": {"learning_rate": 1e-3}, "method": method},
        changes or {},
    ]
    settings = config.build(config.merge(*layers))
    folder = begin(settings)
    train(settings, folder, Listener())
    return folder


def numbers(folder: RunFolder) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if "time/" not in k} for row in folder.metrics()]


def weights(folder: RunFolder) -> dict[str, bytes]:
    """Every file of the last saved state: weights, both moments of the optimizer, counters."""
    state = Path(folder.resolve(folder.checkpoints()[-1]["state"]))
    return {path.name: path.read_bytes() for path in sorted(state.glob("*.safetensors"))}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("local"), "household-agentopsd")


def test_it_trains(straight: RunFolder) -> None:
    rows = straight.metrics()
    assert any(row["train/skipped"] == 0 for row in rows), "no group had both outcomes"
    assert rows[0]["mismatch/sample_vs_score_max"] < 1e-3
    assert rows[0]["opsd/evidence_noise"] < 1e-3


@pytest.mark.parametrize("saved", range(STEPS))
def test_resume_is_bit_exact(straight: RunFolder, tmp_path: Path, saved: int) -> None:
    folder = cut(straight, tmp_path / "resumed", saved)
    assert numbers(folder) == numbers(straight)
    assert weights(folder) == weights(straight)


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


def test_lambda_zero_is_grpo_to_the_last_bit(tmp_path: Path) -> None:
    control = run(tmp_path / "control", "household-agentopsd", reshape_lambda=0.0)
    grpo = run(tmp_path / "grpo", "household-grpo")
    assert weights(control) == weights(grpo)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_resume_one_update_ahead_is_bit_exact(tmp_path: Path) -> None:
    """A rollout is kept whole: played beside training, it need not be the same to the bit."""
    wide = {"tasks_per_update": 4, "group_size": 4, "seed": 11, "async_level": 1}
    straight = run(tmp_path, "household-agentopsd", {"schedule": wide, "rollout": LONGER})
    assert any(row.get("train/approx_kl", 0.0) > 1e-3 for row in straight.metrics())
    for saved in (1, 2):
        folder = cut(straight, tmp_path / f"cut{saved}", saved)
        assert numbers(folder) == numbers(straight)
        assert weights(folder) == weights(straight)
