"""PyTRIO, the service the article trained on: its SDK behind our protocol.

Importing this module is cheap: the SDK is loaded by `create`, not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turncredit.backends.hosted.addresses import check_address
from turncredit.core.calls import Capabilities
from turncredit.core.errors import ConfigError
from turncredit.core.settings import check_choices, setting

if TYPE_CHECKING:
    from turncredit.backends.pytrio.backend import PytrioBackend

# Known without the SDK; a backend object adds what its settings say.
CAPABILITIES = Capabilities(
    losses=frozenset({"ppo", "importance_sampling", "cispo", "cross_entropy"}),
    suffix_scoring=False,
    max_seq_len=16384,
    remote=True,
)


@dataclass(frozen=True)
class Config:
    """What is trained on the service, and how its calls are made."""

    base_model: str = setting("Qwen/Qwen3.5-4B", "model on the service")
    lora_rank: int = setting(32, "rank of the LoRA adapter, 4 to 64")
    train_mlp: bool = setting(True, "adapt the MLP layers")
    train_attn: bool = setting(True, "adapt the attention layers")
    train_unembed: bool = setting(False, "adapt the output embedding")
    tokenizer: str = setting("", "folder or hub id of the tokenizer; empty: the base model's")
    base_url: str = setting("", "address of the service; empty: the SDK's own", free=True)
    calls_in_flight: int = setting(16, "sampling and scoring calls under way at once", free=True)
    deadline: float = setting(1800.0, "seconds a call may take", free=True)
    snapshots: Literal["auto", "temporary", "named"] = setting(
        "auto",
        "temporary weights end after 6 hours; auto: named ones once steps take over 2",
        free=True,
    )
    loss_reduction: Literal[
        "auto", "token_sum", "row_mean", "token_mean", "advantage_token_mean", "sequence_mean"
    ] = setting("auto", "what the service does with per-token losses; auto: found by the probe")
    max_seq_len: int = setting(16384, "longest row the service takes, tokens")
    telemetry: bool = setting(False, "let the SDK report its use to the service's maker", free=True)

    def __post_init__(self) -> None:
        check_choices(self)
        check_address(self.base_url)
        if not 4 <= self.lora_rank <= 64:
            raise ConfigError(f"lora_rank={self.lora_rank}: PyTRIO takes 4 to 64")
        if self.calls_in_flight < 1:
            raise ConfigError(f"calls_in_flight={self.calls_in_flight}: must be at least 1")
        if not self.deadline > 0 or self.max_seq_len < 2:
            raise ConfigError(
                f"deadline={self.deadline}, max_seq_len={self.max_seq_len}: both must be positive"
            )
        if not (self.train_mlp or self.train_attn or self.train_unembed):
            raise ConfigError("train_mlp, train_attn and train_unembed are all off: train one")


def create(config: Config) -> PytrioBackend:
    """Load the SDK and build the backend; nothing is called before a client is made.

    Raises:
        MissingExtra: the SDK or Transformers is not installed.
        ConfigError: the SDK is older than the oldest that works.
    """
    from turncredit.backends.pytrio import versions

    trio = versions.sdk()
    from turncredit.backends.pytrio.backend import PytrioBackend

    return PytrioBackend(config, trio)
