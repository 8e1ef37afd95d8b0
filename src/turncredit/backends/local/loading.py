"""From a name to a network and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from turncredit.backends.local import Config
from turncredit.backends.local.models import resolve
from turncredit.backends.local.policy import Policy
from turncredit.backends.local.tokenizer import HfTokenizer
from turncredit.core.errors import BackendError, ConfigError

_SMALL = 50_000_000  # parameters up to which the CPU computes in float32


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
    where = str(folder) if folder else resolve(config.base_model)
    device = choose_device(config.device)
    options: dict[str, Any] = {
        "trust_remote_code": False,
        "use_safetensors": True,
        "local_files_only": Path(where).is_dir(),
    }
    if config.dtype != "auto":
        options["dtype"] = getattr(torch, config.dtype)
    if options["local_files_only"]:  # reading a file needs no bar; a download does
        logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(where, **options)
    except (OSError, ValueError) as error:
        raise BackendError(f'model "{config.base_model}": {error}') from error
    dtype = choose_dtype(config, device, model.num_parameters())
    if dtype is torch.bfloat16 and lora_rank == 0:
        raise ConfigError(
            "training all parameters in bfloat16 loses small updates: "
            "use --dtype float32, or a --lora-rank"
        )
    module: Any = model
    return Policy(module.to(device=device, dtype=dtype), lora_rank=lora_rank)


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one.

    Raises:
        ConfigError: no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f'no device "{name}": use auto, cpu, cuda or cuda:0') from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch sees no CUDA device.   --device cpu")
    return device


def choose_dtype(config: Config, device: torch.device, parameters: int) -> torch.dtype:
    """`auto`: bfloat16 only for LoRA on a GPU, or on a CPU with its units above 50 M parameters."""
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    if config.lora_rank == 0 or (device.type == "cpu" and parameters <= _SMALL):
        return torch.float32
    has_units = device.type != "cpu" or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if has_units else torch.float32
