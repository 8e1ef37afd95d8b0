"""The genuine PyTRIO SDK against a loopback service whose maths is the `local` backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pytrio", reason="the extra pytrio is not installed")
pytest.importorskip("torch")

from pytrio_rig import trio  # noqa: F401 (its import settles how tokenizers are opened)

from turncredit.backends import local, pytrio
from turncredit.backends.check import check_backend
from turncredit.backends.loopback.http import Server
from turncredit.backends.loopback.muscle import Quirks
from turncredit.backends.loopback.pytrio import Service, serve
from turncredit.backends.selfcheck import example_prompt
from turncredit.cli.main import main as turncredit
from turncredit.core.datum import Datum
from turncredit.core.protocols import AdamParams, Backend, SamplingParams

RANK = 8
_REDUCTION = "token_mean"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Service]]:
    muscle = local.create(local.Config(lora_rank=RANK, threads=1))
    folder = tmp_path_factory.mktemp("service")
    server, service = serve(muscle, folder, quirks=Quirks(reduction=_REDUCTION))
    with server:
        yield server, service


def _backend(server: Server) -> pytrio.backend.PytrioBackend:  # type: ignore[name-defined]
    return pytrio.create(
        pytrio.Config(
            base_model="household-tiny",
            base_url=server.url,
            lora_rank=RANK,
            loss_reduction=_REDUCTION,
        )
    )


async def _one_step(backend: Backend, data: list[Datum], folder: Path) -> list[np.ndarray]:
    training = await backend.create_training_client(seed=5, save_dir=str(folder))
    before = await training.forward_backward(data, loss_fn="ppo")
    await training.optim_step(AdamParams(learning_rate=1e-3, eps=1e-3))
    client = await training.save_weights_and_get_sampling_client()
    after = [(await client.compute_logprobs(row.tokens.tolist())).logprobs for row in data]
    return [*(new[1:] for new in before.logprobs), *(new[1:] for new in after)]


def test_one_step_is_that_of_local(running: tuple[Server, Service], tmp_path: Path) -> None:
    """Log-probs within 1e-5, and after a step with a large eps, where scale shows, 1e-4."""

    async def main() -> None:
        own = local.create(local.Config(lora_rank=RANK, threads=1))
        prompt = example_prompt(own.get_tokenizer())
        client = await own.create_sampling_client()
        params = SamplingParams(max_tokens=8, stop_ids=own.get_tokenizer().eos_ids)
        sampled = (await client.sample(prompt, params=params, num_samples=3)).samples
        data = []
        for n, sample in enumerate(sampled):
            tokens = np.array([*prompt, *sample.tokens])
            mask = np.arange(len(tokens)) >= len(prompt)
            logprobs = np.zeros(len(tokens))
            logprobs[mask] = sample.logprobs
            data.append(
                Datum(tokens=tokens, logprobs=logprobs, advantages=(n - 0.5) * mask, mask=mask)
            )
        wanted = await _one_step(own, data, tmp_path / "own")
        backend = _backend(running[0])
        found = await _one_step(backend, data, tmp_path / "other")
        await backend.aclose()
        for n, (got, want) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_allclose(got, want, atol=1e-5 if n < len(data) else 1e-4)
        moved = np.abs(wanted[len(data)] - wanted[0])[data[0].mask[1:]].max()
        assert moved > 1e-2  # so that a wrong scale would have shown

    asyncio.run(main())


@pytest.mark.slow
def test_it_keeps_the_contract_on_a_model(running: tuple[Server, Service], tmp_path: Path) -> None:
    async def main() -> None:
        backend = _backend(running[0])
        promised = replace(backend.capabilities(), exact_resume=True)
        backend.capabilities = lambda: promised  # type: ignore[method-assign]
        results = await check_backend(backend, tmp_path)
        assert [f"{r.name}: {r.detail}" for r in results if not r.passed] == []
        await backend.aclose()

    asyncio.run(main())


@pytest.mark.slow
def test_train_resume_and_evaluate_by_the_command_line(
    running: tuple[Server, Service], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The article's smoke command, translated: same flags, household games, a tiny model."""
    server, service = running
    backend = [
        *("--backend", "pytrio", "--base-model", "household-tiny", "--base-url", server.url),
        *("--lora-rank", str(RANK)),
    ]
    common = [
        *("--recipe", "household-agentopsd", *backend, "--loss-reduction", _REDUCTION),
        *("--tasks-per-update", "3", "--group-size", "4", "--max-turns", "6", "--save-every", "1"),
        *("--seed", "3", "--run-name", "smoke", "--runs-dir", str(tmp_path)),
    ]
    before = len(service.actor.applied)
    assert turncredit(["train", *common, "--max-steps", "1"]) == 0
    run = str(tmp_path / "smoke")
    assert turncredit(["train", "--resume", run, "--max-steps", "2"]) == 0
    made = [kind for _, kind in service.actor.applied[before:]]
    assert 1 <= made.count("trainer.optimize_step") <= 2
    rows = (tmp_path / "smoke" / "checkpoints.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in rows]
    assert [record["step"] for record in records] == [1, 2]
    assert all(record["state"].startswith("trio://") for record in records)
    weights = records[-1]["sampler"]
    out = str(tmp_path / "eval.jsonl")
    play = ["--limit-per-split", "1", "--max-turns", "4", "--output", out]
    assert turncredit(["eval", "--env", "household", *backend, "--model-path", weights, *play]) == 0
