"""What an environment, a hint source, a method and a backend must offer. Nothing more is asked.

A *component* (environment, method, backend, hint) is a module or class reached by name through
`core.registry`. It may carry a frozen dataclass `Config`; every field of it becomes a recipe key
and a command-line flag. `create(config)` builds the object (methods are pure functions instead).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from turncredit.core.costs import Ceilings, ModelShape
from turncredit.core.datum import Datum, Distribution
from turncredit.core.errors import ConfigError
from turncredit.core.types import Array, Credit, Group, Ids, Message, Observation, Step, Task, Usage

# ── environments: text in, text out ──────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Tool:
    """The one tool a policy calls to act: a function with one string argument."""

    name: str
    description: str
    argument: str
    argument_description: str

    def schema(self) -> dict[str, Any]:
        """The tool in the JSON form chat templates expect."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {
                        self.argument: {
                            "type": "string",
                            "description": self.argument_description,
                        }
                    },
                    "required": [self.argument],
                },
            },
        }


class Episode(Protocol):
    """One play of one task. Single-use: start once, act until done, close."""

    async def start(self) -> Observation:
        """The opening text. Called exactly once, first."""
        ...

    async def act(self, action: str) -> Step:
        """Execute one command. An inadmissible one changes nothing and says so."""
        ...

    async def close(self) -> None:
        """Free what the episode holds. Safe to call twice."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A family of tasks. `tasks` is deterministic: same configuration, same ordered list."""

    name: str
    instructions: str
    tool: Tool
    splits: tuple[str, ...]

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split, sorted by id."""
        ...

    def episode(self, task: Task) -> Episode:
        """A fresh episode of `task`; any number may run at once without touching each other."""
        ...


# ── methods (hint sources are in core.looks) ─────────────────────────────────────────────────


class Method(Protocol):
    """A credit method: a module with these three names.

    It may also hold `NEEDS` (`core.needs.Needs`), `loss_settings(config)` with the numbers of its
    loss and term, `keep(group, config)` saying which groups are worth an update (others are
    sampled again), and `retire(state, seen, config)` deciding when the teacher goes for good.
    """

    Config: ClassVar[type]
    NEEDS_TEACHER: ClassVar[bool]

    @staticmethod
    def credit(group: Group, config: Any) -> Credit:
        """Pure: numbers in, numbers out."""
        ...


# ── backends: tokens in, tokens and log-probs out, update ────────────────────────────────────


class Tokenizer(Protocol):
    """What chat needs of a model's tokenizer."""

    eos_ids: tuple[int, ...]  # ids that end an assistant turn

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Ids of `text`, nothing added. With `parse_special` False no special id can appear."""
        ...

    def decode(self, ids: Ids) -> str:
        """Text of `ids`, special tokens written out."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
    ) -> str:
        """The model's own chat template applied to `messages`, as text, thinking switched off."""
        ...


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


# Saved weights are sampled from; training begins with them; or their own run goes on from them.
WeightsUse = Literal["sample", "begin", "resume"]


@runtime_checkable
class RemoteBackend(Protocol):
    """A backend on somebody else's machine: what it does is tried out, and has its price."""

    def check_key(self) -> None:
        """Refuse to go on without a key, before anything is looked for or made.

        Raises:
            BackendError: there is none, with where to get one.
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
            BackendError: training is to go on from them, and they are gone.
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


class Tracker(Protocol):
    """A mirror of the metrics (the run folder is the record)."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Mirror one step."""
        ...

    def close(self) -> None:
        """Flush and finish."""
        ...
