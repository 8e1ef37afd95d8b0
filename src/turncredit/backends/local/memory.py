"""What a live sequence costs in keys and values, known from a model's configuration alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from turncredit.backends.local import Config
from turncredit.backends.local.arena import Shape
from turncredit.backends.local.device import choose_dtype
from turncredit.backends.local.models import resolve

_UNTOLD = (OSError, ValueError, AttributeError, ImportError, KeyError, RuntimeError)


def attends_fully(config: Any) -> bool:
    """Every token of the family looks at all before it, which our cache relies on.

    Args:
        config: of a Transformers model.
    """
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    window = getattr(text, "sliding_window", None)
    if kinds == {"full_attention"} and not getattr(text, "use_sliding_window", True):
        return True
    if window is None:
        return kinds == {"full_attention"}
    return kinds <= {"full_attention", "sliding_attention"} and not cuts_off(window, config)


def cuts_off(window: int, config: Any) -> bool:
    """A window of so many tokens hides some of the longest row (Phi-4-mini's is twice as long)."""
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    return longest is None or window < longest


def _growing_layers(config: Any) -> int:
    """Layers whose keys and values grow with every token."""
    text = config.get_text_config()
    if attends_fully(config):
        return text.num_hidden_layers
    kinds: list[str] = getattr(text, "layer_types", None) or []
    return kinds.count("full_attention")


def cache_shape(config: Any, dtype: torch.dtype, device: torch.device) -> Shape:
    """Cache geometry of a model of this configuration."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    return Shape(
        layers=text.num_hidden_layers,
        heads=getattr(text, "num_key_value_heads", None) or heads,
        width=getattr(text, "head_dim", None) or text.hidden_size // heads,
        dtype=dtype,
        device=device,
    )


def longest_sample(config: Config, device: torch.device) -> int | None:
    """Tokens of the longest sequence that fits into the cache's budget, before anything is loaded.

    None where nothing bounds it, or it cannot be told yet. Of a hybrid the layers of full attention
    are counted; what its other layers keep has one size, and comes on top.
    """
    folder = Path(resolve(config.base_model))
    try:
        model = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        growing = _growing_layers(model)
        if not folder.is_dir() or not growing:
            return None
        # The format hangs on the size of a model on the CPU alone.
        counted = config.dtype == "auto" and device.type == "cpu"
        dtype = choose_dtype(config, device, _parameters(model) if counted else 0)
        shape = replace(cache_shape(model, dtype, device), layers=growing)
    except _UNTOLD:  # whoever loads the model says what is wrong
        return None
    return int(config.cache_gib * 2**30) // shape.bytes_per_token


def _parameters(config: Any) -> int:
    """Numbers in the weights of a model of this configuration; none is loaded or made."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config).num_parameters()
