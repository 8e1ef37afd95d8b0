"""The SDK's sampling client behind ours."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from turncredit.backends.hosted import faults
from turncredit.backends.hosted.normalise import prompt_logprobs
from turncredit.backends.hosted.samples import checked
from turncredit.backends.pytrio import versions
from turncredit.backends.pytrio.shared import Shared
from turncredit.core.calls import SampleResult, SamplingParams, ScoreResult
from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.types import Ids, Usage


class PytrioSamplingClient:
    """Bound to one set of weights on the service.

    Args:
        shared: of the backend.
        client: the SDK's.
        ends: when its weights end, in seconds of `time.monotonic`; None: they stay.
    """

    def __init__(self, shared: Shared, client: Any, *, ends: float | None = None) -> None:
        self.snapshot_id = versions.sampling_id(client)
        self._shared, self._client, self._ends = shared, client, ends

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        """Sample continuations of `prompt` (sample i uses `params.seed + i`)."""
        client, ids = self._open(prompt)
        trio = self._shared.trio
        asked = trio.SamplingParams(
            max_tokens=params.max_tokens,
            seed=params.seed,
            stop=list(params.stop_ids) or None,
            temperature=params.temperature,
            top_p=params.top_p,
        )
        estimate = Usage(
            prefill=len(ids) * num_samples,
            cached=None,
            sampled=params.max_tokens * num_samples,
            requests=1,
        )
        found = await self._shared.call(
            "sampling",
            lambda: client.sample_async(
                trio.ModelInput.from_ints(ids),
                num_samples=num_samples,
                sampling_params=asked,
                return_text=False,
            ),
            repeat=True,
            estimate=estimate,
        )
        usage = self._shared.count(  # whatever the answer is worth
            Usage(
                prefill=max(found.input_tokens or 0, 0) or len(ids) * num_samples,
                cached=None,
                sampled=sum(len(each.tokens) for each in found.sequences),
                requests=1,
            )
        )
        samples = checked(
            found.sequences, params, wanted=num_samples, vocabulary=self._shared.vocabulary()
        )
        return SampleResult(samples=samples, snapshot_id=self.snapshot_id, usage=usage)

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        """Score `tokens`; all of them, for the service knows no less.

        It samples, and bills, one token more.
        """
        client, ids = self._open(tokens)
        cost = Usage(prefill=len(ids), cached=None, sampled=1, requests=1)
        found = await self._shared.call(
            "scoring",
            lambda: client.compute_logprobs_async(self._shared.trio.ModelInput.from_ints(ids)),
            repeat=True,
            estimate=cost,
        )
        usage = self._shared.count(cost)
        self._shared.observed["prompt_logprobs"] = len(found) - len(ids)
        return ScoreResult(
            logprobs=prompt_logprobs(found, len(ids)), snapshot_id=self.snapshot_id, usage=usage
        )

    async def close(self) -> None:
        """Forget the client; temporary weights end by themselves."""
        self._client = None

    def _open(self, tokens: Ids) -> tuple[Any, list[int]]:
        if self._client is None:
            raise BackendError(f"sampling client {self.snapshot_id} is closed; take a new one")
        if self._ends is not None and time.monotonic() > self._ends:
            raise faults.SnapshotExpired(
                f"the temporary weights of {self.snapshot_id} have ended after 6 hours; "
                "--snapshots named keeps them"
            )
        ids: list[int] = np.asarray(tokens, np.int64).tolist()
        if not ids:
            raise ConfigError("no tokens: a prompt needs at least one")
        return self._client, ids
