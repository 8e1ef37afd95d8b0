"""Training: gradients, snapshots, states on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import tiny_models
import torch

from turncredit.backends.local import Config, create
from turncredit.backends.local.clients import LocalTrainingClient
from turncredit.core.calls import AdamParams
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError, ConfigError, DataError

ADAM = AdamParams(learning_rate=1e-3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_model(tmp_path_factory.mktemp("models") / "llama")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def trainer(folder: str, save: Path, rank: int = 0, **more: Any) -> LocalTrainingClient:
    from_state = more.pop("from_state", None)
    backend = create(Config(base_model=folder, lora_rank=rank, threads=1, **more))
    return await backend.create_training_client(seed=1, save_dir=str(save), from_state=from_state)


def rows(count: int = 6, seed: int = 0) -> list[Datum]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        length = int(rng.integers(12, 40))
        mask = np.zeros(length, bool)
        mask[5:8] = mask[10:length:3] = True
        out.append(
            Datum(
                tokens=rng.integers(3, 280, length),
                logprobs=mask * rng.uniform(-6, -4, length),
                advantages=mask * rng.normal(size=length) / 50,
                mask=mask,
            )
        )
    return out


def gradients(client: LocalTrainingClient) -> dict[str, torch.Tensor]:
    return {name: g.clone() for name, g in client._trainer.gradients.items()}


@pytest.mark.parametrize("rank", [0, 4])
def test_gradients_do_not_depend_on_micro_batches(folder: str, tmp_path: Path, rank: int) -> None:
    async def work() -> None:
        found = []
        for tokens in (4096, 64, 1):
            client = await trainer(folder, tmp_path, rank, batch_tokens=tokens)
            out = await client.forward_backward(rows(), loss_fn="ppo")
            found.append((gradients(client), out.metrics["loss"]))
        for other, loss in found[1:]:
            assert loss == pytest.approx(found[0][1], abs=1e-5)
            for name, gradient in found[0][0].items():
                torch.testing.assert_close(other[name], gradient, atol=1e-5, rtol=1e-4)

    run(work())


def test_loss_equals_the_formula_and_finite_differences(folder: str, tmp_path: Path) -> None:
    async def work() -> None:
        client = await trainer(folder, tmp_path)
        data = rows(2)
        bounds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.24}
        out = await client.forward_backward(data, loss_fn="ppo", loss_fn_config=bounds)
        want = 0.0
        for row, new in zip(data, out.logprobs, strict=True):
            ratio, weight = np.exp((new - row.logprobs)[row.mask]), row.advantages[row.mask]
            want -= np.minimum(ratio * weight, np.clip(ratio, 0.8, 1.24) * weight).sum()
            assert np.isnan(new[~row.mask]).all()
        assert out.metrics["loss"] == pytest.approx(want, rel=1e-4)
        name, gradient = max(gradients(client).items(), key=lambda kv: float(kv[1].norm()))
        weight = client._trainer.weights[name]
        step = 1e-3 * gradient / gradient.norm()
        losses = []
        for sign in (1, -2):
            weight.add_(step, alpha=sign)
            losses.append((await client.forward_backward(data, loss_fn="ppo")).metrics["loss"])
        slope = (losses[0] - losses[1]) / 2e-3
        assert slope == pytest.approx(float(gradient.norm()), rel=0.05)

    run(work())


def test_observation_logits_do_not_touch_the_loss(folder: str, tmp_path: Path) -> None:
    """Only hidden states before action tokens reach the head; other positions get no gradient."""

    async def work() -> None:
        client = await trainer(folder, tmp_path)
        policy, data = client._engine.policy, rows(3)
        seen: list[int] = []
        head = policy.logits

        def counting(hidden: torch.Tensor) -> torch.Tensor:
            seen.append(hidden.shape[0])
            return head(hidden)

        policy.logits = counting  # type: ignore[method-assign]
        await client.forward_backward(data, loss_fn="ppo")
        assert sum(seen) == sum(int(row.mask.sum()) for row in data)

    run(work())


def test_lora_starts_as_the_base_model_and_learns(folder: str, tmp_path: Path) -> None:
    async def work() -> None:
        tokens = rows(1)[0].tokens.tolist()
        full, lora = await trainer(folder, tmp_path), await trainer(folder, tmp_path, 4)
        scores = [
            (await (await c.save_weights_and_get_sampling_client()).compute_logprobs(tokens))
            for c in (full, lora)
        ]
        np.testing.assert_allclose(scores[0].logprobs[1:], scores[1].logprobs[1:], atol=1e-5)
        names = set(lora._trainer.weights)
        assert all(".lora_" in n for n in names)
        assert len(names) == 2 * 2 * 7  # A and B, two layers, seven linears; never the head
        first = (await lora.forward_backward(rows(), loss_fn="cross_entropy")).metrics["loss"]
        for _ in range(5):
            await lora.optim_step(AdamParams(learning_rate=1e-2))
            last = (await lora.forward_backward(rows(), loss_fn="cross_entropy")).metrics["loss"]
        assert last < first

    run(work())


def test_non_finite_gradients_skip_the_step(folder: str, tmp_path: Path) -> None:
    async def work() -> None:
        client = await trainer(folder, tmp_path)
        await client.forward_backward(rows(), loss_fn="ppo")
        next(iter(client._trainer.gradients.values())).view(-1)[0] = float("nan")
        before = client._snapshot_id()
        metrics = await client.optim_step(ADAM)
        assert metrics["skipped_steps"] == metrics["nonfinite_gradients"] == 1
        assert client._snapshot_id() == before
        assert (await client.optim_step(ADAM))["skipped_steps"] == 1  # nothing is left over

    run(work())


def test_optimizer_equals_torch_adamw(folder: str, tmp_path: Path) -> None:
    async def work() -> None:
        client = await trainer(folder, tmp_path)
        live = client._trainer.weights
        twins = {n: torch.nn.Parameter(w.clone()) for n, w in live.items()}
        theirs = torch.optim.AdamW(
            twins.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
        )
        for seed in range(3):
            await client.forward_backward(rows(seed=seed), loss_fn="ppo")
            for name, gradient in gradients(client).items():
                twins[name].grad = gradient
            torch.nn.utils.clip_grad_norm_(twins.values(), 1.0)
            theirs.step()
            await client.optim_step(AdamParams(learning_rate=1e-3, weight_decay=0.1))
        for name, weight in live.items():
            torch.testing.assert_close(weight, twins[name].data, atol=1e-6, rtol=1e-5)

    run(work())


@pytest.mark.parametrize("rank", [0, 4])
def test_resume_is_bit_exact(folder: str, tmp_path: Path, rank: int) -> None:
    async def steps(client: LocalTrainingClient, seeds: range) -> list[float]:
        losses = []
        for seed in seeds:
            out = await client.forward_backward(rows(seed=seed), loss_fn="ppo")
            losses.append(out.metrics["loss"])
            await client.optim_step(ADAM)
        return losses

    async def work() -> None:
        client = await trainer(folder, tmp_path / "a", rank)
        await steps(client, range(3))
        path = await client.save_state("step-3")
        straight = await steps(client, range(3, 6))
        resumed = await trainer(folder, tmp_path / "b", rank, from_state=path)
        assert await steps(resumed, range(3, 6)) == straight
        assert resumed._snapshot_id() == client._snapshot_id()
        for name, weight in client._trainer.weights.items():
            assert torch.equal(weight, resumed._trainer.weights[name])

    run(work())


def test_states_are_refused_with_the_reason(folder: str, tmp_path: Path) -> None:
    async def work() -> None:
        client = await trainer(folder, tmp_path, 4)
        path = Path(await client.save_state("one"))
        with pytest.raises(ConfigError, match="never overwritten"):
            await client.save_state("one")
        with pytest.raises(ConfigError, match="--lora-rank 4, this run has 2"):
            await trainer(folder, tmp_path, 2, from_state=str(path))
        other = tiny_models.write_model(tmp_path / "other", seed=9)
        with pytest.raises(ConfigError, match="other weights"):
            await trainer(other, tmp_path, 4, from_state=str(path))
        torn = path / "weights.safetensors"
        torn.write_bytes(torn.read_bytes()[:-4])
        with pytest.raises(DataError, match=r"weights\.safetensors"):
            await trainer(folder, tmp_path, 4, from_state=str(path))
        (path / "state.json").unlink()
        with pytest.raises(DataError, match="not a complete saved state"):
            await trainer(folder, tmp_path, 4, from_state=str(path))
        await client.forward_backward(rows(), loss_fn="ppo")
        with pytest.raises(BackendError, match="optim_step"):
            await client.save_state("two")

    run(work())


@pytest.mark.parametrize("rank", [0, 4])
def test_sampler_weights_are_standard_folders(folder: str, tmp_path: Path, rank: int) -> None:
    """Transformers (and PEFT) load what we save, and see the same distribution."""

    async def work() -> None:
        client = await trainer(folder, tmp_path, rank)
        await client.forward_backward(rows(), loss_fn="ppo")
        await client.optim_step(AdamParams(learning_rate=1e-2))
        path = await client.save_weights_for_sampler("one")
        tokens = rows(1)[0].tokens.tolist()
        snapshot = await client.save_weights_and_get_sampling_client()
        ours = (await snapshot.compute_logprobs(tokens)).logprobs[1:]
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        theirs: Any = AutoModelForCausalLM.from_pretrained(folder if rank else path)
        if rank:
            assert json.loads((Path(path) / "adapter_config.json").read_text())["r"] == rank
            theirs = PeftModel.from_pretrained(theirs, path)
        with torch.no_grad():
            logits = theirs.eval()(torch.tensor([tokens])).logits[0, :-1]
        want = logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        np.testing.assert_allclose(ours, want.numpy(), atol=1e-4)
        backend = create(Config(base_model=folder, lora_rank=32, threads=1))
        loaded = await backend.create_sampling_client(model_path=path)  # another default rank
        assert loaded.snapshot_id == snapshot.snapshot_id
        np.testing.assert_array_equal((await loaded.compute_logprobs(tokens)).logprobs[1:], ours)

    run(work())


def test_losses_and_settings_are_checked(folder: str, tmp_path: Path) -> None:
    async def work() -> None:
        client = await trainer(folder, tmp_path)
        with pytest.raises(ConfigError, match='Did you mean "ppo"'):
            await client.forward_backward(rows(), loss_fn="ppoo")
        for config, message in (
            ({"clip_low_treshold": 0.8}, 'Did you mean "clip_low_threshold"'),
            (
                {"clip_low_threshold": 0.2, "clip_high_threshold": 0.24},
                "must be a ratio of 1 or more",
            ),
        ):
            with pytest.raises(ConfigError, match=message):
                await client.forward_backward(rows(), loss_fn="ppo", loss_fn_config=config)

    run(work())


def test_snapshots_are_frozen_and_memory_is_flat(folder: str, tmp_path: Path) -> None:
    async def work() -> None:
        client = await trainer(folder, tmp_path)
        tokens = rows(1)[0].tokens.tolist()
        old = await client.save_weights_and_get_sampling_client()
        before = (await old.compute_logprobs(tokens)).logprobs
        for seed in range(20):
            await client.forward_backward(rows(2, seed), loss_fn="ppo")
            await client.optim_step(ADAM)
            snapshot = await client.save_weights_and_get_sampling_client()
            await snapshot.compute_logprobs(tokens)
            await snapshot.close()
        np.testing.assert_array_equal((await old.compute_logprobs(tokens)).logprobs, before)

    run(work())
