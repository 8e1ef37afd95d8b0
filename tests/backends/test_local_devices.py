"""Devices, number formats, and what bitsandbytes and torch.compile add."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import warnings
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import tiny_models
import torch

from turncredit.backends.local import (
    Config,
    adapter,
    compiled,
    create,
    device,
    optimizer,
    policy,
    quantized,
)
from turncredit.backends.local.clients import LocalTrainingClient
from turncredit.backends.local.loading import load_policy
from turncredit.core.calls import AdamParams, SamplingParams
from turncredit.core.datum import Datum
from turncredit.core.errors import ConfigError, DataError, MissingExtra

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
ADAM = AdamParams(learning_rate=1e-2, weight_decay=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "llama"
    return tiny_models.write_model(path, hidden_size=64, intermediate_size=128)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One CUDA device of capability 8.0, as far as questions about it go."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (8, 0))
    return monkeypatch


def rows(count: int = 4) -> list[Datum]:
    rng = np.random.default_rng(0)
    mask = np.arange(20) >= 12
    return [
        Datum(
            tokens=rng.integers(3, 280, 20),
            logprobs=mask * -5.0,
            advantages=mask * rng.normal(size=20) / 50,
            mask=mask,
        )
        for _ in range(count)
    ]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def client(folder: str, save: Path, **more: Any) -> LocalTrainingClient:
    from_state = more.pop("from_state", None)
    backend = create(Config(base_model=folder, threads=1, **{"lora_rank": 4, **more}))
    return await backend.create_training_client(seed=1, save_dir=str(save), from_state=from_state)


async def steps(trained: LocalTrainingClient, count: int) -> None:
    for _ in range(count):
        await trained.forward_backward(rows(), loss_fn="cross_entropy")
        await trained.optim_step(ADAM)


# ── device and number format ─────────────────────────────────────────────────────────────────


def test_a_gpu_is_taken_if_there_is_one(gpu: pytest.MonkeyPatch) -> None:
    assert device.choose_device("auto") == CUDA == device.choose_device("cuda")
    assert device.choose_device("cpu") == CPU
    with pytest.raises(ConfigError, match="the last one is cuda:0"):
        device.choose_device("cuda:3")


@pytest.mark.parametrize(
    ("name", "said"), [("cuda", "--device cpu"), ("mps", "not supported"), ("gpu", "no device")]
)
def test_devices_that_are_not_here(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=said):
        device.choose_device(name)


def test_number_formats(gpu: pytest.MonkeyPatch) -> None:
    lora, whole = Config(), Config(lora_rank=0)
    assert device.choose_dtype(lora, CUDA, 10) is torch.bfloat16
    assert device.choose_dtype(whole, CUDA, 10) is torch.float32
    assert device.choose_dtype(Config(dtype="float32"), CUDA, 10) is torch.float32
    assert device.choose_dtype(lora, CPU, 10) is torch.float32
    gpu.setattr(torch.cuda, "get_device_capability", lambda _=None: (7, 5))
    assert device.choose_dtype(lora, CUDA, 10) is torch.float32  # emulated bfloat16 is slow


@pytest.mark.parametrize(("units", "want"), [(True, torch.bfloat16), (False, torch.float32)])
def test_large_models_on_a_cpu_use_its_units(
    units: bool, want: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: units)
    assert device.choose_dtype(Config(), CPU, 10**9) is want


def test_adapters_compute_in_the_format_of_the_model(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> dict[str, torch.Tensor]:
        trained = await client(folder, tmp_path, dtype="bfloat16")
        layers = trained._engine.policy.model.model.layers
        matrix = layers[0].mlp.up_proj.lora_A["default"]
        kinds: list[torch.dtype] = []
        matrix.register_forward_hook(lambda _, x, y: kinds.extend([x[0].dtype, y.dtype]))
        await steps(trained, 1)  # the first step's gradient of every A is 0
        await trained.forward_backward(rows(), loss_fn="cross_entropy")
        assert set(kinds) == {torch.bfloat16 if narrow else torch.float32}
        assert {g.dtype for g in trained._trainer.gradients.values()} == {torch.float32}
        assert {w.dtype for w in trained._trainer.weights.values()} == {torch.float32}
        return trained._trainer.gradients

    # Plain adapted layers have a light form of their own; this is what quantized ones do.
    monkeypatch.setattr(policy, "lighten", lambda _: 0)
    narrow = True
    found = run(work())
    narrow = False
    monkeypatch.setattr(adapter, "follow_model", lambda *_: None)
    wanted = run(work())
    for name, gradient in wanted.items():
        assert float((found[name] - gradient).norm()) < 0.1 * float(gradient.norm()), name


# ── refusals ─────────────────────────────────────────────────────────────────────────────────


def test_four_bits_need_an_adapter() -> None:
    with pytest.raises(ConfigError, match="--lora-rank"):
        Config(quantize="4bit", lora_rank=0)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    for settings, flag in (
        (Config(quantize="4bit"), "--quantize 4bit"),
        (Config(optimizer="adamw8bit"), "--optimizer adamw8bit"),
    ):
        with pytest.raises(MissingExtra, match=rf"^{flag} needs .*turncredit\[gpu\]"):
            create(settings)


def test_a_build_that_cannot_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bitsandbytes")
    from bitsandbytes import functional

    def broken(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("no kernel\nand a long tail")

    monkeypatch.setattr(functional, "quantize_4bit", broken)
    with pytest.raises(ConfigError, match=r"\(no kernel\).*--quantize none"):
        quantized.check(Config(quantize="4bit"), CPU)
    quantized.check(Config(), CPU)


# ── bitsandbytes ─────────────────────────────────────────────────────────────────────────────


def test_four_bit_weights_learn_and_say_what_they_score(folder: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")

    async def work() -> None:
        trained = await client(folder, tmp_path, quantize="4bit")
        policy = trained._engine.policy
        linear = [m for m in policy.model.modules() if type(m).__name__ == "Linear4bit"]
        assert len([m for m in linear if hasattr(m, "quant_state")]) >= 14
        assert all(w.dtype is torch.float32 for w in trained._trainer.weights.values())
        first = (await trained.forward_backward(rows(), loss_fn="cross_entropy")).metrics["loss"]
        await trained.optim_step(ADAM)
        await steps(trained, 3)
        last = (await trained.forward_backward(rows(), loss_fn="cross_entropy")).metrics["loss"]
        assert last < first - 0.1
        frozen = await trained.save_weights_and_get_sampling_client()
        prompt = rows(1)[0].tokens.tolist()
        params = SamplingParams(max_tokens=6, seed=3)
        (sample,) = (await frozen.sample(prompt, params=params)).samples
        scores = await frozen.compute_logprobs([*prompt, *sample.tokens], last_n=6)
        np.testing.assert_allclose(sample.logprobs, scores.logprobs[-6:], atol=1e-4)

    run(work())


def test_a_state_of_four_bits_is_not_one_of_full_weights(folder: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")

    async def work() -> None:
        state = await (await client(folder, tmp_path, quantize="4bit")).save_state("a")
        with pytest.raises(ConfigError, match="--quantize 4bit, this run has none"):
            await client(folder, tmp_path, from_state=state)

    run(work())


def test_eight_bit_moments_follow_full_ones() -> None:
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    start = {"large": torch.randn(128, 64), "small": torch.randn(8)}
    moved = []
    for name in ("adamw", "adamw8bit"):
        weights = {n: w.clone() for n, w in start.items()}
        made = optimizer.make(name, weights)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            gradients = {n: torch.randn(w.shape, generator=generator) for n, w in weights.items()}
            made.step(weights, gradients, ADAM)
        assert made.steps == 5
        moved.append({n: weights[n] - start[n] for n in start})
    full, small = moved
    torch.testing.assert_close(small["small"], full["small"], atol=1e-4, rtol=1e-3)
    close = torch.nn.functional.cosine_similarity(
        full["large"].flatten(), small["large"].flatten(), dim=0
    )
    assert close > 0.99
    assert 0.95 < float(small["large"].norm() / full["large"].norm()) < 1.05


def test_a_resumed_run_has_the_same_eight_bit_moments(folder: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")

    async def work() -> None:
        # At rank 64 some matrices have 4,096 numbers, others fewer: both kinds of moments.
        settings = {"optimizer": "adamw8bit", "lora_rank": 64}
        whole = await client(folder, tmp_path, **settings)
        await steps(whole, 2)
        state = await whole.save_state("two")
        resumed = await client(folder, tmp_path, from_state=state, **settings)
        assert resumed._trainer.steps == 2
        kinds = {
            t.dtype for t in resumed._trainer.optimizer.files()["adamw8bit.safetensors"].values()
        }
        assert kinds == {torch.uint8, torch.float32}
        for trained in (whole, resumed):
            await steps(trained, 2)
        for name, weight in whole._trainer.weights.items():
            assert torch.equal(resumed._trainer.weights[name], weight), name
        with pytest.raises(ConfigError, match="--optimizer adamw8bit, this run has adamw"):
            await client(folder, tmp_path, lora_rank=64, from_state=state)

    run(work())


def test_moments_of_other_weights_are_refused(tmp_path: Path) -> None:
    from turncredit.backends.local import state

    made = optimizer.make("adamw", {"a": torch.zeros(3)})
    for name in made.files():
        state.save_tensors(tmp_path / name, {"b": torch.zeros(3)})
    with pytest.raises(DataError, match="other tensors"):
        made.restore(tmp_path, 1)


# ── torch.compile ────────────────────────────────────────────────────────────────────────────


def fake_compile(change: Any) -> Any:
    """`torch.compile` without a compiler: the function, followed by `change`."""

    def compile_(function: Any, **_: Any) -> Any:
        return lambda x: change(function(x))

    return compile_


def logits(folder: str, **more: Any) -> tuple[Any, torch.Tensor]:
    policy = load_policy(Config(base_model=folder, threads=1, **more), lora_rank=4)
    policy.mount(policy.copy_trained())
    with torch.no_grad():
        return policy, policy.full([list(range(3, 103))])


def test_compiled_code_is_used_for_long_passes_only(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape[1])
        return x

    monkeypatch.setattr(torch, "compile", fake_compile(note))
    policy, found = logits(folder, compile=True)
    assert compiled.in_use(policy)
    torch.testing.assert_close(found, logits(folder)[1])
    assert seen.count(100) == 2 * 3 + 1  # two norms and an MLP in two layers, and the last norm
    seen.clear()
    policy.full([list(range(3, 20))])
    assert not seen


def wrong(x: torch.Tensor) -> torch.Tensor:
    return 1.01 * x


def broken(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no compiler\nhere")


@pytest.mark.parametrize(
    ("change", "said"), [(wrong, "gives other numbers"), (broken, "RuntimeError: no compiler$")]
)
def test_what_does_not_compile_is_left_alone(
    folder: str, change: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", fake_compile(change))
    with pytest.warns(UserWarning, match=said):
        policy, found = logits(folder, compile=True)
    assert not compiled.in_use(policy)
    torch.testing.assert_close(found, logits(folder)[1])


@pytest.mark.slow
def test_real_compilation_gives_the_same_gradients(folder: str, tmp_path: Path) -> None:
    async def work(on: bool) -> dict[str, torch.Tensor]:
        trained = await client(folder, tmp_path, compile=on)
        assert compiled.in_use(trained._engine.policy) == on
        await trained.forward_backward(rows(8), loss_fn="cross_entropy")
        return trained._trainer.gradients

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, fused = run(work(False)), run(work(True))
    for name, gradient in plain.items():
        torch.testing.assert_close(fused[name], gradient, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_rehearsal_of_the_gpu_check(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
    arguments = ["--device", "cpu", "--shape", "tiny", "--out", str(tmp_path), "--skip", "compile"]
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert len([c for c in found["checks"] if c["verdict"] == "ok"]) >= 10
    assert [r["what"].split(",")[0] for r in found["rates"]] == [
        "prefill",
        "decode",
        "score",
        "train (LoRA)",
    ]
