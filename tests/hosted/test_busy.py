"""Calls of 128 trajectories on the genuine SDKs: all slots used, none held up, groups in turn.

The services here answer when a test lets them, so that nothing depends on how fast a machine is:
a client that held calls back would wait for ever, and the test's time limit would end it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turncredit.backends import tabular
from turncredit.core.calls import Capabilities, Sample, SampleResult, SamplingParams, ScoreResult
from turncredit.core.turns import of_group
from turncredit.core.types import Ids, Usage
from turncredit.loop.concurrency import bounded

TOKENIZER = tabular.create(tabular.Config()).get_tokenizer()
SERVICES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(name) is None, reason=f"the extra {name} is not installed"
        ),
    )
    for name in ("pytrio", "tinker")
]
pytestmark = pytest.mark.timeout(120)


class Gate:
    """A backend and its clients in one, that answers a call when `may_pass` says so.

    Args:
        may_pass: of a call (the first token of its prompt) and this gate.

    Attributes:
        inside: calls being held.
        seen: all calls, in the order they came.
        done: calls answered.
    """

    name, base_model, snapshot_id = "gate", "gate", "s"

    def __init__(self, may_pass: Callable[[int, Gate], bool]) -> None:
        self._may_pass = may_pass
        self.inside: Counter[int] = Counter()
        self.seen: list[int] = []
        self.done: list[int] = []
        self._changed = asyncio.Condition()

    def capabilities(self) -> Capabilities:
        return Capabilities(losses=frozenset({"ppo"}), max_seq_len=4096)

    def get_tokenizer(self) -> Any:
        return TOKENIZER

    async def create_sampling_client(self, **_: Any) -> Gate:
        return self

    create_training_client = create_sampling_client

    async def _pass(self, call: int) -> None:
        async with self._changed:
            self.inside[call] += 1
            self.seen.append(call)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._may_pass(call, self))
            self.inside[call] -= 1
            self.done.append(call)
            self._changed.notify_all()

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        if params.max_tokens > 1:  # one token goes with a score
            await self._pass(int(prompt[0]))
        said = Sample(tokens=(7,), logprobs=(-1.0,), stop_reason="stop")
        usage = Usage(prefill=len(prompt), sampled=num_samples, requests=1)
        return SampleResult(samples=(said,) * num_samples, snapshot_id="s", usage=usage)

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        await self._pass(int(tokens[0]))
        scores = np.full(len(tokens), -1.0)
        scores[0] = np.nan
        return ScoreResult(logprobs=scores, snapshot_id="s", usage=Usage(prefill=len(tokens)))

    async def close(self) -> None:
        pass


@contextmanager
def served(name: str, gate: Any, folder: Path, **settings: Any) -> Iterator[Any]:
    """A backend of the genuine SDK on a service behind a gate."""
    adapter: Any = importlib.import_module(f"turncredit.backends.{name}")
    if name == "pytrio":
        sys.modules.setdefault("modelscope", None)  # type: ignore[arg-type]
        from turncredit.backends.loopback.pytrio import serve
        from turncredit.backends.loopback.pytrio_control import Offer

        server, _ = serve(gate, folder, offer=Offer(model="gate", tokenizer="gate"))
    else:
        from turncredit.backends.loopback.tinker import TinkerService

        server = TinkerService(gate, folder, model="gate").server()
    with server:
        config = adapter.Config(base_model="gate", base_url=server.url, **settings)
        backend = adapter.create(config)
        backend._tokenizer = TOKENIZER
        yield backend


async def _calls(client: Any, calls: Sequence[tuple[str, int]], *, score: bool) -> None:
    """Calls of (group, number), as many at once as a rollout makes."""

    def one(group: str, number: int) -> Callable[[], Any]:
        async def call() -> None:
            tokens = [number, 2, 3, 4]
            with of_group(group):
                if score:
                    await client.compute_logprobs(tokens, last_n=2)
                else:
                    await client.sample(tokens, params=SamplingParams(max_tokens=2, seed=number))

        return call

    await bounded([one(*call) for call in calls], 128)


@pytest.mark.parametrize("score", [False, True], ids=["sampling", "scoring"])
@pytest.mark.parametrize("name", SERVICES)
def test_every_slot_is_used_at_once(name: str, score: bool, tmp_path: Path) -> None:
    """The service answers nobody until as many calls are there as there are slots."""
    gate = Gate(lambda _, gate: len(gate.seen) >= slots)
    with served(name, gate, tmp_path) as backend:
        slots = backend.config.calls_in_flight

        async def main() -> None:
            client = await backend.create_sampling_client()
            await _calls(client, [("g", 10 + n) for n in range(slots)], score=score)
            await backend.aclose()

        asyncio.run(main())
    assert len(gate.done) == slots


@pytest.mark.parametrize("name", SERVICES)
def test_one_slow_call_holds_up_none_of_128(name: str, tmp_path: Path) -> None:
    """The first call is answered when all the others are."""
    gate = Gate(lambda call, gate: call != 10 or len(gate.done) == 127)
    with served(name, gate, tmp_path) as backend:

        async def main() -> None:
            client = await backend.create_sampling_client()
            await _calls(client, [(f"g{n // 8}", 10 + n) for n in range(128)], score=False)
            await backend.aclose()

        asyncio.run(main())
    assert gate.done[-1] == 10


@pytest.mark.parametrize("name", SERVICES)
def test_groups_take_turns_at_the_service(name: str, tmp_path: Path) -> None:
    """A group that asks for much does not keep one that comes after it waiting."""
    gate = Gate(lambda *_: True)
    large, small = [("large", 10 + n) for n in range(24)], [("small", 50 + n) for n in range(6)]
    with served(name, gate, tmp_path, calls_in_flight=1) as backend:

        async def main() -> None:
            client = await backend.create_sampling_client()
            await _calls(client, [*large, *small], score=False)
            await backend.aclose()

        asyncio.run(main())
    # The first call finds a free slot; from then on they take turns until the small group is done.
    assert gate.seen[1:13:2] == [11 + n for n in range(6)]
    assert gate.seen[2:14:2] == [50 + n for n in range(6)]
