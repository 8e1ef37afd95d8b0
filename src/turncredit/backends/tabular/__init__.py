"""An exact tiny policy for small text environments: NumPy only, deterministic, resumes exactly.

It learns one row of logits for every last message it has seen, so it fits environments whose
observations name the state (the toy). With its default optimizer (AdamW, as on the other backends)
a bounded factor on one turn cancels, because every row is divided by its own gradient size; with
`table_optimizer = "sgd"` the size of an advantage is the size of a step, and turn credit shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from turncredit.backends.tabular.policy import Base, Reader, Table, TokenIds, draw
from turncredit.backends.tabular.tokenizer import TableTokenizer
from turncredit.backends.tabular.training import (
    LOSSES,
    State,
    gradient_rows,
    loss_settings,
    read,
    token_loss,
    write,
)
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.protocols import (
    AdamParams,
    Capabilities,
    ForwardBackwardOutput,
    Sample,
    SampleResult,
    SamplingParams,
    ScoreResult,
)
from turncredit.core.settings import setting
from turncredit.core.types import Array, Ids, Usage, frozen_array


@dataclass(frozen=True)
class Config:
    """The actions the table can take, its untrained leanings, and its optimizer."""

    table_tool: str = setting("toy_step", "name of the tool the policy calls")
    table_actions: tuple[str, ...] = setting(("left", "right"), "actions the policy can take")
    habit: float = setting(1.0, "extra logit of the first action before training")
    hint_bonus: float = setting(2.0, "extra logit of an action that a hint names for this place")
    table_optimizer: Literal["adam", "sgd"] = setting("adam", "AdamW, or plain gradient steps")

    def __post_init__(self) -> None:
        if len(set(self.table_actions)) < 2:
            raise ConfigError("table_actions needs at least two different actions")


class Ledger:
    """Tokens used by everything one backend made."""

    def __init__(self) -> None:
        self.total = Usage()

    def count(self, usage: Usage) -> Usage:
        """Add `usage` and return it."""
        self.total += usage
        return usage


class TableSamplingClient:
    """Samples and scores with one immutable table."""

    def __init__(self, backend: TabularBackend, table: Table, snapshot_id: str) -> None:
        self._backend, self.snapshot_id = backend, snapshot_id
        self._table: Table | None = table

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        """Sample continuations of `prompt`."""
        table = self._open()
        samples = tuple(
            self._one(table, list(prompt), params, np.random.default_rng(abs(params.seed + i)))
            for i in range(num_samples)
        )
        sampled = sum(len(s.tokens) for s in samples)
        usage = Usage(prefill=len(prompt), sampled=sampled, requests=1)
        return SampleResult(
            samples=samples, snapshot_id=self.snapshot_id, usage=self._backend.ledger.count(usage)
        )

    def _one(
        self, table: Table, context: list[int], params: SamplingParams, rng: np.random.Generator
    ) -> Sample:
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < params.max_tokens:
            end = len(context)
            (where,) = self._backend.reader.situations(context, end, end + 1)
            logprob_V = table.logprob_V(where)
            token = draw(logprob_V, temperature=params.temperature, top_p=params.top_p, rng=rng)
            tokens.append(token)
            logprobs.append(float(logprob_V[token]))
            context.append(token)
            if token in params.stop_ids or token == self._backend.tokenizer.end_id:
                break
        stopped = bool(tokens) and tokens[-1] in (*params.stop_ids, self._backend.tokenizer.end_id)
        reason = "stop" if stopped else "length"
        return Sample(tokens=tuple(tokens), logprobs=tuple(logprobs), stop_reason=reason)

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        """Score `tokens`; entry 0, and what lies before the last n, is NaN."""
        table = self._open()
        first = 1 if last_n is None else max(1, len(tokens) - last_n)
        logprob_T = score(self._backend.reader, table, tokens, first)
        usage = self._backend.ledger.count(Usage(prefill=len(tokens), requests=1))
        return ScoreResult(
            logprobs=frozen_array(logprob_T), snapshot_id=self.snapshot_id, usage=usage
        )

    async def close(self) -> None:
        """Drop the table."""
        self._table = None

    def _open(self) -> Table:
        if self._table is None:
            raise BackendError(f"sampling client of {self.snapshot_id} is closed; take a new one")
        return self._table


def score(reader: Reader, table: Table, tokens: TokenIds, first: int) -> Array:
    """Log-prob of every token from `first` on, (T,), NaN before."""
    logprob_T = np.full(len(tokens), np.nan)
    if first < len(tokens):
        situations = reader.situations(tokens, first, len(tokens))
        logprob_T[first:] = table.score(tokens, situations, first)
    return logprob_T


class TableTrainingClient:
    """The table in training."""

    base_model = "tabular"

    def __init__(self, backend: TabularBackend, state: State, save_dir: Path) -> None:
        self._backend, self._state, self._save_dir = backend, state, save_dir

    async def save_weights_and_get_sampling_client(self) -> TableSamplingClient:
        """A client of a frozen copy."""
        state = self._state
        return TableSamplingClient(self._backend, state.table(), state.snapshot_id())

    async def forward_backward(
        self,
        data: Sequence[Datum],
        *,
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> ForwardBackwardOutput:
        """Accumulate exact gradients of the summed loss.

        Raises:
            ConfigError: an unknown loss or setting, or rows with a distillation term.
        """
        settings = loss_settings(loss_fn, loss_fn_config)
        if any(datum.distill is not None for datum in data):
            raise ConfigError(
                "tabular has no distillation loss: fold the weights into the advantages"
            )
        table = self._state.table()
        news, parts, drift = [], [], []
        for datum in data:
            new_T = score(self._backend.reader, table, datum.tokens, 1)
            picked = (array[datum.mask] for array in (new_T, datum.logprobs, datum.advantages))
            new_N, old_N, weight_N = picked
            part = token_loss(loss_fn, settings, new_N, old_N, weight_N)
            slope_T = np.zeros(len(datum.tokens))
            slope_T[datum.mask] = part.slope_N
            self._state.backward(self._backend.reader, table, datum, slope_T)
            news.append(frozen_array(new_T))
            parts.append(part)
            drift.append(old_N - new_N)
        usage = self._backend.ledger.count(Usage(trained=gradient_rows(data), requests=1))
        tokens = max(1, sum(len(d) for d in drift))
        metrics = {
            "loss": float(sum(part.loss_N.sum() for part in parts)),
            "clip_fraction": float(sum(part.clipped_N.sum() for part in parts)) / tokens,
            "approx_kl": float(sum(d.sum() for d in drift)) / tokens,
        }
        return ForwardBackwardOutput(logprobs=tuple(news), metrics=metrics, usage=usage)

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """One step on the accumulated gradients."""
        return self._state.step(params, adam=self._backend.config.table_optimizer == "adam")

    async def save_state(self, name: str) -> str:
        """Write weights and optimizer to `save_dir/name/state.npz`."""
        return self._save(name, "state")

    async def save_weights_for_sampler(self, name: str) -> str:
        """Write the weights to `save_dir/name/sampler.npz`."""
        return self._save(name, "sampler")

    def _save(self, name: str, kind: str) -> str:
        if self._state.gradient:
            raise BackendError("gradients are waiting: call optim_step before saving")
        path = self._save_dir / name / f"{kind}.npz"
        write(path, kind, self._state, self._backend.identity)
        return str(path)


class TabularBackend:
    """Makes tables."""

    name = "tabular"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tokenizer = TableTokenizer(config.table_tool, config.table_actions)
        self.reader = Reader(self.tokenizer, config.table_actions)
        self.ledger = Ledger()
        self.identity: Mapping[str, Any] = asdict(config)
        self._base = Base(
            vocabulary=len(self.tokenizer),
            call_ids=self.tokenizer.call_ids,
            end_id=self.tokenizer.end_id,
            habit=config.habit,
            hint_bonus=config.hint_bonus,
        )

    def capabilities(self) -> Capabilities:
        """Everything is exact here."""
        return Capabilities(losses=LOSSES, exact_resume=True)

    def get_tokenizer(self) -> TableTokenizer:
        """The tiny tokenizer."""
        return self.tokenizer

    async def create_training_client(
        self, *, seed: int, save_dir: str, from_state: str | None = None
    ) -> TableTrainingClient:
        """A fresh table (the same for every seed: it starts at zero), or a saved one."""
        return TableTrainingClient(self, self._load(from_state, "state"), Path(save_dir))

    async def create_sampling_client(self, *, model_path: str | None = None) -> TableSamplingClient:
        """A client of the untrained table, or of saved sampler weights."""
        state = self._load(model_path, "sampler")
        return TableSamplingClient(self, state.table(), state.snapshot_id())

    def _load(self, path: str | None, kind: str) -> State:
        if path is None:
            return State(self._base)
        return read(Path(path), kind, self._base, self.identity)

    def usage(self) -> Usage:
        """All tokens so far."""
        return self.ledger.total

    async def aclose(self) -> None:
        """Nothing to free."""


def create(config: Config) -> TabularBackend:
    """The tabular backend."""
    return TabularBackend(config)


__all__ = ["Config", "TabularBackend", "create"]
