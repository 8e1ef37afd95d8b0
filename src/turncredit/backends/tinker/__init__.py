"""Tinker, and self-hosted servers that speak its protocol (`--base-url`).

Importing this module is cheap: the `tinker` package is loaded by `create`, not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turncredit.backends.hosted.addresses import check_address
from turncredit.core.calls import Capabilities
from turncredit.core.errors import ConfigError
from turncredit.core.settings import check_choices, setting

if TYPE_CHECKING:
    from turncredit.backends.tinker.backend import TinkerBackend

# Losses whose formula is the one of `core.losses`. GSPO is left out: newer services have one, but
# which tokens of a row its ratio covers is theirs to choose.
CAPABILITIES = Capabilities(
    losses=frozenset({"ppo", "importance_sampling", "cispo", "cross_entropy"}),
    cached_token_counts=True,
    remote=True,
)


@dataclass(frozen=True)
class Config:
    """Which model is trained where, and how patiently."""

    base_model: str = setting("Qwen/Qwen3.5-4B", "the base model, as the service names it")
    lora_rank: int = setting(32, "rank of the LoRA adapter")
    base_url: str = setting(
        "", "a self-hosted server's address; empty: TINKER_BASE_URL, or Tinker", free=True
    )
    tokenizer: str = setting("", "folder or hub id of the tokenizer; empty: the base model's")
    train_mlp: bool = setting(True, "adapters on the MLP layers")
    train_attn: bool = setting(True, "adapters on the attention layers")
    train_unembed: bool = setting(False, "an adapter on the output layer")
    sampler_kind: Literal["snapshot", "inflight"] = setting(
        "snapshot", "sampling weights: snapshot (inflight ones change under the teacher: refused)"
    )
    loss_reduction: Literal[
        "auto", "token_sum", "row_mean", "token_mean", "advantage_token_mean", "sequence_mean"
    ] = setting("auto", "what the service does with per-token losses; auto: Tinker's sum, probed")
    calls_in_flight: int = setting(128, "sampling and scoring calls under way at once", free=True)
    deadline: float = setting(1800.0, "seconds one call may take", free=True)
    telemetry: bool = setting(False, "let the SDK report events to the service's makers", free=True)

    def __post_init__(self) -> None:
        check_choices(self)
        check_address(self.base_url)
        if self.sampler_kind == "inflight":
            raise ConfigError(
                'sampler_kind="inflight": such a sampler changes its weights while it is used, but '
                "the teacher must score with the weights that sampled. Use snapshot"
            )
        for name in ("lora_rank", "calls_in_flight"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be at least 1")
        if not self.deadline > 0:
            raise ConfigError(f"deadline={self.deadline}: must be positive")
        if not (self.train_mlp or self.train_attn or self.train_unembed):
            raise ConfigError("train_mlp, train_attn and train_unembed are all off: train one")


def create(config: Config) -> TinkerBackend:
    """Load the SDK and build the backend. No call is made and no key is needed yet.

    Raises:
        MissingExtra: the `tinker` package is not installed.
        ConfigError: it is older than 0.25.
    """
    from turncredit.backends.tinker.backend import TinkerBackend

    return TinkerBackend(config)
