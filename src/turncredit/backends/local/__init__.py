"""PyTorch + Transformers + PEFT on the CPU or one GPU.

Importing this module is cheap: torch is loaded by `create`, not before.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from turncredit.core.calls import Capabilities
from turncredit.core.errors import ConfigError
from turncredit.core.losses import LOSS_TERMS, POLICY_LOSSES
from turncredit.core.registry import require

if TYPE_CHECKING:
    from turncredit.backends.local.backend import LocalBackend

# Known without torch; a backend object adds what depends on its device and model.
CAPABILITIES = Capabilities(
    losses=frozenset(POLICY_LOSSES),
    terms=frozenset(LOSS_TERMS),
    distributions=True,
    averages=True,
    cached_token_counts=True,
)


@dataclass(frozen=True)
class Config:
    """How the local policy is loaded, sampled and trained."""

    base_model: str = field(
        default="household-tiny",
        metadata={"help": "household-tiny, smollm2-135m, a Hugging Face folder or hub id"},
    )
    lora_rank: int = field(
        default=32, metadata={"help": "rank of the LoRA adapter; 0 trains all parameters"}
    )
    device: str = field(default="auto", metadata={"help": "auto, cpu, cuda or cuda:N"})
    dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="auto", metadata={"help": "auto: float32 for small models on the CPU"}
    )
    threads: int = field(
        default=0,
        metadata={"help": "torch threads; 0: torch's choice, one for small decoding steps"},
    )
    max_batch: int = field(default=64, metadata={"help": "rows decoded together"})
    batch_tokens: int = field(
        default=4096, metadata={"help": "tokens of one training, scoring or prefill pass"}
    )
    cache_gib: float = field(
        default=4.0, metadata={"help": "memory for keys and values of live sequences, GiB"}
    )
    reuse_prefixes: bool = field(
        default=True,
        metadata={"help": "keep keys and values between turns and copy common prefixes"},
    )
    lean: bool = field(
        default=True,
        metadata={"help": "merge LoRA and fuse projections for passes without gradients (float32)"},
    )

    quantize: Literal["none", "4bit"] = field(
        default="none",
        metadata={"help": "4bit: frozen weights as 4-bit NormalFloat under LoRA (extra: gpu)"},
    )
    optimizer: Literal["adamw", "adamw8bit"] = field(
        default="adamw", metadata={"help": "adamw8bit: moments of one byte each (extra: gpu)"}
    )
    compile: bool = field(
        default=False,
        metadata={"help": "torch.compile norms and MLPs; pays on a GPU, or in long runs"},
    )

    share_prefixes: bool = field(
        default=True,
        metadata={"help": "rows that begin alike (a group) share that part in scoring, training"},
    )
    checkpointing: Literal["auto", "on", "off"] = field(
        default="auto",
        metadata={"help": "keep layer inputs only; auto: where one row exceeds --activation-gib"},
    )
    activation_gib: float = field(
        default=4.0, metadata={"help": "memory for what a training pass keeps of its layers, GiB"}
    )

    def __post_init__(self) -> None:
        if self.lora_rank < 0:
            raise ConfigError(f"lora_rank={self.lora_rank}: use 0 (all parameters) or more")
        for name in ("max_batch", "batch_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.quantize != "none" and self.lora_rank == 0:
            raise ConfigError("4-bit weights stay frozen: use a --lora-rank, or --quantize none")
        if self.dtype == "bfloat16" and self.lora_rank == 0:
            raise ConfigError(
                "training all parameters in bfloat16 loses small updates: "
                "use --dtype float32, or a --lora-rank"
            )
        if self.threads < 0:
            raise ConfigError(f"threads={self.threads}: use 0 (chosen here) or more")
        for name in ("cache_gib", "activation_gib"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)}: must be a positive number")


def create(config: Config) -> LocalBackend:
    """Load torch and build the backend.

    Raises:
        MissingExtra: torch, transformers or peft is not installed.
    """
    # With fewer free cores than threads, libgomp's spinning makes a step 4-16 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for module in ("torch", "transformers", "peft", "safetensors", "jinja2"):
        require(module, 'backend "local"', "local")
    for asked, flag in (
        (config.quantize != "none", f"--quantize {config.quantize}"),
        (config.optimizer == "adamw8bit", f"--optimizer {config.optimizer}"),
    ):
        if asked:
            require("bitsandbytes", flag, "gpu")
    from turncredit.backends.local.backend import LocalBackend

    return LocalBackend(config)
