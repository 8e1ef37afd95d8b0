"""What the clients of a backend are asked, and what they answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from turncredit.core.errors import ConfigError
from turncredit.core.types import Array, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample one action. `seed` makes the sample reproducible whatever else is in flight.

    Raises:
        ConfigError: numbers that nothing can be sampled with.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; an action has at least one token")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}; use 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; use a mass above 0, at most 1 (all)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Sampled ids (the stop token included) with their log-probs at temperature 1, same length."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """Answer of `SamplingClient.sample`."""

    samples: tuple[Sample, ...]
    snapshot_id: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """Answer of `SamplingClient.compute_logprobs`.

    `logprobs` is (T,), entry t the log-probability of token t given those before it; entry 0
    is NaN (nothing comes before it). With `last_n`, entries before the last n may be NaN.
    """

    logprobs: Array
    snapshot_id: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackwardOutput:
    """Answer of `TrainingClient.forward_backward`: per row the new log-probs (T,), and metrics."""

    logprobs: tuple[Array, ...]
    metrics: Mapping[str, float]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamParams:
    """AdamW settings of one optimizer step (defaults: the article's)."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do, said before anything runs.

    Attributes:
        losses: policy losses accepted by `forward_backward`.
        terms: what may follow a policy loss after a "+": distillation terms, "kl", "entropy".
        distributions: sampling clients are `DistributionClient`s.
        averages: training clients are `AveragingClient`s.
        immutable_snapshots: a sampling client keeps its weights whatever training does.
        optimizer_resume: a saved state restores the optimizer too.
        exact_resume: resuming repeats the uninterrupted run bit for bit.
        loss_reduction: "token_sum" (canonical: the caller pre-scales) or what a server does.
        max_seq_len: longest row, or None.
        max_sample_len: prompt and action of one sampling call together, where less fits into the
            memory that sampling was given than the model reads; or None.
        remote: it is a `RemoteBackend`: tried out before it is used.
    """

    losses: frozenset[str]
    terms: frozenset[str] = frozenset()
    distributions: bool = False
    averages: bool = False
    immutable_snapshots: bool = True
    optimizer_resume: bool = True
    exact_resume: bool = False
    suffix_scoring: bool = True
    cached_token_counts: bool = False
    loss_reduction: str = "token_sum"
    max_seq_len: int | None = None
    max_sample_len: int | None = None
    remote: bool = False
