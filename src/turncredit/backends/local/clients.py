"""The sampling client (one frozen snapshot) and the training client (live weights)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from turncredit.backends import contract
from turncredit.backends.local import Config, sampler_files, state
from turncredit.backends.local.decode import Row
from turncredit.backends.local.device import fitting
from turncredit.backends.local.engine import Engine
from turncredit.backends.local.packs import Index
from turncredit.backends.local.policy import Tensors
from turncredit.backends.local.score import Question, Reading, row_distribution, row_logprobs
from turncredit.backends.local.trainer import Tally, Trainer
from turncredit.core.calls import (
    AdamParams,
    ForwardBackwardOutput,
    SampleResult,
    SamplingParams,
    ScoreResult,
)
from turncredit.core.datum import Datum, Distribution
from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.losses import parse_loss
from turncredit.core.metering import Meter
from turncredit.core.types import Array, Ids, Usage


class LocalSamplingClient:
    """Bound to copies of the trained tensors; nothing that happens later can change them."""

    def __init__(self, engine: Engine, snapshot_id: str, weights: Tensors, meter: Meter) -> None:
        self.snapshot_id = snapshot_id
        self._engine, self._weights, self._meter = engine, weights, meter
        self._closed = False

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        """Sample continuations of `prompt` (sample i uses `params.seed + i`)."""
        ids = self._checked(prompt, more=params.max_tokens)
        if num_samples < 1:
            raise ConfigError(f"num_samples is {num_samples}; it must be at least 1")
        self._engine.decoder.check(len(ids) + params.max_tokens)
        rows = [
            Row(self.snapshot_id, self._weights, list(ids), params, params.seed + i)
            for i in range(num_samples)
        ]
        try:
            with fitting("sampling", "Lower --cache-gib, then --max-batch"):
                await self._engine.sample(rows)
        finally:  # who gives a call up has used it, too
            usage = self._meter.add(
                Usage(
                    prefill=sum(row.prefilled for row in rows),
                    cached=sum(row.reused for row in rows),
                    sampled=sum(len(row.out) for row in rows),
                    requests=1,
                )
            )
        samples = tuple(row.sample() for row in rows)
        return SampleResult(samples=samples, snapshot_id=self.snapshot_id, usage=usage)

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        """Score `tokens` at temperature 1; with `last_n`, earlier entries are NaN."""
        ids = self._checked(tokens)
        return await self._scored(ids, _last(ids, last_n))

    async def pick_logprobs(self, tokens: Ids, at_N: Ids) -> ScoreResult:
        """`compute_logprobs` at N places, ascending, never 0; every other entry is NaN."""
        ids = self._checked(tokens)
        contract.check_places(at_N, len(ids))
        return await self._scored(ids, np.asarray(at_N, np.int64))

    async def distribution(
        self, tokens: Ids, *, last_n: int, k: int, temperature: float = 1.0
    ) -> Distribution:
        """The k likeliest tokens (k < 0: all, in order of id) where each of the last n was drawn.

        Raises:
            ConfigError: k is 0, or the temperature not positive.
        """
        ids = self._checked(tokens)
        contract.check_question(k, temperature)
        read = partial(row_distribution, k=k, temperature=temperature)
        found, _ = await self._read(ids, read, _last(ids, last_n))
        return found

    async def close(self) -> None:
        """Free the snapshot and its cached sequences."""
        self._closed = True
        self._engine.decoder.forget(self.snapshot_id)
        self._weights = {}

    async def _scored(self, ids: list[int], at_N: Index) -> ScoreResult:
        scores, usage = await self._read(ids, row_logprobs, at_N)
        return ScoreResult(logprobs=scores, snapshot_id=self.snapshot_id, usage=usage)

    async def _read(self, ids: list[int], read: Reading, at_N: Index) -> tuple[Any, Usage]:
        question = Question(ids, at_N, read)
        with fitting("scoring", "Lower --batch-tokens"):
            found, cached = await self._engine.score(self.snapshot_id, self._weights, question)
        usage = Usage(prefill=len(ids) - cached, cached=cached, requests=1)
        return found, self._meter.add(usage)

    def _checked(self, tokens: Ids, *, more: int = 0) -> list[int]:
        if self._closed:
            raise BackendError(f"snapshot {self.snapshot_id} is closed")
        ids = np.asarray(tokens, np.int64)
        if not len(ids):
            raise ConfigError("no tokens: a prompt needs at least one")
        size = self._engine.policy.vocabulary
        if ids.min() < 0 or ids.max() >= size:
            wrong = next(i for i in ids if not 0 <= i < size)
            raise ConfigError(f"token id {wrong} is outside this model's vocabulary of {size}")
        if len(ids) + more > (longest := self._engine.policy.positions):
            raise ConfigError(
                f"{len(ids)} tokens"
                + (f" and {more} more" if more else "")
                + f" do not fit into the {longest} positions of this model"
            )
        return ids.tolist()


def _last(ids: list[int], n: int | None) -> Index:
    """Places of the last n tokens that have one before them (None: of all)."""
    return np.arange(1 if n is None else max(1, len(ids) - n), len(ids))


class LocalTrainingClient:
    """The weights being trained, with their optimizer."""

    def __init__(
        self, config: Config, engine: Engine, trainer: Trainer, save_dir: Path, meter: Meter
    ) -> None:
        self.base_model = config.base_model
        self._config, self._engine, self._trainer = config, engine, trainer
        self._save_dir, self._meter = save_dir, meter

    async def save_weights_and_get_sampling_client(self) -> LocalSamplingClient:
        """Copy the trained tensors; the id is the step count and a hash of their content."""
        return self._frozen(self._trainer.weights)

    def track_average(self, decay: float) -> None:
        """Average the weights from now on; see `AveragingClient`.

        Raises:
            ConfigError: the decay is not in [0, 1).
        """
        contract.check_decay(decay)
        self._trainer.track_average(decay)

    async def average_sampling_client(self) -> LocalSamplingClient:
        """A client of a frozen copy of the average.

        Raises:
            BackendError: no average is tracked.
        """
        trainer = self._trainer
        if not trainer.average:
            raise BackendError("no average of the weights is tracked: call track_average first")
        return self._frozen({n: a.to(trainer.weights[n].dtype) for n, a in trainer.average.items()})

    async def forward_backward(
        self,
        data: Sequence[Datum],
        *,
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> ForwardBackwardOutput:
        """Accumulate gradients of the sum over action tokens.

        New log-probs are (T,) per row, NaN outside action tokens.

        Raises:
            ConfigError: an unknown loss, term or setting, a row without what a term reads, or one
                that is longer than the model's positions.
            BackendError: the device's memory does not suffice.
        """
        loss = parse_loss(loss_fn, loss_fn_config)
        contract.check_rows(data, loss, self._engine.policy.vocabulary)
        longest = max((len(row.tokens) for row in data), default=0)
        if longest > (most := self._engine.policy.positions):
            raise ConfigError(
                f"a row of {longest} tokens does not fit into the {most} of this model"
            )
        tally = Tally()
        logprobs: list[Array] = [np.zeros(0)] * len(data)
        for batch in self._trainer.micro_batches(data, self._config.batch_tokens):
            rows = [data[i] for i in batch]
            with fitting("training", "Lower --activation-gib, or use --checkpointing on"):
                new = self._trainer.accumulate(rows, loss, tally)
            for i, found in zip(batch, new, strict=True):
                logprobs[i] = found
            await asyncio.sleep(0)
        usage = Usage(trained=sum(len(row.tokens) for row in data), requests=1)
        return ForwardBackwardOutput(
            logprobs=tuple(logprobs), metrics=tally.metrics(), usage=self._meter.add(usage)
        )

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """One AdamW step, or none when a gradient is not finite (`skipped_steps` says so)."""
        with fitting("the optimizer", "Use a --lora-rank, or --optimizer adamw8bit"):
            return self._trainer.optimize(params)

    async def save_state(self, name: str) -> str:
        """Save weights and optimizer in `save_dir/NAME/state`.

        Raises:
            BackendError: gradients are waiting for their optimizer step.
        """
        trainer = self._trainer
        if trainer.gradients:
            raise BackendError("gradients are pending: call optim_step before save_state")

        def fill(folder: Path) -> None:
            state.save_tensors(folder / "weights.safetensors", trainer.weights)
            for file, tensors in trainer.optimizer.files().items():
                state.save_tensors(folder / file, tensors)
            if trainer.average:
                state.save_tensors(folder / "average.safetensors", trainer.average)

        target = self._save_dir / name / "state"
        about = {
            **self._identity(),
            "optimizer": trainer.optimizer.name,
            "steps": trainer.steps,
        }
        if trainer.average:
            about["average_decay"] = trainer.decay
        state.write_folder(target, fill, about)
        return str(target)

    async def save_weights_for_sampler(self, name: str) -> str:
        """Save a PEFT adapter (or, at rank 0, a whole model) in `save_dir/NAME/sampler`."""
        target = self._save_dir / name / "sampler"
        about = {**self._identity(), "snapshot_id": self._snapshot_id()}
        self._engine.policy.mount(self._trainer.weights)
        sampler_files.save(target, self._engine.policy, about)
        return str(target)

    def restore(self, folder: Path) -> None:
        """Continue from a saved state.

        Raises:
            ConfigError: it belongs to another model or rank.
            DataError: it is torn.
        """
        about = state.read_about(folder)
        trainer = self._trainer
        wanted = {**self._identity(), "optimizer": trainer.optimizer.name}
        state.check_same(about, wanted, folder)
        like = trainer.weights
        trainer.weights = state.load_tensors(folder / "weights.safetensors", like)
        trainer.optimizer.restore(folder, int(about["steps"]))
        if "average_decay" in about:
            wide = {name: weight.float() for name, weight in like.items()}
            trainer.average = state.load_tensors(folder / "average.safetensors", wide)
            trainer.decay = float(about["average_decay"])

    def start_from(self, folder: Path) -> None:
        """Take weights saved for the sampler; the optimizer is a new one.

        Raises:
            ConfigError: they belong to another model or rank.
            DataError: the folder is torn, or holds a training state.
        """
        saved = sampler_files.describe(folder)
        about = {"lora_rank": saved.lora_rank} if saved.about is None else saved.about
        state.check_same({**self._identity(), **about}, self._identity(), folder)
        trainer = self._trainer
        trainer.weights = sampler_files.load(saved, self._engine.policy, trainer.weights)

    def _identity(self) -> dict[str, object]:
        policy = self._engine.policy
        return {
            "base_model": self.base_model,
            "fingerprint": policy.fingerprint,
            "lora_rank": policy.lora_rank,
            "quantize": self._config.quantize,
            "dtype": str(policy.model.dtype).removeprefix("torch."),
        }

    def _frozen(self, weights: Tensors) -> LocalSamplingClient:
        copies = {name: weight.clone() for name, weight in weights.items()}
        return LocalSamplingClient(self._engine, self._snapshot_id(copies), copies, self._meter)

    def _snapshot_id(self, weights: Tensors | None = None) -> str:
        weights = weights or self._trainer.weights
        digest = hashlib.sha256()
        for name in sorted(weights):
            digest.update(weights[name].cpu().contiguous().numpy().tobytes())
        return f"{self._trainer.steps:06d}-{digest.hexdigest()[:12]}"
