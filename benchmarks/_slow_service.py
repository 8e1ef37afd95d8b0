"""A loopback service in a process of its own, whose maths is a wait: what is left is the client.

    python benchmarks/_slow_service.py pytrio|tinker SCALE SLOW

It prints its address and works until its standard input ends. Every call waits as long as its
prompt and seed say (`latency`), so a run can be foretold; the answers are always the same.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from turncredit.core.calls import (
    AdamParams,
    Capabilities,
    ForwardBackwardOutput,
    Sample,
    SampleResult,
    SamplingParams,
    ScoreResult,
)
from turncredit.core.types import Ids, Usage

VOCABULARY, MODEL = 1024, "waiting"
_SHARES = (0.5, 0.5, 1.0, 2.0, 4.0)  # seconds at scale 1
_LIKELY = -1.0


def latency(ids: Ids, seed: int, scale: float) -> float:
    """Seconds a call takes."""
    drawn = zlib.crc32(np.asarray(ids, np.int64).tobytes(), seed & 0xFFFF)
    return scale * _SHARES[drawn % len(_SHARES)]


class Words:
    """A tokenizer of numbers."""

    eos_ids = (1,)

    def __len__(self) -> int:
        return VOCABULARY

    def decode(self, ids: Ids) -> str:
        return " ".join(map(str, ids))


class Waiting:
    """A backend and its clients in one.

    Args:
        scale: of all latencies.
        slow: the first call takes so many seconds instead.
    """

    name, base_model, snapshot_id = MODEL, MODEL, "s"

    def __init__(self, scale: float, slow: float = 0.0) -> None:
        self._scale, self._slow = scale, slow

    def capabilities(self) -> Capabilities:
        return Capabilities(losses=frozenset({"ppo"}), max_seq_len=65536)

    def get_tokenizer(self) -> Words:
        return Words()

    async def create_sampling_client(self, **_: Any) -> Waiting:
        return self

    create_training_client = create_sampling_client

    async def save_weights_and_get_sampling_client(self) -> Waiting:
        return self

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        slow, self._slow = self._slow, 0.0
        if params.max_tokens > 1:  # a single token comes with a score, which has waited already
            await asyncio.sleep(slow or latency(prompt, params.seed, self._scale))
        count = params.max_tokens
        said = Sample(tokens=(7,) * count, logprobs=(_LIKELY,) * count, stop_reason="length")
        usage = Usage(prefill=len(prompt), sampled=num_samples * count, requests=1)
        return SampleResult(samples=(said,) * num_samples, snapshot_id="s", usage=usage)

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        await asyncio.sleep(latency(tokens, 0, self._scale))
        scores = np.full(len(tokens), _LIKELY)
        scores[0] = np.nan
        return ScoreResult(logprobs=scores, snapshot_id="s", usage=Usage(prefill=len(tokens)))

    async def forward_backward(self, data: Any, **_: Any) -> ForwardBackwardOutput:
        await asyncio.sleep(self._scale)
        new = tuple(np.full(len(row.tokens), _LIKELY) for row in data)
        return ForwardBackwardOutput(logprobs=new, metrics={"loss": 0.0}, usage=Usage())

    async def optim_step(self, params: AdamParams) -> dict[str, float]:
        await asyncio.sleep(self._scale)
        return {"grad_norm": 1.0}

    async def close(self) -> None:
        pass


def main() -> None:
    service, scale, slow = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    backend: Any = Waiting(scale, slow)
    with tempfile.TemporaryDirectory() as folder:
        if service == "pytrio":
            from turncredit.backends.loopback.pytrio import serve
            from turncredit.backends.loopback.pytrio_control import Offer

            server, _ = serve(backend, Path(folder), offer=Offer(model=MODEL, tokenizer=MODEL))
        else:
            from turncredit.backends.loopback.tinker import TinkerService

            server = TinkerService(backend, Path(folder), model=MODEL).server()
        with server:
            print(server.url, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
