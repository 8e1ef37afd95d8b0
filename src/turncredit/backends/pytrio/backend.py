"""The `pytrio` backend: one session on the service, and the clients it makes."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from turncredit.backends import contract
from turncredit.backends.hosted import faults, keys, reach, uris
from turncredit.backends.hosted.calls import Calls, Counts
from turncredit.backends.hosted.normalise import shares
from turncredit.backends.hosted.origins import check_fit, origin_of
from turncredit.backends.hosted.session import Session
from turncredit.backends.hosted.tokenizers import open_tokenizer
from turncredit.backends.local.tokenizer import HfTokenizer
from turncredit.backends.pytrio import CAPABILITIES, Config, versions
from turncredit.backends.pytrio.sampling import PytrioSamplingClient
from turncredit.backends.pytrio.shared import Shared
from turncredit.backends.pytrio.training import PytrioTrainingClient
from turncredit.core.calls import Capabilities
from turncredit.core.clients import WeightsUse
from turncredit.core.errors import BackendError
from turncredit.core.metering import Meter
from turncredit.core.types import Usage


class PytrioBackend:
    """Makes clients; the session is opened when the first one is made."""

    name = "pytrio"

    def __init__(self, config: Config, trio: ModuleType) -> None:
        self.config = config
        self._trio = trio
        self._tokenizer: HfTokenizer | None = None
        self._session = Session(self._connect, versions.close)
        self._longest: int | None = None  # tokens of a row, once the service has said
        self._shared = Shared(
            config=config,
            trio=trio,
            calls=Calls(
                limit=config.calls_in_flight,
                deadline=config.deadline,
                on_wait=logging.getLogger("turncredit.pytrio").warning,
            ),
            vocabulary=lambda: len(self.get_tokenizer()),
            # Unknown until probed; the plain sum meanwhile.
            reduction="token_sum" if config.loss_reduction == "auto" else config.loss_reduction,
        )

    def capabilities(self) -> Capabilities:
        """Known without calling anything."""
        return replace(
            CAPABILITIES,
            loss_reduction=self._shared.reduction,
            max_seq_len=min(self.config.max_seq_len, self._longest or self.config.max_seq_len),
        )

    async def reach(self) -> None:
        """Open the session, and ask how long a row of the model may be."""
        service = await self._open()
        # A service that does not tell is no worse for it.
        with contextlib.suppress(BackendError):
            found = await self._shared.call(
                "asking for its models", service.get_server_capabilities_async, repeat=True
            )
            self._longest = _longest(found.supported_models, self.config.base_model)

    @property
    def observed(self) -> dict[str, int]:
        """How answers looked before they were normalised, for the probe."""
        return self._shared.observed

    def check_key(self) -> None:
        """Refuse to go on without a key.

        Raises:
            AuthFailed: there is none.
        """
        keys.check_key("pytrio", self._address)

    async def check_weights(self, path: str, *, use: WeightsUse) -> None:
        """Refuse saved weights that are gone, or of another model or rank.

        Raises:
            ConfigError: they do not fit; or not a trio:// URI.
            WeightsGone: they are gone.
        """
        uri = uris.parse(path, "trio")
        uri = uri if use == "sample" else uri.as_kind("state")
        service = await self._open()
        found = await origin_of(
            "PyTRIO",
            uri,
            lambda: self._shared.call(
                f"looking at {uri}", lambda: versions.look(service, uri), repeat=True
            ),
        )
        config = self.config
        check_fit(path, found, use, base_model=config.base_model, lora_rank=config.lora_rank)
        if use == "sample":
            # Whether samplers are there, services do not say; they refuse to open what is not.
            with faults.of_weights("PyTRIO", str(uri)):
                client = await self.create_sampling_client(model_path=str(uri))
            await client.close()

    def use_reduction(self, reduction: str) -> None:
        """What the service was found to make of per-token losses.

        Raises:
            ConfigError: no such reduction.
        """
        shares([], reduction)
        self._shared.reduction = reduction

    def get_tokenizer(self) -> HfTokenizer:
        """The tokenizer of the base model."""
        if self._tokenizer is None:
            name = self.config.tokenizer or self.config.base_model
            self._tokenizer = open_tokenizer(name, 'backend "pytrio"', "pytrio")
        return self._tokenizer

    async def create_training_client(
        self,
        *,
        seed: int,
        save_dir: str,
        from_state: str | None = None,
        from_weights: str | None = None,
    ) -> PytrioTrainingClient:
        """A fresh LoRA, a saved state with its optimizer, or weights alone.

        States stay on the service: nothing is written to `save_dir`.

        Raises:
            ConfigError: not a `trio://` state, of another rank, or both kinds are given.
            BackendError: what the service answers.
        """
        contract.check_origin(from_state, from_weights)
        service = await self._open()
        if from_state:
            uri = str(uris.state(from_state, "trio"))
            load = service.create_training_client_from_state_with_optimizer_async
            client = await self._loaded(load, uri, "resume")
        elif from_weights:
            # Nothing trains from sampler weights: the state of the same name has the same ones.
            uri = str(uris.parse(from_weights, "trio").as_kind("state"))
            load = service.create_training_client_from_state_async
            client = await self._loaded(load, uri, "begin")
        else:
            client = await self._shared.call("starting a run", lambda: self._fresh(service, seed))
        return PytrioTrainingClient(self._shared, client)

    async def create_sampling_client(
        self, *, model_path: str | None = None
    ) -> PytrioSamplingClient:
        """A client of the base model, or of `trio://…/sampler_weights/…`.

        Raises:
            ConfigError: the path names something else.
            BackendError: what the service answers.
        """
        path = str(uris.sampler(model_path, "trio")) if model_path else None
        service = await self._open()
        client = await self._shared.call(
            "opening weights",
            lambda: service.create_sampling_client_async(self.config.base_model, path),
            repeat=True,
        )
        return PytrioSamplingClient(self._shared, client)

    def usage(self) -> Usage:
        """All tokens so far, as counted here; what was abandoned is counted as if it ended."""
        return self.meter.total

    @property
    def meter(self) -> Meter:
        """Of all calls."""
        return self._shared.calls.meter

    def counts(self) -> Counts:
        """What happened to calls."""
        return self._shared.calls.counts

    def abandoned(self) -> tuple[int, Usage]:
        """Calls given up while the service had them, and what they may have cost."""
        return self.counts().abandoned, self.counts().abandoned_usage

    def listen(self, say: Callable[[str], None]) -> None:
        """Say in words when the service, or its SDK, makes us wait."""
        self._shared.calls.on_wait = say
        versions.listen(say)

    async def aclose(self) -> None:
        """End the session."""
        await self._session.close()

    async def _open(self) -> Any:
        return await self._shared.call("opening a session", self._session.open)

    def _connect(self) -> Any:
        """A service client; the SDK's settings and telemetry are of the whole process."""
        reach.check("pytrio", self._address)
        self._trio.configure_observability(enabled=self.config.telemetry)
        settings: dict[str, Any] = {"sampling_in_flight": self.config.calls_in_flight}
        if self.config.base_url:
            settings["base_url"] = self.config.base_url
        versions.configure(self._trio, settings)
        key = os.environ.get("PYTRIO_API_KEY", "").strip()
        if not key and self._address.startswith(reach.LOCAL):
            key = "loopback"  # a service on this machine has no accounts
        return self._trio.ServiceClient(api_key=key or None)

    async def _fresh(self, service: Any, seed: int) -> Any:
        config = self.config
        return await service.create_lora_training_client_async(
            config.base_model,
            rank=config.lora_rank,
            seed=seed,
            train_mlp=config.train_mlp,
            train_attn=config.train_attn,
            train_unembed=config.train_unembed,
        )

    async def _loaded(
        self, load: Callable[[str], Awaitable[Any]], uri: str, use: WeightsUse
    ) -> Any:
        await self.check_weights(uri, use=use)
        with faults.of_weights("PyTRIO", uri):
            return await self._shared.call(f"loading {uri}", lambda: load(uri))

    @property
    def _address(self) -> str:
        """Of the service; empty: its maker's, or that of the SDK's profile."""
        return self.config.base_url or os.environ.get("PYTRIO_BASE_URL", "").strip()


def _longest(models: Sequence[Any], name: str) -> int | None:
    """Tokens that a row of a model may have; of the only model on offer, whatever it is called."""
    named = [model for model in models if model.model_name == name] or models
    if len(named) != 1:
        return None
    model = named[0]
    limits = (model.max_context_length, model.training.max_seq_len, model.sampling.max_seq_len)
    return min((limit for limit in limits if limit is not None), default=None)
