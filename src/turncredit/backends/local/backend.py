"""The `local` backend: one policy, its tokenizer, and the clients bound to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from turncredit.backends import contract
from turncredit.backends.local import CAPABILITIES, Config, optimizer, quantized, sampler_files
from turncredit.backends.local.clients import LocalSamplingClient, LocalTrainingClient
from turncredit.backends.local.decode import Decoder
from turncredit.backends.local.device import choose_device
from turncredit.backends.local.engine import Engine
from turncredit.backends.local.loading import load_policy, load_tokenizer
from turncredit.backends.local.memory import longest_sample
from turncredit.backends.local.models import positions
from turncredit.backends.local.passes import Passes
from turncredit.backends.local.policy import Tensors
from turncredit.backends.local.shape import ceilings, model_shape
from turncredit.backends.local.tokenizer import HfTokenizer
from turncredit.backends.local.trainer import Trainer
from turncredit.core.calls import Capabilities
from turncredit.core.costs import Ceilings, ModelShape
from turncredit.core.metering import Meter
from turncredit.core.types import Usage


class LocalBackend:
    """A policy on this machine. The network is loaded when the first client is made."""

    name = "local"

    def __init__(self, config: Config) -> None:
        self.config = config
        if config.threads:
            torch.set_num_threads(config.threads)
        self._device = choose_device(config.device)
        quantized.check(config, self._device)
        self._tokenizer: HfTokenizer | None = None
        self._engines: dict[int, tuple[Engine, Tensors]] = {}
        self.meter = Meter()

    def capabilities(self) -> Capabilities:
        """Known without loading anything."""
        return replace(
            CAPABILITIES,
            exact_resume=self._device.type == "cpu",
            max_seq_len=positions(self.config.base_model),
            max_sample_len=self._longest_sample,
        )

    @cached_property
    def _longest_sample(self) -> int | None:
        """Worked out once: the skeleton of a large model takes a while."""
        return longest_sample(self.config, self._device)

    def get_tokenizer(self) -> HfTokenizer:
        """The tokenizer of the base model."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.config.base_model)
        return self._tokenizer

    async def create_training_client(
        self,
        *,
        seed: int,
        save_dir: str,
        from_state: str | None = None,
        from_weights: str | None = None,
    ) -> LocalTrainingClient:
        """Fresh trainable weights; those of a saved state with their optimizer; or weights alone.

        Raises:
            ConfigError: what is saved belongs to another model or rank, or both are given.
            DataError: what is saved is torn.
        """
        contract.check_origin(from_state, from_weights)
        engine, fresh = self._engine(self.config.lora_rank)
        weights = _seeded(fresh, seed)
        trainer = Trainer(engine.passes, weights, optimizer.make(self.config.optimizer, weights))
        client = LocalTrainingClient(self.config, engine, trainer, Path(save_dir), self.meter)
        if from_state:
            client.restore(Path(from_state))
        if from_weights:
            client.start_from(Path(from_weights))
        return client

    async def create_sampling_client(self, *, model_path: str | None = None) -> LocalSamplingClient:
        """A client of the base model, or of weights saved for the sampler.

        Raises:
            ConfigError: the weights belong to another model.
            DataError: the folder is torn.
        """
        if model_path is None:
            engine, fresh = self._engine(self.config.lora_rank)
            return LocalSamplingClient(
                engine, "base-" + engine.policy.fingerprint, fresh, self.meter
            )
        saved = sampler_files.describe(Path(model_path))
        engine, fresh = self._engine(saved.lora_rank)
        weights = sampler_files.load(saved, engine.policy, fresh)
        return LocalSamplingClient(engine, saved.snapshot_id, weights, self.meter)

    def usage(self) -> Usage:
        """All tokens so far."""
        return self.meter.total

    def model_shape(self) -> ModelShape | None:
        """Of the policy in training; None before it is loaded."""
        loaded = self._engines.get(self.config.lora_rank)
        return model_shape(loaded[0].policy, self.config.max_batch) if loaded else None

    def ceilings(self) -> Ceilings | None:
        """Of this machine, measured now; None before anything is loaded."""
        loaded = self._engines.get(self.config.lora_rank)
        return ceilings(self._device, loaded[0].policy.model.dtype) if loaded else None

    async def aclose(self) -> None:
        """Forget the network."""
        self._engines.clear()
        await asyncio.sleep(0)

    def _engine(self, lora_rank: int) -> tuple[Engine, Tensors]:
        """The network with adapters of one rank (or none), loaded once, and its first weights."""
        if lora_rank not in self._engines:
            policy = load_policy(self.config, lora_rank=lora_rank)
            decoder = Decoder(
                policy,
                batch_tokens=self.config.batch_tokens,
                cache_bytes=int(self.config.cache_gib * 2**30),
                reuse=self.config.reuse_prefixes,
                few_threads=not self.config.threads,
            )
            passes = Passes(
                policy,
                share=self.config.share_prefixes,
                checkpointing=self.config.checkpointing,
                activation_bytes=int(self.config.activation_gib * 2**30),
            )
            engine = Engine(passes, decoder, self.config.max_batch, self.config.batch_tokens)
            self._engines[lora_rank] = engine, policy.copy_trained()
        return self._engines[lora_rank]


def _seeded(fresh: Tensors, seed: int) -> Tensors:
    """A copy of `fresh` whose LoRA A matrices are drawn anew; the B matrices stay zero."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: tensor.clone() for name, tensor in fresh.items()}
    for name in sorted(weights):
        if ".lora_A." in name:
            bound = weights[name].shape[1] ** -0.5
            drawn = torch.empty(weights[name].shape).uniform_(-bound, bound, generator=generator)
            weights[name].copy_(drawn)
    return weights
