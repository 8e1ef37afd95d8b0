"""Adapters that are kept in float32 and computed in the format of the model around them.

PEFT widens the input of an adapter to the adapter's format. On a GPU float32 products run at about
a tenth of the speed of bfloat16 ones, and an adapter of rank 32 would cost as much as the frozen
matrix beside it. Here the matrices are narrowed instead; they and their gradients stay float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear
from transformers import PreTrainedModel

from turncredit.core.errors import ConfigError


def add_lora(model: PreTrainedModel, rank: int) -> Any:
    """Adapters of a rank in all linear layers, trained in float32; returns PEFT's description.

    Raises:
        ConfigError: the family takes none.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank,
        lora_alpha=rank,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
        base_model_name_or_path=model.name_or_path,
    )
    try:
        inject_adapter_in_model(config, model)
    except ValueError as error:
        raise ConfigError(
            f"{type(model).__name__} takes no LoRA adapter ({error}).   --lora-rank 0"
        ) from error
    for parameter in model.parameters():
        if parameter.requires_grad:  # the adapter is trained in full precision on any base
            parameter.data = parameter.data.float()
    follow_model(model, model.dtype)
    return config


def follow_model(model: Any, dtype: torch.dtype) -> None:
    """Let all LoRA layers of a model in `dtype` compute in it; nothing to do in float32."""
    if dtype == torch.float32:
        return
    from peft.tuners.lora.layer import LoraLayer

    for layer in list(model.modules()):
        if not isinstance(layer, LoraLayer):
            continue
        layer.cast_input_dtype_enabled = False
        for matrices in (layer.lora_A, layer.lora_B):
            for matrix in matrices.values():
                matrix.forward = partial(_narrowed, matrix)


def _narrowed(matrix: Any, x: torch.Tensor) -> torch.Tensor:
    return linear(x, matrix.weight.to(x.dtype))
