"""Weights of another run: which path means which, and how well they did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from turncredit.core.errors import DataError
from turncredit.loop.weights import recorded_success, sampler_weights
from turncredit.record.runlog import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Nine updates with success 0.1 to 0.9; checkpoints after 4 and 8."""
    folder = RunFolder.create(tmp_path / "run")
    folder.write_environment({})
    folder.write_config({})
    for step in range(1, 10):
        folder.append_metrics(step, {"reward/success_rate": step / 10})
    for step in (4, 8):
        place = folder.checkpoint_path(step) / "sampler"
        place.mkdir(parents=True)
        (place.parent / "state").mkdir()
        folder.append_checkpoint(step, {"state": "", "sampler": folder.relative(str(place))})
    return folder


def test_a_run_means_its_newest_checkpoint(run: RunFolder) -> None:
    assert sampler_weights(run.path) == str(run.checkpoint_path(8) / "sampler")
    with (run.path / "checkpoints.jsonl").open("a") as file:
        file.write('{"step": 12, "samp')  # torn: never announced
    assert sampler_weights(run.path) == str(run.checkpoint_path(8) / "sampler")


def test_a_checkpoint_means_the_sampler_in_it(run: RunFolder, tmp_path: Path) -> None:
    assert sampler_weights(run.checkpoint_path(4)) == str(run.checkpoint_path(4) / "sampler")
    table = tmp_path / "step" / "sampler.npz"
    table.parent.mkdir()
    table.write_bytes(b"")
    assert sampler_weights(table.parent) == str(table)


def test_weights_mean_themselves(run: RunFolder, tmp_path: Path) -> None:
    for place in (str(run.checkpoint_path(4) / "sampler"), "service://run/weights/7"):
        assert sampler_weights(place) == place
    model = tmp_path / "model"  # a model's folder has a config.json of its own
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert sampler_weights(model) == str(model)


@pytest.mark.parametrize(
    ("damage", "place", "words"),
    [
        (lambda run: None, "ru", 'Did you mean "run"'),
        (lambda run: None, "nothing/at/all", "no such folder"),
        (lambda run: None, "run/checkpoints/step-000004/state", "step-000004/sampler"),
        (lambda run: (run.path / "checkpoints.jsonl").unlink(), "run", "no checkpoint yet"),
        (
            lambda run: (run.path / "checkpoints.jsonl").write_text('{"step": 4}\n'),
            "run",
            "names no sampler",
        ),
        (lambda run: (run.checkpoint_path(8) / "sampler").rmdir(), "run", "is gone.*from 4"),
    ],
)
def test_what_names_no_weights_is_answered(
    damage: Callable[[RunFolder], object], place: str, words: str, run: RunFolder, tmp_path: Path
) -> None:
    damage(run)
    with pytest.raises(DataError, match=words):
        sampler_weights(tmp_path / place)


def test_success_is_that_of_the_last_five_updates_of_those_weights(run: RunFolder) -> None:
    assert recorded_success(run.path) == pytest.approx((0.4 + 0.5 + 0.6 + 0.7 + 0.8) / 5)
    first = (0.1 + 0.2 + 0.3 + 0.4) / 4
    assert recorded_success(run.checkpoint_path(4)) == pytest.approx(first)
    assert recorded_success(run.checkpoint_path(4) / "sampler") == pytest.approx(first)


def test_success_of_weights_from_elsewhere_is_unknown(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert recorded_success(tmp_path / "model") is None
    assert recorded_success("service://run/weights/7") is None
    (run.path / "metrics.jsonl").write_text('{"step": 1, "sft/loss": 0.5}\n')
    assert recorded_success(run.path) is None
