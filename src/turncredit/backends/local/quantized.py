"""What bitsandbytes adds: frozen weights of four bits, moments of eight.

QLoRA (Dettmers et al. 2023, arXiv:2305.14314): the frozen linear layers are kept as 4-bit
NormalFloat with their scales quantized once more, and are widened to the model's number format for
each product. The adapter is float32 as ever; head, embeddings and norms keep the model's format.
"""

from __future__ import annotations

from typing import Any

import torch

from turncredit.backends.local import Config
from turncredit.core.errors import ConfigError

_ANY = (RuntimeError, ValueError, NotImplementedError, AttributeError, TypeError, OSError)


def check(config: Config, device: torch.device) -> None:
    """Try on a few numbers what the settings ask of bitsandbytes.

    Raises:
        ConfigError: its build cannot do that on this device.
    """
    if config.quantize != "none":
        _tried(_four_bits, device, "--quantize none")
    if config.optimizer == "adamw8bit":
        _tried(_eight_bits, device, "--optimizer adamw")


def options(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What `from_pretrained` needs to quantize while loading."""
    from transformers import BitsAndBytesConfig

    plan = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": plan, "device_map": {"": device}}


def settle(model: Any) -> None:
    """Keep the weights in the one layout that has gradients.

    On some CPUs bitsandbytes repacks them at the first pass without gradients, for a kernel that
    has no backward.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def _tried(attempt: Any, device: torch.device, cure: str) -> None:
    try:
        attempt(device)
    except _ANY as error:
        import bitsandbytes

        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"bitsandbytes {bitsandbytes.__version__} cannot do this on {device} ({reason}).   "
            f"pip install -U bitsandbytes, or {cure}"
        ) from error


def _four_bits(device: torch.device) -> None:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    packed, how = quantize_4bit(torch.ones(64, 64, device=device), quant_type="nf4")
    back = dequantize_4bit(packed, how)
    if not torch.allclose(back, torch.ones_like(back)):
        raise RuntimeError("ones come back as other numbers")


def _eight_bits(device: torch.device) -> None:
    from bitsandbytes.optim.adamw import AdamW8bit

    weight = torch.nn.Parameter(torch.zeros(8192, device=device))
    weight.grad = torch.ones_like(weight)
    AdamW8bit([weight], lr=1.0, eps=1e-8, weight_decay=0.0).step()
    if not torch.allclose(weight, -torch.ones_like(weight), atol=0.05):
        raise RuntimeError("a first step has another size than the learning rate")
