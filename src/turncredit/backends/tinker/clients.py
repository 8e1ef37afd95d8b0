"""The sampling client (one snapshot) and the training client (one run of a service)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turncredit.backends import contract
from turncredit.backends.hosted import uris
from turncredit.backends.hosted.normalise import prescaled, prompt_logprobs
from turncredit.backends.hosted.once import Once
from turncredit.backends.hosted.samples import checked
from turncredit.backends.hosted.shift import Shifted, shift, spread
from turncredit.backends.hosted.tally import tally, window
from turncredit.backends.tinker import sdk
from turncredit.backends.tinker.link import Link
from turncredit.core.calls import (
    AdamParams,
    ForwardBackwardOutput,
    SampleResult,
    SamplingParams,
    ScoreResult,
)
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.losses import LossSpec, parse_loss
from turncredit.core.metering import ask_again
from turncredit.core.types import Ids, Usage


class TinkerSamplingClient:
    """Bound to one sampling session, whose weights are a snapshot."""

    def __init__(self, link: Link, client: Any, snapshot_id: str) -> None:
        self.snapshot_id = snapshot_id
        self._link, self._client = link, client
        self._closed = False

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        """Sample continuations of `prompt` (sample i uses `params.seed + i`).

        The prompt of a group is billed once in full and then as cached, and counted so.
        """
        ids = self._checked(prompt)
        if params.max_tokens < 1 or num_samples < 1:
            raise ConfigError("max_tokens and num_samples must be at least 1")
        asked = self._link.package.types.SamplingParams(
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            seed=params.seed,
            stop=list(params.stop_ids),
        )
        response = await self._ask("sampling", ids, num_samples, asked)
        usage = self._count(response, len(ids), num_samples)  # whatever the answer is worth
        samples = checked(
            response.sequences, params, wanted=num_samples, vocabulary=self._link.vocabulary()
        )
        return SampleResult(samples=samples, snapshot_id=self.snapshot_id, usage=usage)

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        """Score `tokens` at temperature 1; with `last_n`, earlier entries are NaN.

        The service generates one token beside, which is billed and counted.
        """
        ids = self._checked(tokens)
        asked = self._link.package.types.SamplingParams(max_tokens=1)
        extra: dict[str, Any] = {"include_prompt_logprobs": True}
        suffix = last_n is not None and 1 <= last_n < len(ids) and self._link.suffix_scoring
        if suffix:
            extra["prompt_logprobs_last_n"] = last_n
        try:
            response = await self._ask("scoring", ids, 1, asked, **extra)
        except BackendError as error:
            if not suffix or "prompt_logprobs_last_n" not in str(error):
                raise
            # The server scored everything instead, and the SDK refuses that: ask for everything.
            self._link.suffix_scoring = False
            ask_again()
            return await self.compute_logprobs(ids, last_n=last_n)
        usage, found = self._count(response, len(ids), 1), response.prompt_logprobs
        if found is None:
            raise BackendError("the service gave no log-probs of the prompt: it cannot score")
        self._link.observed["prompt_logprobs"] = len(found) - len(ids)
        scores = np.array(prompt_logprobs(found, len(ids)))
        if last_n is not None:
            scores[: len(ids) - last_n] = np.nan
        return ScoreResult(logprobs=scores, snapshot_id=self.snapshot_id, usage=usage)

    async def close(self) -> None:
        """Nothing more is asked of it; the service frees the snapshot by itself."""
        self._closed = True

    async def _ask(self, what: str, ids: list[int], count: int, params: Any, **extra: Any) -> Any:
        prompt = self._link.package.types.ModelInput.from_ints(ids)
        most = Usage(
            prefill=len(ids),
            cached=(count - 1) * len(ids),
            sampled=count * params.max_tokens,
            requests=1,
        )

        async def call() -> Any:
            return await sdk.settled(self._client.sample(prompt, count, params, **extra))

        return await self._link.ask(what, call, most)

    def _checked(self, tokens: Ids) -> list[int]:
        if self._closed:
            raise BackendError(f"snapshot {self.snapshot_id} is closed")
        ids: list[int] = np.asarray(tokens, np.int64).tolist()
        if not ids:
            raise ConfigError("no tokens: a prompt needs at least one")
        return ids

    def _count(self, response: Any, length: int, count: int) -> Usage:
        hits = int(response.prompt_cache_hit_tokens or 0)
        if not 0 <= hits <= length:  # no such number is believed: nothing costs less than nothing
            hits = 0
        return self._link.meter.add(
            Usage(
                prefill=length - hits,
                cached=hits + (count - 1) * length,
                sampled=sum(len(sequence.tokens) for sequence in response.sequences),
                requests=1,
            )
        )


@dataclass(slots=True)
class _Position:
    """How far a run has come."""

    steps: int = 0
    snapshots: int = 0


class TinkerTrainingClient:
    """One training run. The service keeps operations in the order they were submitted."""

    def __init__(self, link: Link, client: Any, base_model: str) -> None:
        self.base_model = base_model
        self._link, self._client = link, client
        self._at, self._saves = _Position(), Once()

    async def save_weights_and_get_sampling_client(self) -> TinkerSamplingClient:
        """A snapshot of the present weights, which lives as long as this session."""

        async def call() -> Any:
            return await sdk.made(self._client, "save_weights_and_get_sampling_client")

        self._link.check_trainable()
        client = await self._link.ask("saving a snapshot", call)
        self._at.snapshots += 1
        name = f"{self._client.model_id}/{self._at.steps:06d}-{self._at.snapshots}"
        return TinkerSamplingClient(self._link, client, name)

    async def forward_backward(
        self,
        data: Sequence[Datum],
        *,
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> ForwardBackwardOutput:
        """Accumulate gradients of the sum over action tokens.

        Raises:
            ConfigError: a loss, term or setting that the service does not have.
            StateUncertain: whether the gradients are there is not known.
        """
        loss = readable_loss(loss_fn, loss_fn_config, self._link.reduction)
        contract.check_rows(data, loss, self._link.vocabulary())
        if not data:
            return ForwardBackwardOutput(logprobs=(), metrics={}, usage=Usage())
        future = self._submit_pass(data, loss)
        most = _trained(data)
        return self._passed(data, loss, await self._link.train("forward_backward", future, most))

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """One AdamW step on the accumulated gradients.

        Raises:
            StateUncertain: whether it was made is not known.
        """
        out = await self._link.train("optim_step", self._submit_step(params))
        return self._stepped(out)

    async def update(
        self,
        data: Sequence[Datum],
        *,
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
        params: AdamParams,
    ) -> tuple[ForwardBackwardOutput, Mapping[str, float]]:
        """`forward_backward` and `optim_step` submitted together, which saves a round of waiting.

        Raises:
            ConfigError: a loss, term or setting that the service does not have.
            StateUncertain: whether both took effect is not known.
        """
        loss = readable_loss(loss_fn, loss_fn_config, self._link.reduction)
        contract.check_rows(data, loss, self._link.vocabulary())
        if not data:
            none = ForwardBackwardOutput(logprobs=(), metrics={}, usage=Usage())
            return none, await self.optim_step(params)
        passing, stepping = self._submit_pass(data, loss), self._submit_step(params)

        async def both() -> Any:
            return await passing(), await stepping()

        what, most = "forward_backward and optim_step", _trained(data)
        passed, stepped = await self._link.train(what, both, most, joint=True)
        return self._passed(data, loss, passed), self._stepped(stepped)

    async def save_state(self, name: str) -> str:
        """Save weights and optimizer; returns a tinker:// URI."""
        saved = await self._saved("save_state", name, self._client.save_state)
        return str(saved.path)

    async def save_weights_for_sampler(self, name: str) -> str:
        """Save weights for sampling; returns a tinker:// URI.

        A service does not train from such weights, so a state of the same name goes with them.
        """
        await self.save_state(name)
        save = self._client.save_weights_for_sampler
        saved = await self._saved("save_weights_for_sampler", name, save)
        return uris.saved(str(saved.path), "tinker", "sampler")

    # ── inside ───────────────────────────────────────────────────────────────────────────────

    async def _saved(self, what: str, name: str, save: Callable[[str], Any]) -> Any:
        """A save of these weights under a name, asked of the service once."""
        key = what, name, self._at.steps
        return await self._link.save(
            what, lambda: self._saves.ask(key, lambda: sdk.settled(save(name)))
        )

    def _submit_pass(self, data: Sequence[Datum], loss: LossSpec) -> Any:
        """Put a forward_backward into the run's order now; call the result to wait for it."""
        rows = [
            self._row(row, loss) for row in prescaled(list(map(shift, data)), self._link.reduction)
        ]
        settings = dict(window(loss)) or None
        self._link.check_trainable()
        future = self._client.forward_backward(rows, loss.policy, settings)
        return lambda: sdk.settled(future)

    def _submit_step(self, params: AdamParams) -> Any:
        asked = self._link.package.types.AdamParams(
            learning_rate=params.learning_rate,
            beta1=params.beta1,
            beta2=params.beta2,
            eps=params.eps,
            weight_decay=params.weight_decay,
            grad_clip_norm=params.grad_clip_norm,
        )
        self._link.check_trainable()
        future = self._client.optim_step(asked)
        return lambda: sdk.settled(future)

    def _row(self, row: Shifted, loss: LossSpec) -> Any:
        types = self._link.package.types
        arrays: dict[str, Any] = {"target_tokens": np.asarray(row.targets, np.int64)}
        if loss.policy == "cross_entropy":
            arrays["weights"] = np.asarray(row.advantages, np.float32)
        else:
            arrays["logprobs"] = np.asarray(row.logprobs, np.float32)
            arrays["advantages"] = np.asarray(row.advantages, np.float32)
            if self._link.reduction == "sequence_mean":  # a mean over the weights: say which
                arrays["weights"] = np.asarray(row.weights, np.float32)
        inputs = {name: types.TensorData.from_numpy(array) for name, array in arrays.items()}
        return types.Datum(
            model_input=types.ModelInput.from_ints(row.inputs.tolist()), loss_fn_inputs=inputs
        )

    def _passed(self, data: Sequence[Datum], loss: LossSpec, out: Any) -> ForwardBackwardOutput:
        used = self._link.meter.add(_trained(data))  # whatever the answer is worth
        if len(out.loss_fn_outputs) != len(data):
            raise BackendError(f"{len(data)} rows sent, {len(out.loss_fn_outputs)} came back")
        found = [np.asarray(one["logprobs"].data) for one in out.loss_fn_outputs]
        logprobs = tuple(spread(new, row) for new, row in zip(found, data, strict=True))
        return ForwardBackwardOutput(
            logprobs=logprobs,
            metrics=tally(data, logprobs, loss),
            usage=used,
        )

    def _stepped(self, out: Any) -> Mapping[str, float]:
        self._at.steps += 1
        found: Mapping[str, float] = out.metrics or {}
        norms = [value for name, value in found.items() if "grad_norm" in name]
        return {"grad_norm": float(norms[0]) if norms else float("nan")}


def _trained(data: Sequence[Datum]) -> Usage:
    return Usage(trained=sum(len(row.tokens) for row in data), requests=1)


def computed(reduction: str) -> frozenset[str]:
    """Losses a service with this reduction has.

    A mean over a row's weights leaves nothing of their size, and cross-entropy says all with them.
    """
    from turncredit.backends.tinker import CAPABILITIES

    lost = {"cross_entropy"} if reduction == "sequence_mean" else set[str]()
    return CAPABILITIES.losses - lost


def readable_loss(
    loss_fn: str, settings: Mapping[str, float] | None, reduction: str = "token_sum"
) -> LossSpec:
    """A loss this service has.

    Raises:
        ConfigError: it has not, with what does.
    """
    loss, known = parse_loss(loss_fn, settings), computed(reduction)
    missing = [*loss.terms, *({loss.policy} - known)]
    if missing:
        where = "Tinker" if reduction == "token_sum" else f"a service of reduction {reduction}"
        raise ConfigError(
            f'"{missing[0]}" of the loss "{loss_fn}" cannot be computed by {where}: train on '
            f"--backend local, or use one of {', '.join(sorted(known))}"
        )
    if loss.settings.get("dual_clip"):
        raise ConfigError("dual_clip cannot be computed by Tinker: leave it 0, or train on local")
    return loss
