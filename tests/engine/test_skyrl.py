"""SkyRL, a real Tinker server by other people, on this CPU: `make test-engine`.

A generated tiny Qwen3 keeps the contract on it, one step of it is `local`'s, and the article's loop
trains the shipped policy on it.
"""

from __future__ import annotations

import asyncio
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker", reason="make test-engine installs it")
pytest.importorskip("skyrl", reason="make test-engine installs it")
pytest.importorskip("torch", reason="make test-engine installs it")

from safetensors.numpy import load_file
from skyrl_rig import RANK, household_tiny, skyrl, tiny_qwen3

from turncredit.backends import local, tinker
from turncredit.backends.check import Subject, check_backend
from turncredit.backends.hosted.probe import Probed, probe
from turncredit.backends.selfcheck import example_prompt
from turncredit.cli.main import main as turncredit
from turncredit.core.calls import AdamParams
from turncredit.core.clients import Backend, SamplingClient, TrainingClient
from turncredit.core.datum import Datum

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A generated Qwen3 and the server that has it."""
    folder = tmp_path_factory.mktemp("qwen")
    model = tiny_qwen3(folder / "model")
    with skyrl(model, folder / "server") as url:
        yield model, url


def _backend(served: tuple[Path, str], **settings: Any) -> Any:
    model, url = served
    config = tinker.Config(base_model=str(model), base_url=url, lora_rank=RANK, **settings)
    return tinker.create(config)


async def _probed(backend: Any, folder: Path) -> Probed:
    return await probe(backend, loss_fn="ppo", folder=str(folder))


def test_the_probe_finds_what_this_server_does_otherwise(
    qwen: tuple[Path, str], tmp_path: Path
) -> None:
    async def main() -> None:
        backend = _backend(qwen)
        found = await _probed(backend, tmp_path)
        await backend.aclose()
        print(found)
        assert found.alignment == "without the first"
        assert found.reduction == "sequence_mean"
        assert found.clip == "honoured"
        assert found.temperature == "raw"
        assert found.snapshots == "overwriting"
        assert found.sample_vs_score < 1e-4

    asyncio.run(main())


def test_it_keeps_the_contract(qwen: tuple[Path, str], tmp_path: Path) -> None:
    async def main() -> None:
        backend = _backend(qwen, loss_reduction="sequence_mean")
        promised = replace(backend.capabilities(), immutable_snapshots=False)
        backend.capabilities = lambda: promised
        results = await check_backend(backend, tmp_path)
        await backend.aclose()
        for result in results:
            print(f"{'passed' if result.passed else 'FAILED'}  {result.name}   ({result.detail})")
        assert [(r.name, r.detail) for r in results if not r.passed] == []

    asyncio.run(main())


async def _scores(client: SamplingClient, tokens: list[int]) -> np.ndarray:
    return (await client.compute_logprobs(tokens)).logprobs[1:]


# ── one step, here and there ─────────────────────────────────────────────────────────────────

_STEP = AdamParams(learning_rate=1e-3, eps=1e-3, grad_clip_norm=0.0)  # scale shows in it


def _adapter(served_by: Path, path: str, folder: Path) -> Path:
    """The PEFT adapter behind a URI of this server's, which keeps it as an archive."""
    run, name = re.fullmatch(r"tinker://([^/]+)/(?:sampler_weights/)?([^/]+)", path).groups()
    archive = served_by / "checkpoints" / run / "sampler_weights" / f"{name}.tar.gz"
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


def _delta(before: Path, after: Path) -> dict[str, np.ndarray]:
    old, new = (load_file(folder / "adapter_model.safetensors") for folder in (before, after))
    return {name: new[name] - old[name] for name in old}


async def _one_step(
    backend: Backend, training: TrainingClient, rows: list[Datum]
) -> tuple[list[np.ndarray], str]:
    """Log-probs of the rows before and after an update with them, and the weights it made."""
    out = await training.forward_backward(rows, loss_fn="ppo")
    await training.optim_step(_STEP)
    client = await training.save_weights_and_get_sampling_client()
    after = [await _scores(client, row.tokens.tolist()) for row in rows]
    path = await training.save_weights_for_sampler("after")
    return [*(new[1:] for new in out.logprobs), *after], path


def test_one_step_is_that_of_local(qwen: tuple[Path, str], tmp_path: Path) -> None:
    """From the same adapter: log-probs within 1e-5, every parameter's change within 1e-4."""

    async def main() -> None:
        model, server = qwen[0], qwen[0].with_name("server")
        backend = _backend(qwen, loss_reduction="sequence_mean")
        training = await backend.create_training_client(seed=0, save_dir="")
        client = await training.save_weights_and_get_sampling_client()
        subject = Subject(backend, example_prompt(backend.get_tokenizer()), tmp_path, 1e-4)
        group = await subject.group(client, 7, 3)
        rows = [subject.datum(one, a) for one, a in zip(group, (0.3, -0.2, 0.1), strict=True)]
        start = await training.save_weights_for_sampler("before")
        found, end = await _one_step(backend, training, rows)
        await backend.aclose()

        before = _adapter(server, start, tmp_path / "before")
        config = local.Config(base_model=str(model), lora_rank=RANK, threads=1, dtype="float32")
        own = local.create(config)
        other = await own.create_training_client(
            seed=0, save_dir=str(tmp_path / "own"), from_weights=str(before)
        )
        wanted, end_own = await _one_step(own, other, rows)
        for n, (got, want) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_allclose(got, want, atol=1e-5 if n < len(rows) else 1e-4)
        moved = _delta(before, _adapter(server, end, tmp_path / "after"))
        expected = _delta(before, Path(end_own))
        assert set(moved) == set(expected)
        largest = max(float(np.abs(moved[name] - expected[name]).max()) for name in moved)
        sizes = np.concatenate([np.abs(delta).ravel() for delta in expected.values()])
        print(f"parameters moved by up to {sizes.max():.2e}, apart by {largest:.1e}")
        assert largest <= 1e-4
        # A step is lr g / (|g| + eps): between the extremes a wrong scale of g would have shown.
        assert ((sizes > 2e-4) & (sizes < 8e-4)).sum() > 100

    asyncio.run(main())


# ── the article's loop ───────────────────────────────────────────────────────────────────────


def test_the_articles_loop_trains_resumes_and_evaluates(tmp_path: Path) -> None:
    """Its smoke command with more games, on household and the shipped policy; then two more."""
    model = household_tiny(tmp_path / "model")
    with skyrl(model, tmp_path / "server") as url:
        backend = [
            *("--backend", "tinker", "--base-url", url, "--base-model", str(model)),
            *("--lora-rank", str(RANK)),
        ]
        words = [
            *("--recipe", "household-agentopsd", *backend, "--max-steps", "1"),
            *("--tasks-per-update", "3", "--group-size", "4", "--max-turns", "8"),
            *("--teacher-concurrency", "4", "--save-every", "1", "--seed", "3"),
            *("--run-name", "smoke", "--runs-dir", str(tmp_path), "--swanlab-mode", "disabled"),
        ]
        assert turncredit(["train", *words]) == 0
        run = tmp_path / "smoke"
        assert turncredit(["train", "--resume", str(run), "--max-steps", "2"]) == 0
        out = str(tmp_path / "eval.jsonl")
        play = ["--limit-per-split", "1", "--max-turns", "4", "--output", out]
        weights = ["--model-path", str(run)]
        assert turncredit(["eval", "--env", "household", *backend, *weights, *play]) == 0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    assert [row["step"] for row in metrics] == [1, 2]
    assert any(row.get("train/rows", 0) > 0 for row in metrics)
    assert all(row.get("mismatch/sample_vs_score_max", 0.0) < 1e-3 for row in metrics)
