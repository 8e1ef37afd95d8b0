"""A backend whose every call is booked, in the name of whatever made it.

The clients it hands out are those of the backend, with a note taken after each call: what was
asked, what the backend counted meanwhile. Numbers, order and errors stay as they are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from turncredit.core.calls import (
    AdamParams,
    Capabilities,
    ForwardBackwardOutput,
    SampleResult,
    SamplingParams,
    ScoreResult,
)
from turncredit.core.clients import (
    AveragingClient,
    Backend,
    DistributionClient,
    PickingClient,
    RemoteBackend,
    SamplingClient,
    TrainingClient,
    UpdatingClient,
    WeightsUse,
)
from turncredit.core.datum import Datum, Distribution
from turncredit.core.protocols import Tokenizer
from turncredit.core.types import Ids, Usage
from turncredit.loop.reads import Reads


class Books(Protocol):
    """Where calls are noted."""

    @property
    def reads(self) -> Reads:
        """What is asked for now, in this task, belongs here."""
        ...

    def used(self) -> None:
        """A call came back: what a backend without a meter counted since the last one was its."""
        ...

    def under_way(self, rows: int) -> None:
        """So many sequences are being sampled more (or fewer) from now on."""
        ...

    def paid(self, most: Usage, what: str) -> AbstractAsyncContextManager[None]:
        """Around a call that uses at most so much; raises where the budget has no room for it."""
        ...


def watched(backend: Backend, books: Books) -> Watched:
    """The backend, watched; a remote one stays a remote one."""
    return (_Remote if isinstance(backend, RemoteBackend) else Watched)(backend, books)


class Watched:
    """A `Backend`."""

    def __init__(self, backend: Backend, books: Books) -> None:
        self._backend, self._books = backend, books
        self.name = backend.name

    def capabilities(self) -> Capabilities:
        """The backend's."""
        return self._backend.capabilities()

    def get_tokenizer(self) -> Tokenizer:
        """The backend's."""
        return self._backend.get_tokenizer()

    async def create_training_client(
        self,
        *,
        seed: int,
        save_dir: str,
        from_state: str | None = None,
        from_weights: str | None = None,
    ) -> TrainingClient:
        """The backend's, watched."""
        client = await self._backend.create_training_client(
            seed=seed, save_dir=save_dir, from_state=from_state, from_weights=from_weights
        )
        averages, updates = isinstance(client, AveragingClient), isinstance(client, UpdatingClient)
        return _TRAINING[averages, updates](client, self._books)

    async def create_sampling_client(self, *, model_path: str | None = None) -> SamplingClient:
        """The backend's, watched."""
        return _sampling(
            await self._backend.create_sampling_client(model_path=model_path), self._books
        )

    def usage(self) -> Usage:
        """The backend's."""
        return self._backend.usage()

    async def aclose(self) -> None:
        """Free everything."""
        await self._backend.aclose()


class _Remote(Watched):
    """A `RemoteBackend` too."""

    _backend: Any

    def check_key(self) -> None:
        """The backend's."""
        self._backend.check_key()

    async def check_weights(self, path: str, *, use: WeightsUse) -> None:
        """The backend's; it costs nothing."""
        await self._backend.check_weights(path, use=use)

    @property
    def observed(self) -> Mapping[str, int]:
        """The backend's."""
        return self._backend.observed

    async def reach(self) -> None:
        """The backend's."""
        await self._backend.reach()

    def use_reduction(self, reduction: str) -> None:
        """The backend's."""
        self._backend.use_reduction(reduction)

    def listen(self, say: Callable[[str], None]) -> None:
        """The backend's."""
        self._backend.listen(say)

    def abandoned(self) -> tuple[int, Usage]:
        """The backend's."""
        return self._backend.abandoned()


class _Sampling:
    """A `SamplingClient`."""

    def __init__(self, client: Any, books: Books) -> None:
        self._client, self._books = client, books
        self.snapshot_id: str = client.snapshot_id

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        most = Usage(
            prefill=len(prompt) * num_samples, sampled=params.max_tokens * num_samples, requests=1
        )
        async with _booked(self._books, most, "sampling"):
            self._books.under_way(num_samples)
            try:
                result = await self._client.sample(prompt, params=params, num_samples=num_samples)
            finally:
                self._books.under_way(-num_samples)
        answers = [sample.tokens for sample in result.samples]
        self._books.reads.sample(self.snapshot_id, prompt, answers)
        return result

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        async with _booked(self._books, _reading(tokens), "scoring"):
            result = await self._client.compute_logprobs(tokens, last_n=last_n)
        asked = len(tokens) if last_n is None else last_n
        self._books.reads.score(self.snapshot_id, tokens, asked)
        return result

    async def close(self) -> None:
        await self._client.close()


class _Distributing(_Sampling):
    """A `DistributionClient` too."""

    async def distribution(
        self, tokens: Ids, *, last_n: int, k: int, temperature: float = 1.0
    ) -> Distribution:
        async with _booked(self._books, _reading(tokens), "scoring"):
            result = await self._client.distribution(
                tokens, last_n=last_n, k=k, temperature=temperature
            )
        self._books.reads.score(self.snapshot_id, tokens, last_n)
        return result


class _Picking(_Sampling):
    """A `PickingClient` too."""

    async def pick_logprobs(self, tokens: Ids, at_N: Ids) -> ScoreResult:
        async with _booked(self._books, _reading(tokens), "scoring"):
            result = await self._client.pick_logprobs(tokens, at_N)
        self._books.reads.score(self.snapshot_id, tokens, len(at_N))
        return result


class _DistributingPicking(_Distributing, _Picking):
    """Both."""


# (distributes, picks) → class: a watched client offers what the client offers, and no more.
_SAMPLING: Mapping[tuple[bool, bool], type[_Sampling]] = {
    (False, False): _Sampling,
    (True, False): _Distributing,
    (False, True): _Picking,
    (True, True): _DistributingPicking,
}


class _Training:
    """A `TrainingClient`."""

    def __init__(self, client: Any, books: Books) -> None:
        self._client, self._books = client, books
        self.base_model: str = client.base_model

    async def save_weights_and_get_sampling_client(self) -> SamplingClient:
        return _sampling(await self._client.save_weights_and_get_sampling_client(), self._books)

    async def forward_backward(
        self,
        data: Sequence[Datum],
        *,
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> ForwardBackwardOutput:
        async with _booked(self._books, training(data), "an update"):
            output = await self._client.forward_backward(
                data, loss_fn=loss_fn, loss_fn_config=loss_fn_config
            )
        self._read(data)
        return output

    async def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        async with _booked(self._books, Usage(requests=1), "an optimizer step"):
            return await self._client.optim_step(params)

    async def save_state(self, name: str) -> str:
        return await self._client.save_state(name)

    async def save_weights_for_sampler(self, name: str) -> str:
        return await self._client.save_weights_for_sampler(name)

    def _read(self, data: Sequence[Datum]) -> None:
        for row in data:
            self._books.reads.train(len(row.tokens), int(row.mask.sum()))


class _Updating(_Training):
    """An `UpdatingClient` too."""

    async def update(
        self,
        data: Sequence[Datum],
        *,
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
        params: AdamParams,
    ) -> tuple[ForwardBackwardOutput, Mapping[str, float]]:
        async with _booked(self._books, training(data), "an update"):
            found = await self._client.update(
                data, loss_fn=loss_fn, loss_fn_config=loss_fn_config, params=params
            )
        self._read(data)
        return found


class _Averaging(_Training):
    """An `AveragingClient` too."""

    def track_average(self, decay: float) -> None:
        self._client.track_average(decay)

    async def average_sampling_client(self) -> SamplingClient:
        return _sampling(await self._client.average_sampling_client(), self._books)


class _AveragingUpdating(_Averaging, _Updating):
    """Both."""


# (averages, updates) → class.
_TRAINING: Mapping[tuple[bool, bool], type[_Training]] = {
    (False, False): _Training,
    (True, False): _Averaging,
    (False, True): _Updating,
    (True, True): _AveragingUpdating,
}


def _sampling(client: SamplingClient, books: Books) -> SamplingClient:
    offers = isinstance(client, DistributionClient), isinstance(client, PickingClient)
    return _SAMPLING[offers](client, books)


def training(data: Sequence[Datum]) -> Usage:
    """What a forward and backward pass over some rows uses."""
    return Usage(trained=sum(len(row.tokens) for row in data), requests=1)


def _reading(tokens: Ids) -> Usage:
    """What scoring uses at most: services sample a token with it."""
    return Usage(prefill=len(tokens), sampled=1, requests=1)


@asynccontextmanager
async def _booked(books: Books, most: Usage, what: str) -> AsyncIterator[None]:
    """Around a call."""
    async with books.paid(most, what):
        try:
            yield
        finally:
            books.used()
