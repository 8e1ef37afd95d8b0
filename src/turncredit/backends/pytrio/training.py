"""The SDK's training client behind ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np

from turncredit.backends import contract
from turncredit.backends.hosted import faults, uris
from turncredit.backends.hosted.normalise import prescaled
from turncredit.backends.hosted.once import Once
from turncredit.backends.hosted.shift import Shifted, shift, spread
from turncredit.backends.hosted.tally import tally, window
from turncredit.backends.pytrio import CAPABILITIES
from turncredit.backends.pytrio.errors import is_check
from turncredit.backends.pytrio.sampling import PytrioSamplingClient
from turncredit.backends.pytrio.shared import Shared
from turncredit.core.calls import AdamParams, ForwardBackwardOutput
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.losses import LossSpec, parse_loss
from turncredit.core.types import Array, Usage

T = TypeVar("T")

_TEMPORARY_S = 6 * 3600  # the SDK's lifetime of temporary weights
_SLOW_STEP_S = 2 * 3600
_NAMED_S = 7 * 24 * 3600

# What the SDK counts as active in cross-entropy are targets with a weight, and it counts no
# advantages there: the service's divisors change their meaning.
_OF_CROSS_ENTROPY = {"token_mean": "advantage_token_mean", "advantage_token_mean": "token_sum"}


_NOTHING = ForwardBackwardOutput(logprobs=(), metrics={}, usage=Usage())


class PytrioTrainingClient:
    """A training run on the service.

    After a call of unknown effect it refuses everything: the way back is a new client from the
    last saved state.
    """

    def __init__(self, shared: Shared, client: Any) -> None:
        self.base_model = shared.config.base_model
        self._shared, self._client = shared, client
        self._lost = ""
        self._pending = False
        self._steps = 0
        self._saves = Once()
        self._last_snapshot: float | None = None

    async def save_weights_and_get_sampling_client(self) -> PytrioSamplingClient:
        """Save the weights, for 6 hours or under a name of their own, and open them."""
        self._check_usable()
        now, before = time.monotonic(), self._last_snapshot
        self._last_snapshot = now
        slow = before is not None and now - before > _SLOW_STEP_S
        wanted = self._shared.config.snapshots
        if wanted == "named" or (wanted == "auto" and slow):
            return PytrioSamplingClient(self._shared, await self._named())
        client = await self._shared.call(
            "taking a snapshot", self._client.save_weights_and_get_sampling_client_async
        )
        return PytrioSamplingClient(self._shared, client, ends=now + _TEMPORARY_S)

    async def forward_backward(
        self,
        data: Sequence[Datum],
        *,
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> ForwardBackwardOutput:
        """Accumulate gradients of the sum over action tokens.

        Advantages are sent multiplied by what the service divides by.

        Raises:
            ConfigError: a loss, term or setting the service does not have.
            StateUncertain: nobody knows whether the gradients were added.
        """
        loss = self._checked(data, loss_fn, loss_fn_config)
        if not data:
            return _NOTHING
        wire = self._wire(data, loss)

        async def make() -> Any:
            return await _answer("forward_backward", await self._submit_pass(wire, loss))

        found = await self._train("forward_backward", make, _cost(wire))
        self._pending = self._pending or any(row.advantages.any() for row in data)
        return self._passed(data, loss, found, _cost(wire))

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """One AdamW step.

        Raises:
            StateUncertain: nobody knows whether it was made.
        """

        async def make() -> Any:
            return await _answer("optim_step", await self._submit_step(params))

        return self._stepped(await self._train("optim_step", make, Usage(requests=1)))

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
            ConfigError: a loss, term or setting the service does not have.
            StateUncertain: nobody knows whether both were applied.
        """
        loss = self._checked(data, loss_fn, loss_fn_config)
        if not data:
            return _NOTHING, await self.optim_step(params)
        wire, both = self._wire(data, loss), "forward_backward and optim_step"

        async def make() -> Any:
            passing = await self._submit_pass(wire, loss)
            # From here the step is on its way, too: a pass that is refused now leaves it alone.
            self._lost = f"{both} were under way"
            stepping = await self._submit_step(params)
            return await _answer(both, passing), await _answer(both, stepping)

        passed, stepped = await self._train(both, make, _cost(wire))
        self._lost = ""
        return self._passed(data, loss, passed, _cost(wire)), self._stepped(stepped)

    async def save_state(self, name: str) -> str:
        """Save weights and optimizer on the service; returns their `trio://` URI.

        Raises:
            BackendError: gradients are waiting for their optimizer step.
        """
        self._check_usable()
        if self._pending:
            raise BackendError("gradients are pending: call optim_step before save_state")

        async def make() -> Any:
            return await (await self._client.save_state_async(name, overwrite=True))

        return str((await self._saved("save_state", name, make)).path)

    async def save_weights_for_sampler(self, name: str) -> str:
        """Save the weights for sampling; returns their `trio://` URI.

        A training state of the same name is kept beside them (nothing trains from sampler
        weights), unless this step's is there already.
        """
        self._check_usable()
        await self.save_state(name)
        return await self._save_sampler(name, None)

    # ── inside ───────────────────────────────────────────────────────────────────────────────

    def _checked(
        self, data: Sequence[Datum], loss_fn: str, settings: Mapping[str, float] | None
    ) -> LossSpec:
        loss = _checked_loss(loss_fn, settings)
        contract.check_rows(data, loss, self._shared.vocabulary())
        return loss

    def _wire(self, data: Sequence[Datum], loss: LossSpec) -> list[Shifted]:
        return prescaled([shift(row) for row in data], self._reduction(loss))

    async def _submit_pass(self, wire: Sequence[Shifted], loss: LossSpec) -> Any:
        sent = [self._datum(row, loss) for row in wire]
        return await self._client.forward_backward_async(
            sent, loss_fn=loss.policy, loss_fn_config=dict(window(loss))
        )

    async def _submit_step(self, params: AdamParams) -> Any:
        asked = self._shared.trio.AdamParams(
            learning_rate=params.learning_rate,
            beta1=params.beta1,
            beta2=params.beta2,
            eps=params.eps,
            weight_decay=params.weight_decay,
            grad_clip_norm=params.grad_clip_norm,
        )
        return await self._client.optim_step_async(asked)

    def _passed(
        self, data: Sequence[Datum], loss: LossSpec, found: Any, cost: Usage
    ) -> ForwardBackwardOutput:
        used = self._shared.count(cost)  # whatever the answer is worth
        new = _logprobs(found.loss_fn_outputs, data)
        own = {f"service_{name}": float(value) for name, value in found.metrics.items()}
        return ForwardBackwardOutput(
            logprobs=new,
            metrics={**own, **tally(data, new, loss)},
            usage=used,
        )

    def _stepped(self, found: Any) -> Mapping[str, float]:
        self._shared.count(Usage(cached=None, requests=1))
        self._pending = False
        self._steps += 1
        metrics = {name: float(value) for name, value in found.metrics.items()}
        norms = [value for name, value in metrics.items() if name.endswith("grad_norm")]
        return {**metrics, "grad_norm": norms[0] if norms else float("nan")}

    async def _named(self) -> Any:
        uri = await self._save_sampler(f"snapshot-{uuid4().hex}", _NAMED_S)
        return await self._shared.call(
            "opening a snapshot", lambda: self._client.create_sampling_client_async(uri)
        )

    async def _save_sampler(self, name: str, ttl: int | None) -> str:
        async def make() -> Any:
            return await (await self._client.save_weights_for_sampler_async(name, ttl_seconds=ttl))

        found = await self._saved("save_weights_for_sampler", name, make)
        return str(uris.sampler(str(found.path), "trio"))

    async def _saved(self, what: str, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """A save of these weights under a name, asked of the service once."""
        key = what, name, self._steps
        return await self._shared.call(what, lambda: self._saves.ask(key, make))

    def _reduction(self, loss: LossSpec) -> str:
        reduction = self._shared.reduction
        if loss.policy == "cross_entropy":
            return _OF_CROSS_ENTROPY.get(reduction, reduction)
        return reduction

    def _datum(self, row: Shifted, loss: LossSpec) -> Any:
        trio = self._shared.trio
        inputs: dict[str, Any] = {"target_tokens": np.asarray(row.targets, np.int64)}
        advantages = np.asarray(row.advantages, np.float32)
        if loss.policy == "cross_entropy":
            inputs["weights"] = advantages
        else:
            inputs["logprobs"] = np.asarray(row.logprobs, np.float32)
            inputs["advantages"] = advantages
        return trio.Datum(
            model_input=trio.ModelInput.from_ints(row.inputs.tolist()), loss_fn_inputs=inputs
        )

    def _check_usable(self) -> None:
        if self._lost:
            raise faults.uncertain("PyTRIO", "an earlier training call", self._lost)

    async def _train(self, what: str, make: Callable[[], Awaitable[T]], cost: Usage) -> T:
        """A call that changes the run: never repeated, and if its end is unknown, the last."""
        self._check_usable()
        try:
            return await self._shared.call(what, make, estimate=cost)
        except (faults.InvalidRequest, faults.AuthFailed, faults.BillingStopped):
            raise  # refused: nothing was changed
        except faults.StateUncertain as error:
            self._lost = str(error)
            self._shared.calls.abandon(cost)
            raise
        except BackendError as error:
            self._lost = str(error)
            if not isinstance(error, faults.CallTimeout):  # which is counted already
                self._shared.calls.abandon(cost)
            raise faults.uncertain("PyTRIO", what, str(error)) from error
        except asyncio.CancelledError:
            self._lost = f"{what} was cancelled on the way"
            raise


async def _answer(what: str, pending: Awaitable[T]) -> T:
    """What the service answers to a training call that it has.

    Raises:
        StateUncertain: the SDK cannot read it.
    """
    try:
        return await pending
    except Exception as error:
        if is_check(error):
            raise faults.uncertain("PyTRIO", what, f"it cannot be read: {error}") from error
        raise


def _cost(wire: Sequence[Shifted]) -> Usage:
    return Usage(trained=sum(len(row.inputs) for row in wire), cached=None, requests=1)


def _checked_loss(loss_fn: str, config: Mapping[str, float] | None) -> LossSpec:
    """A loss this service has.

    Raises:
        ConfigError: names what it lacks, and who has it.
    """
    loss = parse_loss(loss_fn, config)
    has = ", ".join(sorted(CAPABILITIES.losses))
    if loss.policy not in CAPABILITIES.losses:
        raise ConfigError(
            f'PyTRIO has no loss "{loss.policy}" (it has: {has}): use --backend local'
        )
    if loss.terms:
        raise ConfigError(
            f'PyTRIO has no loss terms, and "{loss_fn}" asks for {", ".join(loss.terms)}: '
            "use --backend local"
        )
    if loss.settings.get("dual_clip"):
        raise ConfigError("PyTRIO's ppo has no dual clip: leave dual_clip at 0, or use local")
    return loss


def _logprobs(outputs: Sequence[Mapping[str, Any]], data: Sequence[Datum]) -> tuple[Array, ...]:
    if len(outputs) != len(data) or any("logprobs" not in each for each in outputs):
        raise BackendError(f"PyTRIO answered {len(outputs)} rows of {len(data)}, or no log-probs")
    pairs = zip(outputs, data, strict=True)
    return tuple(spread(np.asarray(each["logprobs"].data), row) for each, row in pairs)
