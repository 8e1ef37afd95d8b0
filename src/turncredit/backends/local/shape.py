"""What the arithmetic of a policy costs, and what this machine reaches at best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from turncredit.backends.local.policy import Policy
from turncredit.core.costs import Ceilings, ModelShape

_PATIENCE_S = 0.1  # per ceiling: the best of what fits in is taken
_ADAPTER = ".lora_"


def model_shape(policy: Policy, rows: int) -> ModelShape:
    """The shape of a network; experts, if it has any, count as if a token met them all.

    Args:
        policy: the network.
        rows: sequences decoded together at most.
    """
    cache = policy.cache_shape()
    head = policy.model.get_output_embeddings()
    linear = dict(_linear(policy.model))
    blocks = {n: m for n, m in linear.items() if _ADAPTER not in n and m is not head}
    adapters = [m for n, m in linear.items() if _ADAPTER in n]
    config = policy.model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * cache.layers
    layers = sum(kind in ("full_attention", "sliding_attention") for kind in kinds)
    width = 2 * cache.heads * cache.width * cache.dtype.itemsize
    return ModelShape(
        block_parameters=sum(map(_size, blocks.values())),
        head_parameters=policy.vocabulary * config.hidden_size,
        adapter_parameters=sum(map(_size, adapters)),
        layers=layers,
        heads=config.num_attention_heads,
        kv_heads=cache.heads,
        head_width=cache.width,
        weight_bytes=sum(_bytes(m) for m in [*blocks.values(), head]),
        cache_bytes=layers * width,
        rows=rows,
    )


def ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings | None:
    """Measure a large matrix product and a large copy, with the threads torch has now.

    Other work on the machine lowers both; the best of several tries is taken. None where there is
    no memory left to try.
    """
    try:
        return _measured(device, dtype)
    except torch.OutOfMemoryError:
        return None


def _measured(device: torch.device, dtype: torch.dtype) -> Ceilings:
    side, count = (768, 1 << 24) if device.type == "cpu" else (4096, 1 << 26)
    # Bits that all agree switch few transistors: a GPU multiplies constants faster than data.
    # With a generator of its own, since a run's random numbers must not hang on a measurement.
    generator = torch.Generator(device).manual_seed(0)
    noise = torch.randn(1 << 20, generator=generator, device=device)
    a = noise.repeat(-(-(side**2) // len(noise)))[: side**2].view(side, side).to(dtype)
    out = torch.empty_like(a)
    product = _best(lambda: torch.matmul(a, a, out=out), device)
    source = noise.repeat(count // len(noise))
    target = torch.empty_like(source)
    copy = _best(lambda: target.copy_(source), device)
    return Ceilings(flops=2.0 * side**3 / product, bytes=2.0 * source.nbytes / copy)


@torch.no_grad()
def _best(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of several runs."""
    found, until = float("inf"), time.perf_counter() + _PATIENCE_S
    run()  # the first one pays for what is set up once
    _wait(device)
    while True:
        began = time.perf_counter()
        run()
        _wait(device)
        now = time.perf_counter()
        found = min(found, now - began)
        if now >= until:
            return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _linear(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield name, module


def _size(module: nn.Linear) -> int:
    """Of the matrix, however it is packed in memory."""
    return module.in_features * module.out_features


def _bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())
