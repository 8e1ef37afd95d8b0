"""The sampling client (one immutable table) and the training client (the table in training)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from turncredit.backends import contract
from turncredit.backends.tabular.losses import RowLoss, row_loss
from turncredit.backends.tabular.policy import Table, draw, log_softmax
from turncredit.backends.tabular.reader import Reader, TokenIds
from turncredit.backends.tabular.tokenizer import TableTokenizer
from turncredit.backends.tabular.training import State, write
from turncredit.core.calls import (
    AdamParams,
    ForwardBackwardOutput,
    Sample,
    SampleResult,
    SamplingParams,
    ScoreResult,
)
from turncredit.core.datum import Datum, Distribution
from turncredit.core.errors import BackendError
from turncredit.core.losses import LossSpec, parse_loss
from turncredit.core.metering import Meter
from turncredit.core.types import Array, Ids, Usage, frozen_array


@dataclass(frozen=True)
class Shared:
    """What all clients of one backend use.

    `identity` are the settings a saved table belongs to.
    """

    tokenizer: TableTokenizer
    reader: Reader
    meter: Meter
    identity: Mapping[str, Any]
    optimizer: Literal["adam", "sgd"]


class TableSamplingClient:
    """Samples and scores with one immutable table."""

    def __init__(self, shared: Shared, table: Table, snapshot_id: str) -> None:
        self._shared, self.snapshot_id = shared, snapshot_id
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
            samples=samples, snapshot_id=self.snapshot_id, usage=self._shared.meter.add(usage)
        )

    def _one(
        self, table: Table, context: list[int], params: SamplingParams, rng: np.random.Generator
    ) -> Sample:
        end_id = self._shared.tokenizer.end_id
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < params.max_tokens:
            end = len(context)
            (where,) = self._shared.reader.situations(context, end, end + 1)
            logprob_V = table.logprob_V(where)
            token = draw(logprob_V, temperature=params.temperature, top_p=params.top_p, rng=rng)
            tokens.append(token)
            logprobs.append(float(logprob_V[token]))
            context.append(token)
            if token in params.stop_ids or token == end_id:
                break
        stopped = bool(tokens) and tokens[-1] in (*params.stop_ids, end_id)
        reason = "stop" if stopped else "length"
        return Sample(tokens=tuple(tokens), logprobs=tuple(logprobs), stop_reason=reason)

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        """Score `tokens`; entry 0, and what lies before the last n, is NaN."""
        table = self._open()
        first = 1 if last_n is None else max(1, len(tokens) - last_n)
        logprob_T = score(self._shared.reader, table, tokens, first)
        usage = self._shared.meter.add(Usage(prefill=len(tokens), requests=1))
        return ScoreResult(
            logprobs=frozen_array(logprob_T), snapshot_id=self.snapshot_id, usage=usage
        )

    async def distribution(
        self, tokens: Ids, *, last_n: int, k: int, temperature: float = 1.0
    ) -> Distribution:
        """The k likeliest tokens (k < 0: all, in order of id) where each of the last n was drawn.

        Raises:
            ConfigError: k is 0, or the temperature not positive.
        """
        table = self._open()
        contract.check_question(k, temperature)
        first, length = max(1, len(tokens) - last_n), len(tokens)
        situations = self._shared.reader.situations(tokens, first, length)
        logprob_nV = log_softmax(table.logprob_NV(situations) / temperature)
        order_nV = np.argsort(-logprob_nV, axis=1, kind="stable")
        vocabulary = np.broadcast_to(np.arange(logprob_nV.shape[1]), logprob_nV.shape)
        chosen_nk = order_nV[:, :k] if k > 0 else vocabulary
        ids = np.zeros((length, chosen_nk.shape[1]), np.int64)
        if k < 0:
            ids[:] = np.arange(ids.shape[1])
        logprobs = np.full(ids.shape, np.nan, np.float32)
        ids[first:] = chosen_nk
        logprobs[first:] = np.take_along_axis(logprob_nV, chosen_nk, axis=1)
        self._shared.meter.add(Usage(prefill=length, requests=1))
        return Distribution(ids, logprobs)

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

    def __init__(self, shared: Shared, state: State, save_dir: Path) -> None:
        self._shared, self._state, self._save_dir = shared, state, save_dir

    async def save_weights_and_get_sampling_client(self) -> TableSamplingClient:
        """A client of a frozen copy."""
        state = self._state
        return TableSamplingClient(self._shared, state.table(), state.snapshot_id())

    def track_average(self, decay: float) -> None:
        """Average the weights from now on; see `AveragingClient`.

        Raises:
            ConfigError: the decay is not in [0, 1).
        """
        contract.check_decay(decay)
        self._state.track_average(decay)

    async def average_sampling_client(self) -> TableSamplingClient:
        """A client of a frozen copy of the average.

        Raises:
            BackendError: no average is tracked.
        """
        state = self._state
        if (average := state.average) is None:
            raise BackendError("no average of the weights is tracked: call track_average first")
        return TableSamplingClient(self._shared, state.table(average), state.snapshot_id(average))

    async def forward_backward(
        self,
        data: Sequence[Datum],
        *,
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> ForwardBackwardOutput:
        """Accumulate exact gradients of the summed loss.

        New log-probs are (T,) per row, NaN outside action tokens.

        Raises:
            ConfigError: an unknown loss, term or setting, or a row without what a term reads.
        """
        spec = parse_loss(loss_fn, loss_fn_config)
        contract.check_rows(data, spec, len(self._shared.tokenizer))
        table = self._state.table()
        parts = [self._backward(table, datum, spec) for datum in data]
        usage = Usage(trained=sum(len(datum.tokens) for datum in data), requests=1)
        return ForwardBackwardOutput(
            logprobs=tuple(
                _spread(part.new_N, datum) for part, datum in zip(parts, data, strict=True)
            ),
            metrics=_metrics(parts, data, spec),
            usage=self._shared.meter.add(usage),
        )

    def _backward(self, table: Table, datum: Datum, spec: LossSpec) -> RowLoss:
        at_N = np.flatnonzero(datum.mask)
        first, last = int(at_N[0]), int(at_N[-1])
        situations = self._shared.reader.situations(datum.tokens, first, last + 1)
        where_N = [situations[position - first] for position in at_N.tolist()]
        part = row_loss(spec, datum, table.logprob_NV(where_N))
        self._state.backward(where_N, part.slope_NV)
        return part

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """One step on the accumulated gradients."""
        return self._state.step(params, adam=self._shared.optimizer == "adam")

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
        write(path, kind, self._state, self._shared.identity)
        return str(path)


def _spread(new_N: Array, datum: Datum) -> Array:
    new_T = np.full(len(datum.tokens), np.nan)
    new_T[datum.mask] = new_N
    return frozen_array(new_T)


def _metrics(parts: Sequence[RowLoss], data: Sequence[Datum], spec: LossSpec) -> dict[str, float]:
    """Means per action token, but for `loss`; of a term, over the tokens that have a weight."""
    pairs = zip(parts, data, strict=True)
    drift = sum(float((datum.logprobs[datum.mask] - part.new_N).sum()) for part, datum in pairs)
    tokens = max(1, sum(len(part.new_N) for part in parts))
    out = {
        "loss": float(sum(part.loss for part in parts)),
        "clip_fraction": sum(part.clipped for part in parts) / tokens,
        "dual_clip_fraction": sum(part.floored for part in parts) / tokens,
        "approx_kl": drift / tokens,
    }
    for term in spec.terms:
        values = np.concatenate([part.values[term] for part in parts] or [np.zeros(0)])
        out[term] = float(values.mean()) if len(values) else 0.0
    return out
