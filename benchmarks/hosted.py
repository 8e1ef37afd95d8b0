"""How busy 128 trajectories keep a hosted service, through its genuine SDK.

    python benchmarks/hosted.py pytrio|tinker [--quick]

The service is a loopback server in a process of its own that waits instead of computing
(`_slow_service.py`). The library plays groups of forced games on it and scores them, as many calls
at a time as the backend makes by default. The ideal is the same calls, of the same lengths, on as
many slots, with nothing between them; bars: the ideal over what it took (0.8), once for all calls
and once for all but one call that hangs; and how evenly groups are served where there are
fewer slots than trajectories: how long they wait for one, the mean over the worst (0.8).
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import importlib
import os
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import ForcedChat, ForcedClient, ForcedWorld, Job, bar, machine
from _slow_service import MODEL, VOCABULARY, Words, latency

from turncredit.core.protocols import SampleResult, SamplingParams, ScoreResult
from turncredit.core.turns import of_group
from turncredit.core.types import Group, Ids
from turncredit.loop.concurrency import bounded
from turncredit.loop.rollout import Limits, rollout

HERE = Path(__file__).parent


@contextmanager
def service(name: str, scale: float, slow: float) -> Iterator[tuple[str, int]]:
    """A running service: its address and process."""
    command = [sys.executable, str(HERE / "_slow_service.py"), name, str(scale), str(slow)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
        process.stdin.close()


class Drawn(ForcedChat):
    """A forced chat that draws its ids fast, so that they cost the measured time nothing."""

    def _ids(self, text: str, count: int) -> list[int]:
        drawn = np.random.default_rng(zlib.crc32(text.encode()))
        return drawn.integers(20, VOCABULARY, count).tolist()


class Timed:
    """Notes how long the service takes for each call, and when answers come."""

    def __init__(self, client: Any, scale: float) -> None:
        self.client, self.snapshot_id, self._scale = client, client.snapshot_id, scale
        self.chains: defaultdict[Any, list[float]] = defaultdict(list)  # task → its calls, in order
        self.took: defaultdict[Any, float] = defaultdict(float)  # task → seconds in calls
        self.answers: list[tuple[float, Any]] = []

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        needs = latency(prompt, params.seed, self._scale)
        call = self.client.sample(prompt, params=params, num_samples=num_samples)
        return await self._timed(call, needs)

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        needs = latency(tokens, 0, self._scale)
        return await self._timed(self.client.compute_logprobs(tokens, last_n=last_n), needs)

    async def _timed(self, call: Coroutine[Any, Any, Any], needs: float) -> Any:
        task, start = asyncio.current_task(), time.perf_counter()
        self.chains[task].append(needs)
        found = await call
        self.answers.append((time.perf_counter(), task))
        self.took[task] += self.answers[-1][0] - start
        return found


def ideal(chains: Sequence[Sequence[float]], slots: int) -> float:
    """Seconds of the chains on so many slots, first come, first served, nothing between calls."""
    free = [0.0] * slots
    ready = [(0.0, n, 0) for n in range(len(chains))]
    end = 0.0
    while ready:
        when, n, k = heapq.heappop(ready)
        start = max(when, heapq.heappop(free))
        done = start + chains[n][k]
        heapq.heappush(free, done)
        end = max(end, done)
        if k + 1 < len(chains[n]):
            heapq.heappush(ready, (done, n, k + 1))
    return end


def evenness(client: Timed, group_of: Mapping[Any, int]) -> float:
    """How long a group waits beyond what the service takes: the mean over the worst one."""
    waited: defaultdict[int, float] = defaultdict(float)
    for task, group in group_of.items():
        waited[group] += client.took[task] - sum(client.chains[task])
    return sum(waited.values()) / len(waited) / max(waited.values())


async def play(job: Job, client: Timed) -> tuple[list[Group], dict[Any, int]]:
    """The rollout, and which group each of its tasks played for."""
    world, chat = ForcedWorld(job), Drawn(job, VOCABULARY)
    limits = Limits(
        max_turns=job.turns,
        max_trajectory_tokens=job.length + job.act,
        max_action_tokens=job.act,
        max_concurrency=job.trajectories,
    )
    forced: Any = ForcedClient(client)  # type: ignore[arg-type]
    groups = await rollout(
        world.tasks(),
        world,  # type: ignore[arg-type]
        chat,  # type: ignore[arg-type]
        forced,
        limits,
        group_size=job.size,
        run_seed=0,
        step=1,
    )
    return groups, {task: n // job.size for n, task in enumerate(client.chains)}


async def score(groups: Sequence[Group], client: Timed, job: Job) -> None:
    """All trajectories behind a hint, as a teacher reads them."""
    hint = Drawn(job, VOCABULARY)._ids("hint", job.hint)
    rows = [
        (group.task.id, [*hint, *t.tokens.tolist()]) for group in groups for t in group.trajectories
    ]

    async def one(group: str, row: list[int]) -> None:
        with of_group(group):
            await client.compute_logprobs(row, last_n=len(row) - job.hint - job.prompt)

    await bounded([partial(one, *row) for row in rows], job.trajectories)


def cpu_seconds(pid: int) -> float:
    """CPU time of another process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def opened(name: str, url: str) -> Any:
    """The backend on the service."""
    module = importlib.import_module(f"turncredit.backends.{name}")
    backend = module.create(module.Config(base_model=MODEL, base_url=url))
    backend._tokenizer = Words()
    return backend


async def measure(name: str, job: Job, scale: float, url: str, pid: int) -> bool:
    """Rollout and scoring of a job against the ideal."""
    backend = opened(name, url)
    client = Timed(await backend.create_sampling_client(), scale)
    slots, cpu, served = backend.config.calls_in_flight, time.process_time(), cpu_seconds(pid)
    start = time.perf_counter()
    groups, group_of = await play(job, client)
    even = evenness(client, group_of)
    played = time.perf_counter() - start
    wanted = ideal(list(client.chains.values()), slots)
    client.chains.clear()
    start = time.perf_counter()
    await score(groups, client, job)
    scored = time.perf_counter() - start
    wanted_scored = ideal(list(client.chains.values()), slots)
    calls = len(client.answers)
    print(
        f"{name}, {slots} slots, {calls} calls: rollout {played:.1f} s (ideal {wanted:.1f}), "
        f"scoring {scored:.1f} s (ideal {wanted_scored:.1f}); a call costs "
        f"{1e3 * (time.process_time() - cpu) / calls:.1f} ms of the client's CPU and "
        f"{1e3 * (cpu_seconds(pid) - served) / calls:.1f} ms of the server's"
    )
    await backend.aclose()
    ok = bar(f"h-{name}-busy", (wanted + wanted_scored) / (played + scored), 0.8)
    # Where there is a slot for everybody nobody waits, and there is nothing to share out.
    return ok and (slots >= job.trajectories or bar(f"h-{name}-even", even, 0.8))


async def with_a_hanging_call(name: str, job: Job, scale: float, url: str, slow: float) -> bool:
    """All trajectories but the one whose first call hangs are through as if it were not there."""
    backend = opened(name, url)
    client = Timed(await backend.create_sampling_client(), scale)
    start = time.perf_counter()
    await play(job, client)
    hung = max(client.answers)[1]
    others = max(when for when, task in client.answers if task is not hung) - start
    chains = [chain for task, chain in client.chains.items() if task is not hung]
    wanted = ideal(chains, backend.config.calls_in_flight - 1)
    print(f"{name}: with a call of {slow:.0f} s, others {others:.1f} s (ideal {wanted:.1f})")
    await backend.aclose()
    return bar(f"h-{name}-hang", wanted / others, 0.8)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("service", choices=("pytrio", "tinker"))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter calls")
    parser.add_argument("--scale", type=float, default=1.0, help="latencies are 0.5 to 4 times it")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=900)
    args = parser.parse_args()
    turns = 2 if args.quick else args.turns
    job = Job(
        groups=args.groups, size=8, turns=turns, prompt=args.prompt, observe=150, act=40, hint=1150
    )
    print(machine(), job, sep="\n", flush=True)
    with service(args.service, args.scale, 0.0) as (url, pid):
        asyncio.run(measure(args.service, job, args.scale, url, pid))
    if not args.quick:
        slow = 100.0 * args.scale
        with service(args.service, args.scale, slow) as (url, _):
            asyncio.run(with_a_hanging_call(args.service, job, args.scale, url, slow))
    return 0


if __name__ == "__main__":
    sys.exit(main())
