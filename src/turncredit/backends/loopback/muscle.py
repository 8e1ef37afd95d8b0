"""The maths behind a loopback server: training runs and samplers of one backend.

Built on `core.clients` alone. What services are known to do differently is a `Quirk`, so that
the probe of a hosted backend can be shown each of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from turncredit.backends.hosted.normalise import Reduction, Totals, shares, weighted
from turncredit.backends.hosted.shift import Shifted, unshift
from turncredit.backends.loopback.shelf import Expired, NotFound, Saved, Shelf
from turncredit.core.calls import (
    AdamParams,
    ForwardBackwardOutput,
    SampleResult,
    SamplingParams,
    ScoreResult,
)
from turncredit.core.clients import Backend, SamplingClient, TrainingClient
from turncredit.core.errors import ConfigError
from turncredit.core.types import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """What a service may do otherwise than ours.

    Attributes:
        reduction: of the per-token losses of a call.
        tempered: sampled log-probs are those of the tempered distribution.
        live_samplers: a sampler follows its run instead of keeping its weights.
        forgets_optimizer: a state that is loaded with its optimizer comes without.
        drops_first: log-probs of a prompt are one fewer than its tokens (read by the wire).
        longest: tokens of a row, or of a prompt and its answer, that it takes at most.
    """

    reduction: Reduction = "token_sum"
    tempered: bool = False
    live_samplers: bool = False
    forgets_optimizer: bool = False
    drops_first: bool = False
    longest: int | None = None


@dataclass(slots=True)
class _Run:
    """One training run; its lock keeps training operations in order of arrival."""

    training: TrainingClient
    about: Mapping[str, Any]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    steps: int = 0


class Muscle:
    """Runs and samplers, by the names clients use.

    Saved weights outlive the process; runs and temporary weights do not, as with a service whose
    worker is lost.

    Attributes:
        shelf: the saved weights.
    """

    def __init__(
        self,
        backend: Backend,
        folder: Path,
        *,
        quirks: Quirks | None = None,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - what is saved outlives processes
    ) -> None:
        self.backend, self.folder, self.quirks = backend, folder, quirks or Quirks()
        self._runs: dict[str, _Run] = {}
        self._temporary: dict[tuple[str, str], SamplingClient] = {}
        self._loaded: dict[str, SamplingClient] = {}
        self.shelf = Shelf(folder, clock)

    # ── runs ─────────────────────────────────────────────────────────────────────────────────

    async def open_run(
        self,
        run: str,
        *,
        seed: int = 0,
        source: Saved | None = None,
        optimizer: bool = False,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a training run, fresh or from saved weights. `about` is kept for the wire.

        Raises:
            BackendError: what the backend refuses.
        """
        origin: dict[str, str] = {}
        if source is not None:
            self.shelf.check_fresh(source)
            if optimizer and not self.quirks.forgets_optimizer:
                origin = {"from_state": source.path}
            else:
                origin = {"from_weights": source.sampler_path or source.path}
        training = await self.backend.create_training_client(
            seed=seed, save_dir=str(self.folder / run), **origin
        )
        self._runs[run] = _Run(training, dict(about or {}))

    def about(self, run: str) -> Mapping[str, Any]:
        """What was said of a run when it was opened."""
        return self._run(run).about

    def runs(self) -> list[str]:
        """Open runs."""
        return list(self._runs)

    async def close_run(self, run: str) -> None:
        """Forget a run and its temporary weights; saved ones stay."""
        self._runs.pop(run, None)
        for key in [key for key in self._temporary if key[0] == run]:
            await self._temporary.pop(key).close()
            self.shelf.forget(run, "sampler_weights", key[1])

    # ── training ─────────────────────────────────────────────────────────────────────────────

    async def forward_backward(
        self,
        run: str,
        rows: Sequence[Shifted],
        *,
        loss_fn: str,
        settings: Mapping[str, float] | None = None,
        totals: Totals | None = None,
        backward: bool = True,
    ) -> ForwardBackwardOutput:
        """Accumulate gradients, reduced as the service reduces; or only read, without `backward`.

        Args:
            run: its name.
            rows: as they came over the wire; all targets are read, whatever their advantage.
            loss_fn: the name of a loss the backend has.
            settings: of the loss.
            totals: counts of the whole call, when this is a part of it.
            backward: False computes log-probs and no gradient.

        Returns:
            Log-probs (T - 1,) per row, of every target; `metrics["loss"]` is the unreduced sum
            where rows share one factor.
        """
        found = self._run(run)
        self._fits(max((len(row.inputs) + 1 for row in rows), default=0), "a row")
        factors = shares(rows, self.quirks.reduction, totals) if backward else [0.0] * len(rows)
        data = [unshift(_read_whole(row, loss_fn)) for row in weighted(rows, factors)]
        async with found.lock:
            out = await found.training.forward_backward(
                data, loss_fn=loss_fn, loss_fn_config=settings
            )
        scale = factors[0] if len(set(factors)) == 1 and factors[0] else 1.0
        return replace(
            out,
            logprobs=tuple(new[1:] for new in out.logprobs),
            metrics={**out.metrics, "loss": out.metrics.get("loss", 0.0) / scale},
        )

    async def optim_step(self, run: str, params: AdamParams) -> Mapping[str, float]:
        """One optimizer step."""
        found = self._run(run)
        async with found.lock:
            out = await found.training.optim_step(params)
            found.steps += 1
        return out

    def steps(self, run: str) -> int:
        """Optimizer steps this run has made since it was opened."""
        return self._run(run).steps

    # ── saving ───────────────────────────────────────────────────────────────────────────────

    async def save_state(
        self, run: str, name: str, *, ttl: float | None = None, overwrite: bool = False
    ) -> Saved:
        """Weights with optimizer, and beside them the weights alone (for loads without)."""
        found = self._run(run)
        async with found.lock:
            folder = self.shelf.place(run, "training_state", name, overwrite=overwrite)
            path = await found.training.save_state(folder)
            weights = await found.training.save_weights_for_sampler(folder)
        return self.shelf.keep(
            Saved(
                run=run,
                kind="training_state",
                name=name,
                path=path,
                sampler_path=weights,
                expires=self.shelf.until(ttl),
                about=found.about,
            )
        )

    async def save_sampler(
        self,
        run: str,
        name: str,
        *,
        ttl: float | None = None,
        temporary: bool = False,
        overwrite: bool = False,
    ) -> Saved:
        """Weights for sampling; `temporary` ones live in memory and end with the run."""
        found = self._run(run)
        async with found.lock:
            folder = self.shelf.place(run, "sampler_weights", name, overwrite=overwrite)
            if temporary:
                client = await found.training.save_weights_and_get_sampling_client()
                self._temporary[run, name] = client
                path = ""
            else:
                path = await found.training.save_weights_for_sampler(folder)
        return self.shelf.keep(
            Saved(
                run=run,
                kind="sampler_weights",
                name=name,
                path=path,
                expires=self.shelf.until(ttl),
                about=found.about,
            )
        )

    # ── sampling ─────────────────────────────────────────────────────────────────────────────

    async def sampler(self, saved: Saved | None) -> SamplingClient:
        """A client of saved weights, or of the untrained model.

        Raises:
            Expired: their time is over.
        """
        if saved is None:
            if "" not in self._loaded:
                self._loaded[""] = await self.backend.create_sampling_client()
            return self._loaded[""]
        self.shelf.check_fresh(saved)
        if self.quirks.live_samplers and saved.run in self._runs:
            training = self._run(saved.run).training
            return await training.save_weights_and_get_sampling_client()
        held = self._temporary.get((saved.run, saved.name))
        if not saved.path:
            if held is None:
                raise Expired(f"the temporary weights {saved.name!r} are gone", code="expired")
            return held
        path = saved.sampler_path or saved.path
        if path not in self._loaded:
            client = await self.backend.create_sampling_client(model_path=path)
            self._loaded[path] = client
        return self._loaded[path]

    async def sample(
        self, saved: Saved | None, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        """Sample with saved weights (None: the untrained model)."""
        self._fits(len(prompt) + params.max_tokens, "a prompt with its answer")
        client = await self.sampler(saved)
        out = await client.sample(prompt, params=params, num_samples=num_samples)
        if self.quirks.tempered and params.temperature not in (0.0, 1.0):
            # No true tempered log-probs, but as far from the untempered ones.
            warm = tuple(
                replace(each, logprobs=tuple(x / params.temperature for x in each.logprobs))
                for each in out.samples
            )
            return replace(out, samples=warm)
        return out

    async def score(self, saved: Saved | None, tokens: Ids) -> ScoreResult:
        """Log-probs (T,) of all tokens, NaN first; a token is sampled on the way."""
        self._fits(len(tokens) + 1, "a prompt with its answer")
        return await (await self.sampler(saved)).compute_logprobs(tokens)

    async def aclose(self) -> None:
        """Close every sampler; the backend stays its owner's."""
        for client in [*self._temporary.values(), *self._loaded.values()]:
            await client.close()
        self._temporary.clear()
        self._loaded.clear()
        self._runs.clear()

    # ── inside ───────────────────────────────────────────────────────────────────────────────

    def _fits(self, length: int, what: str) -> None:
        longest = self.quirks.longest
        if longest is not None and length > longest:
            raise ConfigError(f"{what} has {length} tokens: the context length is {longest}")

    def _run(self, run: str) -> _Run:
        if run not in self._runs:
            raise NotFound(f"no training run {run!r}", code="run_not_found")
        return self._runs[run]


def _read_whole(row: Shifted, loss_fn: str) -> Shifted:
    """All targets are read, but a loss of whole rows must see its actions alone."""
    if loss_fn == "gspo":
        return replace(row, mask=(row.logprobs != 0) | (row.advantages != 0))
    return replace(row, mask=np.ones(len(row.targets), bool))
