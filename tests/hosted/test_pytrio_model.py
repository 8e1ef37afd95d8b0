"""The genuine PyTRIO SDK against a loopback service whose maths is the `local` backend."""

from __future__ import annotations

import asyncio
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
from turncredit.core.calls import AdamParams, SamplingParams
from turncredit.core.clients import Backend
from turncredit.core.datum import Datum

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
