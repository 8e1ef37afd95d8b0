"""The `tinker` backend: one session with the service, and the clients bound to it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from turncredit.backends import contract
from turncredit.backends.hosted import faults, keys, reach, uris
from turncredit.backends.hosted.calls import Calls
from turncredit.backends.hosted.origins import check_fit, origin_of
from turncredit.backends.hosted.session import Session
from turncredit.backends.hosted.tokenizers import open_tokenizer
from turncredit.backends.local.tokenizer import HfTokenizer
from turncredit.backends.tinker import CAPABILITIES, Config, sdk
from turncredit.backends.tinker.clients import TinkerSamplingClient, TinkerTrainingClient, computed
from turncredit.backends.tinker.link import Link
from turncredit.core.calls import Capabilities
from turncredit.core.clients import WeightsUse
from turncredit.core.errors import BackendError
from turncredit.core.metering import Meter
from turncredit.core.types import Usage

# What a server without such an address answers (FastAPI's words), in place of one without weights.
_UNKNOWN_ADDRESS = re.compile(r"""['"]detail['"]: ['"]Not Found['"]""")


class TinkerBackend:
    """A policy on a service. Nothing is sent before the first client is made."""

    name = "tinker"

    def __init__(self, config: Config) -> None:
        self.config = config
        package = sdk.load(telemetry=config.telemetry)
        calls = Calls(limit=config.calls_in_flight, deadline=config.deadline)
        suffix = sdk.takes(package.SamplingClient.sample, "prompt_logprobs_last_n")
        reduction = "token_sum" if config.loss_reduction == "auto" else config.loss_reduction
        self._link = Link(
            package,
            calls,
            reduction=reduction,
            suffix_scoring=suffix,
            vocabulary=lambda: len(self.get_tokenizer()),
        )
        self._tokenizer: HfTokenizer | None = None
        self._session = Session(self._begin, sdk.close)
        self._longest: int | None = None  # tokens of a row, once the service has said

    def capabilities(self) -> Capabilities:
        """What the SDK and the settings say, and what a probe has found since."""
        return replace(
            CAPABILITIES,
            losses=computed(self._link.reduction),
            suffix_scoring=self._link.suffix_scoring,
            loss_reduction=self._link.reduction,
            max_seq_len=self._longest,
        )

    async def reach(self) -> None:
        """Open the session, and ask how long a row of the model may be."""
        service = await self._open()
        # A server that does not tell is no worse for it.
        with contextlib.suppress(BackendError):
            found = await self._link.ask("asking for its models", lambda: sdk.offered(service))
            lengths = {m.model_name: m.max_context_length for m in found.supported_models}
            self._longest = lengths.get(self.config.base_model)

    def use_reduction(self, reduction: str) -> None:
        """What the service was found to do with per-token losses."""
        self._link.reduction = reduction

    @property
    def calls(self) -> Calls:
        """What has happened to calls so far is in its `counts`."""
        return self._link.calls

    def abandoned(self) -> tuple[int, Usage]:
        """Calls given up while the service had them, and what they may have cost."""
        counts = self._link.calls.counts
        return counts.abandoned, counts.abandoned_usage

    def check_key(self) -> None:
        """Refuse to go on without a key that the SDK takes.

        Raises:
            AuthFailed: there is none, or it does not begin with `tml-`.
        """
        keys.check_key("tinker", self._address)

    async def check_weights(self, path: str, *, use: WeightsUse) -> None:
        """Refuse saved weights that are gone, or of another model or rank.

        Raises:
            ConfigError: they do not fit; or not a tinker:// URI.
            WeightsGone: they are gone.
        """
        uri = uris.parse(path, "tinker")
        uri = uri if use == "sample" else uri.as_kind("state")
        found = await origin_of("Tinker", uri, lambda: self._look(str(uri)))
        config = self.config
        check_fit(path, found, use, base_model=config.base_model, lora_rank=config.lora_rank)
        if use == "sample":
            # Whether samplers are there, services do not say; they refuse to open what is not.
            with faults.of_weights("Tinker", str(uri)):
                client = await self.create_sampling_client(model_path=str(uri))
            await client.close()

    def listen(self, say: Callable[[str], None]) -> None:
        """Say in words when the service, or its SDK, makes us wait."""
        self._link.listen(say)

    @property
    def observed(self) -> dict[str, int]:
        """What answers looked like before they were normalised."""
        return self._link.observed

    def get_tokenizer(self) -> HfTokenizer:
        """The tokenizer of the base model, from this machine or Hugging Face."""
        if self._tokenizer is None:
            name = self.config.tokenizer or self.config.base_model
            self._tokenizer = open_tokenizer(name, 'backend "tinker"', "tinker")
        return self._tokenizer

    async def create_training_client(
        self,
        *,
        seed: int,
        save_dir: str,
        from_state: str | None = None,
        from_weights: str | None = None,
    ) -> TinkerTrainingClient:
        """Fresh trainable weights; those of a saved state with their optimizer; or weights alone.

        `save_dir` is not used: weights stay on the service. Weights saved for a sampler are loaded
        from the training state that was saved with them.

        Raises:
            ConfigError: both origins are given, or not a tinker:// URI of the right kind.
            BackendError: the service refuses.
        """
        contract.check_origin(from_state, from_weights)
        service, base_model = await self._open(), self.config.base_model
        # A run that was asked for twice is two runs, but neither is harmed: safe to repeat.
        if from_state:
            uri = uris.state(from_state, "tinker")
            method = "create_training_client_from_state_with_optimizer"
            client = await self._loaded(service, method, str(uri), "resume")
        elif from_weights:
            uri = uris.parse(from_weights, "tinker").as_kind("state")
            method = "create_training_client_from_state"
            client = await self._loaded(service, method, str(uri), "begin")
        else:
            what = f"making a training run of {base_model}"
            client = await self._link.ask(what, lambda: self._fresh(service, seed))
        return TinkerTrainingClient(self._link, client, base_model)

    async def create_sampling_client(
        self, *, model_path: str | None = None
    ) -> TinkerSamplingClient:
        """A client of the base model, or of weights saved for the sampler.

        Raises:
            ConfigError: not the tinker:// URI of sampler weights.
            BackendError: the service refuses, or they have expired.
        """
        where = str(uris.sampler(model_path, "tinker")) if model_path else None
        service = await self._open()
        name = where or f"base-{self.config.base_model}"
        origin = {"model_path": where} if where else {"base_model": self.config.base_model}

        async def call() -> Any:
            return await sdk.made(service, "create_sampling_client", **origin)

        client = await self._link.ask(f"opening {name}", call)
        return TinkerSamplingClient(self._link, client, name)

    def usage(self) -> Usage:
        """All tokens so far, as counted here; what was given up counts as if it had ended."""
        return self.meter.total

    @property
    def meter(self) -> Meter:
        """Of all calls."""
        return self._link.meter

    async def aclose(self) -> None:
        """End the session."""
        self._link.close()
        await self._session.close()

    async def _fresh(self, service: Any, seed: int) -> Any:
        return await sdk.made(
            service,
            "create_lora_training_client",
            self.config.base_model,
            rank=self.config.lora_rank,
            seed=seed,
            train_mlp=self.config.train_mlp,
            train_attn=self.config.train_attn,
            train_unembed=self.config.train_unembed,
        )

    async def _loaded(self, service: Any, method: str, uri: str, use: WeightsUse) -> Any:
        await self.check_weights(uri, use=use)
        with faults.of_weights("Tinker", uri):
            return await self._link.ask(f"loading {uri}", lambda: sdk.made(service, method, uri))

    async def _look(self, uri: str) -> Any:
        """What the service says of saved weights; SkyRL knows states only."""
        rest = sdk.rest(self._link.package, await self._open(), self._options)
        try:
            return await self._link.ask(
                f"looking at {uri}",
                lambda: sdk.settled(rest.get_weights_info_by_tinker_path(uri)),
            )
        except faults.SnapshotExpired as error:
            if _UNKNOWN_ADDRESS.search(str(error)):
                raise BackendError("this server is not asked for that") from error
            raise

    async def _open(self) -> Any:
        """The session, begun at the first call: it asks for the key and reaches the service."""
        return await self._link.ask("opening a session", self._session.open)

    @property
    def _address(self) -> str:
        """Of the service; empty: its maker's."""
        return self.config.base_url or os.environ.get("TINKER_BASE_URL", "")

    @property
    def _options(self) -> dict[str, Any]:
        """How the SDK reaches the service."""
        options = {"base_url": self.config.base_url} if self.config.base_url else {}
        if self._address.startswith(reach.LOCAL) and not os.environ.get("TINKER_API_KEY"):
            options["api_key"] = "tml-loopback"  # a server on this machine has no accounts
        return options

    def _begin(self) -> Any:
        reach.check("tinker", self._address)
        service = self._link.package.ServiceClient(**self._options)
        _ = service.holder  # made here, aside: it blocks until the service has answered
        return service
