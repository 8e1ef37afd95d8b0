"""Backends and their clients: tokens in, tokens and log-probs out, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from turncredit.core.calls import (
    AdamParams,
    Capabilities,
    ForwardBackwardOutput,
    SampleResult,
    SamplingParams,
    ScoreResult,
)
from turncredit.core.costs import Ceilings, ModelShape
from turncredit.core.datum import Datum, Distribution
from turncredit.core.protocols import Tokenizer
from turncredit.core.types import Ids, Usage

# Saved weights are sampled from; training begins with them; or their own run goes on from them.
WeightsUse = Literal["sample", "begin", "resume"]


class SamplingClient(Protocol):
    """Bound to one immutable snapshot of the weights."""

    snapshot_id: str

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        """Sample continuations of `prompt` (sample i uses `params.seed + i`)."""
        ...

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        """Score `tokens` at temperature 1."""
        ...

    async def close(self) -> None:
        """Free the snapshot."""
        ...


@runtime_checkable
class DistributionClient(Protocol):
    """A sampling client that also gives the distribution behind every token."""

    async def distribution(
        self, tokens: Ids, *, last_n: int, k: int, temperature: float = 1.0
    ) -> Distribution:
        """The k likeliest tokens (k < 0: all, in order of id) where each of the last n was drawn.

        Logits are divided by `temperature` first. Entries before the last n are NaN.
        """
        ...


@runtime_checkable
class PickingClient(Protocol):
    """A sampling client that scores single tokens of a row, without the work for all others."""

    async def pick_logprobs(self, tokens: Ids, at_N: Ids) -> ScoreResult:
        """`compute_logprobs` at N places, ascending, never 0; every other entry is NaN."""
        ...


class TrainingClient(Protocol):
    """The weights being trained, with their optimizer."""

    base_model: str

    async def save_weights_and_get_sampling_client(self) -> SamplingClient:
        """Freeze the current weights and return a client bound to them."""
        ...

    async def forward_backward(
        self,
        data: Sequence[Datum],
        *,
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> ForwardBackwardOutput:
        """Accumulate gradients of the *sum* over action tokens; nothing else is reduced here.

        `loss_fn` is a policy loss and any terms: "ppo", "ppo+sdar+kl". Reference: `loop.reference`.
        """
        ...

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """One AdamW step on the accumulated gradients, which it clears. Returns `grad_norm`."""
        ...

    async def save_state(self, name: str) -> str:
        """Save weights and optimizer atomically; returns a path or URI to resume from."""
        ...

    async def save_weights_for_sampler(self, name: str) -> str:
        """Save the weights alone; returns a path or URI for sampling."""
        ...


@runtime_checkable
class AveragingClient(Protocol):
    """A training client that also keeps a running average of its weights, saved with its state."""

    def track_average(self, decay: float) -> None:
        """From now on average ← decay · average + (1 − decay) · weights after each step.

        Starts at the present weights, unless a restored state brought an average along.
        """
        ...

    async def average_sampling_client(self) -> SamplingClient:
        """A client of a frozen copy of the average."""
        ...


@runtime_checkable
class UpdatingClient(Protocol):
    """A training client that takes gradients and their step in one call, which saves waiting."""

    async def update(
        self,
        data: Sequence[Datum],
        *,
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
        params: AdamParams,
    ) -> tuple[ForwardBackwardOutput, Mapping[str, float]]:
        """`forward_backward`, then `optim_step`; either both take effect or the run is lost."""
        ...


class Backend(Protocol):
    """A place where a policy is sampled and trained."""

    name: str

    def capabilities(self) -> Capabilities:
        """Known without running anything."""
        ...

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer of the base model."""
        ...

    async def create_training_client(
        self,
        *,
        seed: int,
        save_dir: str,
        from_state: str | None = None,
        from_weights: str | None = None,
    ) -> TrainingClient:
        """Fresh trainable weights; those of a saved state with their optimizer; or weights alone.

        `from_weights` is what `save_weights_for_sampler` gave: their optimizer starts anew.
        """
        ...

    async def create_sampling_client(self, *, model_path: str | None = None) -> SamplingClient:
        """A client of the base model, or of weights saved for the sampler."""
        ...

    def usage(self) -> Usage:
        """All tokens so far, as counted here."""
        ...

    async def aclose(self) -> None:
        """Free everything."""
        ...


@runtime_checkable
class MeasuredBackend(Protocol):
    """A backend that knows what its arithmetic costs: runs on it are held against the floor."""

    def model_shape(self) -> ModelShape | None:
        """Of the policy in training; None before there is one."""
        ...

    def ceilings(self) -> Ceilings | None:
        """Of its machine, measured in half a second at most; None: it cannot tell."""
        ...


@runtime_checkable
class RemoteBackend(Protocol):
    """A backend on somebody else's machine: what it does is tried out, and has its price."""

    def check_key(self) -> None:
        """Refuse to go on without a key, before anything is looked for or made.

        Raises:
            BackendError: there is none, or one that the SDK refuses; with where to get one.
        """
        ...

    async def check_weights(self, path: str, *, use: WeightsUse) -> None:
        """Refuse saved weights that are gone, or of another model or rank; costs nothing.

        Where the service cannot say, nothing is refused.

        Args:
            path: their URI.
            use: what they are for.

        Raises:
            ConfigError: they do not fit; with the setting to give.
            BackendError: they are gone.
        """
        ...

    @property
    def observed(self) -> Mapping[str, int]:
        """How answers looked before they were normalised."""
        ...

    async def reach(self) -> None:
        """Open the session and learn what the service says of itself; costs nothing.

        Afterwards `capabilities` says how long a row may be, where the service does.
        """
        ...

    def use_reduction(self, reduction: str) -> None:
        """Scale rows from now on for what the service was found to make of per-token losses."""
        ...

    def listen(self, say: Callable[[str], None]) -> None:
        """Say in words when the service makes us wait: rate limits, no capacity, no balance."""
        ...

    def abandoned(self) -> tuple[int, Usage]:
        """Calls given up while the service had them, and what they may have cost."""
        ...
