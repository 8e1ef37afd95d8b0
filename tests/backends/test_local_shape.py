"""The shape of a network against what PyTorch counts in its forward pass."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="pip install 'turncredit[local]'")

from tiny_models import write_model  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from turncredit.backends.local import Config, create  # noqa: E402
from turncredit.backends.local import shape as shapes  # noqa: E402
from turncredit.backends.local.backend import LocalBackend  # noqa: E402
from turncredit.core.clients import MeasuredBackend  # noqa: E402
from turncredit.core.costs import ModelShape  # noqa: E402
from turncredit.loop import floor  # noqa: E402
from turncredit.loop.reads import Extent  # noqa: E402


def loaded(folder: str, tmp_path: Path, **settings: int) -> tuple[LocalBackend, ModelShape]:
    backend = create(Config(base_model=folder, device="cpu", dtype="float32", **settings))
    assert backend.model_shape() is None, "nothing is loaded to look at a shape"
    assert backend.ceilings() is None
    asyncio.run(backend.create_training_client(seed=0, save_dir=str(tmp_path)))
    shape = backend.model_shape()
    assert shape is not None
    return backend, shape


@pytest.mark.parametrize("tied", [True, False])
def test_a_forward_pass_counts_as_many_operations(tmp_path: Path, tied: bool) -> None:
    folder = write_model(tmp_path / "model", tie_word_embeddings=tied)
    backend, shape = loaded(folder, tmp_path, lora_rank=4)
    assert isinstance(backend, MeasuredBackend)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    length = 11
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(input_ids=torch.arange(length)[None], use_cache=False)
    # Masked products are computed there all the same: every token meets all others.
    whole = Extent(length, length * length)
    expected = floor.forward(shape, whole) + floor.head(shape, length)
    assert counter.get_total_flops() == expected


def test_ceilings_are_measured_on_noise_and_leave_random_numbers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(shapes, "_best", lambda run, _: seen.append(run()) or 1.0)
    before = torch.get_rng_state()
    for dtype in (torch.float32, torch.bfloat16):
        found = shapes.ceilings(torch.device("cpu"), dtype)
        assert found is not None
        assert (found.flops, found.bytes) == (2.0 * 768**3, 2.0 * 4 * (1 << 24))
    assert torch.equal(torch.get_rng_state(), before)
    assert [out.dtype for out in seen] == [torch.float32] * 2 + [torch.bfloat16, torch.float32]
    for product in seen[::2]:
        assert product.shape == (768, 768)
        assert product.float().mean().abs() < 1.0 < product.float().std()
    for copy in seen[1::2]:
        assert 0.9 < copy.std() < 1.1


def test_adapters_memory_and_rows(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    _, shape = loaded(folder, tmp_path, lora_rank=4, max_batch=7)
    model = AutoModelForCausalLM.from_pretrained(folder)
    sides = 7 * 2  # q, k, v, o, gate, up, down, in two layers
    assert 0 < shape.adapter_parameters < sides * 4 * (64 + 64)
    norms = sum(p.numel() for p in model.parameters() if p.ndim == 1)
    assert shape.weight_bytes == 4 * (sum(p.numel() for p in model.parameters()) - norms)
    assert shape.cache_bytes == 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, width, bytes
    assert shape.rows == 7
    _, full = loaded(folder, tmp_path, lora_rank=0)
    assert full.adapter_parameters == 0
    assert full.block_parameters == shape.block_parameters


def test_ceilings_are_measured_without_touching_random_numbers(tmp_path: Path) -> None:
    backend, _ = loaded(write_model(tmp_path / "model"), tmp_path, lora_rank=4)
    before = torch.get_rng_state()
    found = backend.ceilings()
    assert found is not None
    assert found.flops > 1e8
    assert found.bytes > 1e8
    assert torch.equal(before, torch.get_rng_state())
