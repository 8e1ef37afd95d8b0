"""From a name to a network and its tokenizer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from turncredit.backends.local import Config, quantized
from turncredit.backends.local.compiled import compile_blocks
from turncredit.backends.local.device import choose_device, choose_dtype, prepare
from turncredit.backends.local.models import resolve
from turncredit.backends.local.policy import Policy
from turncredit.backends.local.tokenizer import HfTokenizer
from turncredit.core.errors import BackendError, ConfigError


def load_tokenizer(name: str) -> HfTokenizer:
    """The tokenizer of a model, with the generation config's end ids.

    Raises:
        ConfigError: no such model.
        BackendError: it cannot be read or fetched.
    """
    where = resolve(name)
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": Path(where).is_dir()}
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
    except (OSError, ValueError) as error:
        raise BackendError(f'tokenizer of "{name}": {error}') from error
    try:
        eos = GenerationConfig.from_pretrained(
            where, local_files_only=options["local_files_only"]
        ).eos_token_id
    except OSError:  # the file is optional
        eos = None
    ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    return HfTokenizer(tokenizer, ids)


def load_policy(config: Config, *, lora_rank: int, folder: Path | None = None) -> Policy:
    """The network of `config.base_model`, or of a full folder saved by us.

    Raises:
        ConfigError: no such model, or a combination that cannot train.
        BackendError: it cannot be read or fetched.
    """
    config = replace(config, lora_rank=lora_rank)
    where = str(folder) if folder else resolve(config.base_model)
    device = choose_device(config.device)
    prepare(device)
    options: dict[str, Any] = {
        "trust_remote_code": False,
        "use_safetensors": True,
        "local_files_only": Path(where).is_dir(),
    }
    if config.dtype != "auto" or config.quantize != "none" or device.type == "cuda":
        # Nothing that is read of the file decides it, so no wider copy need exist.
        options["dtype"] = choose_dtype(config, device, 0)
    if config.quantize != "none":
        options.update(quantized.options(device, options["dtype"]))
    if options["local_files_only"]:  # reading a file needs no bar; a download does
        logging.disable_progress_bar()
    model = _read(config.base_model, where, options)
    policy = Policy(_placed(model, config, device), lora_rank=lora_rank, lean=config.lean)
    if not (policy.cached or policy.row_bytes):
        warnings.warn(
            f"{type(model).__name__} is decoded without a cache, since its attention is not the "
            "usual one: each sampled token reads its whole row again, which is slow",
            stacklevel=2,
        )
    if config.compile:
        compile_blocks(policy)
    return policy


def _read(name: str, where: str, options: Mapping[str, Any]) -> Any:
    """All weights of a model.

    Raises:
        BackendError: they cannot be fetched or read, or are not those of its config.json.
    """
    loaded: Any
    try:
        loaded = AutoModelForCausalLM.from_pretrained(where, output_loading_info=True, **options)
    except (OSError, ValueError, ImportError) as error:
        raise BackendError(f'model "{name}": {error}') from error
    except SafetensorError as error:
        raise BackendError(
            f'model "{name}": its safetensors are damaged ({error}): fetch it again'
        ) from error
    except RuntimeError as error:  # tensors of other shapes, listed on the terminal
        raise BackendError(
            f'model "{name}": its weights are not those of its config.json ({error})'
        ) from error
    model, found = loaded
    if missing := sorted(found["missing_keys"]):  # they would be random numbers
        raise BackendError(
            f'model "{name}": its files lack {len(missing)} weights of its config.json '
            f"(first {missing[0]}): fetch it again"
        )
    return model


def _placed(model: Any, config: Config, device: torch.device) -> Any:
    """The model on its device, in its number format.

    Raises:
        ConfigError: a format that cannot train.
    """
    if config.quantize != "none":
        quantized.settle(model)
        return model
    if getattr(model, "is_quantized", False):
        raise ConfigError(
            f"the weights of {config.base_model} are quantized already: give the model they were "
            "made from, with --quantize 4bit"
        )
    return model.to(device=device, dtype=choose_dtype(config, device, model.num_parameters()))
