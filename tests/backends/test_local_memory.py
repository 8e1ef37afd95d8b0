"""A cache budget that is too small is told as early as it can be known, and to whom it concerns."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import tiny_models
import torch

from turncredit.backends.local import Config, create
from turncredit.backends.local.backend import LocalBackend
from turncredit.backends.local.passes import Passes
from turncredit.backends.local.policy import Policy
from turncredit.backends.local.trainer import Trainer
from turncredit.cli.main import main
from turncredit.core.calls import AdamParams, SamplingParams
from turncredit.core.clients import SamplingClient
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError
from turncredit.loop.asking import asker, longest_question

BYTES = 2 * 2 * 2 * 8 * 4  # of a token: (k, v) x layers x heads x width x bytes
TINY = 2 * 4 * 2 * 32 * 4  # the same of household-tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_model(tmp_path_factory.mktemp("models") / "llama")


def backend(folder: str, **settings: Any) -> LocalBackend:
    settings = {"base_model": folder, "lora_rank": 0, "device": "cpu", **settings}
    return create(Config(**settings))


def tokens(*results: Any) -> list[tuple[int, ...]]:
    return [result.samples[0].tokens for result in results]


def test_a_request_that_never_fits_fails_alone(folder: str) -> None:
    """Its neighbours in the batch, and whoever comes later, do not hear of it."""

    async def work(positions: int, longest: int) -> list[Any]:
        client = await backend(folder, cache_gib=positions * BYTES / 2**30).create_sampling_client()
        prompts = [[(b + 3 * i) % 200 for i in range(n)] for b, n in enumerate((20, longest, 30))]
        params = SamplingParams(max_tokens=20, seed=3)
        calls = (client.sample(prompt, params=params) for prompt in prompts)
        found = await asyncio.gather(*calls, return_exceptions=True)
        return [*found, await client.sample(prompts[0], params=params)]

    first, refused, other, later = asyncio.run(work(100, 81))
    assert isinstance(refused, BackendError)
    assert "a sequence of 101 tokens" in str(refused)
    assert "Raise --cache-gib" in str(refused)
    plenty, _, *rest = asyncio.run(work(100_000, 81))
    assert tokens(first, other, later) == tokens(plenty, *rest)
    assert tokens(*asyncio.run(work(100, 80)))  # exactly what fits is played


def test_what_fits_is_known_before_anything_is_loaded(folder: str, tmp_path: Path) -> None:
    def longest(model: str, **settings: Any) -> int | None:
        found = backend(model, cache_gib=1000.5 * BYTES / 2**30, **settings)
        room = found.capabilities().max_sample_len
        assert not found._engines
        return room

    assert longest(folder) == 1000
    assert longest(folder, dtype="bfloat16", lora_rank=4) == 2001
    windowed = tiny_models.write_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mistral", "sliding_window": 64, "architectures": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert longest(windowed) is None  # its cache does not grow for ever
    config |= {"model_type": "cohere2", "layer_types": ["full_attention", "sliding_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert longest(windowed) == 2001
    assert longest("no-such/model-on-a-hub") is None


def test_what_is_foretold_is_what_the_loaded_model_has(folder: str) -> None:
    async def work() -> None:
        found = backend(folder, cache_gib=100.5 * BYTES / 2**30)
        client = await found.create_sampling_client()
        room = found.capabilities().max_sample_len
        assert room == 100
        slots = client._engine.decoder.slots
        slots.check(room)
        with pytest.raises(BackendError):
            slots.check(room + 1)

    asyncio.run(work())


def test_a_run_that_cannot_be_sampled_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--recipe", "household-agentopsd", "--runs-dir", str(tmp_path / "runs")]
    words += ["--max-trajectory-tokens", "1000", "--cache-gib", str(999.5 * TINY / 2**30)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "max_trajectory_tokens=1000, but the cache budget holds 999 tokens" in said
    assert "raise --cache-gib" in said
    assert not (tmp_path / "runs").exists()


def test_nor_does_an_evaluation_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out" / "games.jsonl"
    words = ["eval", "--env", "household", "--backend", "local", "--output", str(file)]
    words += ["--eval-games-per-split", "1", "--limit-per-split", "1"]
    tight = ["--cache-gib", str(600.5 * TINY / 2**30)]
    assert main([*words, *tight]) == 2
    said = capsys.readouterr().err
    assert "the cache budget holds 600 tokens" in said
    assert not file.parent.exists()
    assert main([*words, *tight, "--max-trajectory-tokens", "600", "--max-turns", "2"]) == 0


def test_a_question_that_does_not_fit_is_not_asked(folder: str) -> None:
    async def work(positions: int) -> tuple[str, int]:
        found = backend(folder, cache_gib=positions * BYTES / 2**30)
        client: SamplingClient = await found.create_sampling_client()
        ask = asker(
            found.get_tokenizer(),
            client,
            max_tokens=10,
            longest=longest_question(found.capabilities()),
            seed="0",
        )
        return await ask("go to the cabinet 1 and open it"), found.usage().requests

    assert asyncio.run(work(20)) == ("", 0)
    assert asyncio.run(work(500))[1] == 1


@pytest.mark.parametrize(
    ("owner", "name", "cure"),
    [
        (Policy, "step", "sampling .* Lower --cache-gib"),
        (Passes, "read", "scoring .* Lower --batch-tokens"),
        (Trainer, "accumulate", "training .* Lower --activation-gib"),
        (Trainer, "optimize", "the optimizer .* --optimizer adamw8bit"),
    ],
)
def test_who_runs_out_of_memory_is_told_what_to_lower(
    owner: type, name: str, cure: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a")

    async def work() -> None:
        client = await backend(folder).create_training_client(seed=0, save_dir=str(tmp_path))
        frozen = await client.save_weights_and_get_sampling_client()
        monkeypatch.setattr(owner, name, full)
        await frozen.sample([1, 2, 3], params=SamplingParams(max_tokens=2))
        await frozen.compute_logprobs([1, 2, 3])
        mask = np.array([False, True, True])
        row = Datum(tokens=np.arange(3), logprobs=-np.ones(3), advantages=1.0 * mask, mask=mask)
        await client.forward_backward([row], loss_fn="ppo")
        await client.optim_step(AdamParams(learning_rate=0.1))

    with pytest.raises(BackendError, match=cure):
        asyncio.run(work())
