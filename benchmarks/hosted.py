"""How busy 128 trajectories keep a hosted service, through its genuine SDK.

    python benchmarks/hosted.py pytrio|tinker [--quick] [--scale SECONDS]

The service is a loopback server in a process of its own that waits instead of computing
(`_slow_service.py`): 0.5, 0.5, 1, 2 or 4 times `--scale` seconds, as the prompt and the seed of a
call say. The library plays groups of forced games on it and scores them, as many calls at a time
as the backend makes by default.

**The ideal** is the same calls, of the same lengths, on as many slots, with nothing between them:
a turn begins the moment the one before it has ended and a slot is free (first come, first served).
It has no HTTP, no SDK, no games and no tokens to draw; what they take is counted against us.
Another order of the same calls may be a little faster, so that a ratio just above 1 is possible.

Bars: the ideal over what it took (0.8), once for all calls and once for all but one call that
hangs; and how evenly groups are served where there are fewer slots than trajectories: how long
they wait for one, the mean over the worst (0.8).

An SDK needs 5 to 15 ms of one core for a call, which is printed. Latencies are chosen so that the
slots ask for fewer calls a second than a core can make (PyTRIO: 16 slots, 10 a second; Tinker: 128
slots, 40 a second): what is measured is waiting, not the speed of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _forced import ForcedChat, ForcedClient, ForcedWorld, Job, bar, machine
from _slow_service import MODEL, VOCABULARY, Words, latency

from turncredit.core.calls import SampleResult, SamplingParams, ScoreResult
from turncredit.core.turns import of_group
from turncredit.core.types import Group, Ids
from turncredit.loop.concurrency import bounded
from turncredit.loop.rollout import Limits, rollout

HERE = Path(__file__).parent
SCALE = {"pytrio": 1.0, "tinker": 2.0}
SLOW = {"pytrio": 100.0, "tinker": 30.0}
STANDSTILL_S = 1.5
TRIES = 3


Bar = tuple[str, float]  # its name and the ratio
Measure = Callable[[str, int], Coroutine[Any, Any, list[Bar]]]  # of a service: address, process


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


class Watch:
    """Notices when this process did not run at all: a figure from such a time is of no use."""

    def __init__(self) -> None:
        self.stood, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        last = time.perf_counter()
        while not self._over.wait(0.1):
            now = time.perf_counter()
            if now - last > STANDSTILL_S:
                self.stood += now - last
            last = now


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


async def measure(name: str, job: Job, scale: float, url: str, pid: int) -> list[Bar]:
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
    bars = [(f"h-{name}-busy", (wanted + wanted_scored) / (played + scored))]
    # Where there is a slot for everybody nobody waits, and there is nothing to share out.
    return bars if slots >= job.trajectories else [*bars, (f"h-{name}-even", even)]


async def with_a_hanging_call(
    name: str, job: Job, scale: float, url: str, slow: float
) -> list[Bar]:
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
    return [(f"h-{name}-hang", wanted / others)]


def undisturbed(name: str, scale: float, slow: float, once: Measure) -> None:
    """Measure and print the bars; again, when the process was stopped meanwhile."""
    for _ in range(TRIES):
        with service(name, scale, slow) as (url, pid), Watch() as watch:
            bars = asyncio.run(once(url, pid))
        if not watch.stood:
            for called, ratio in bars:
                bar(called, ratio, 0.8)
            return
        print(f"stopped for {watch.stood:.1f} s meanwhile, which counts for nothing", flush=True)
    print(f"no figure of {name}: this process was stopped in every one of {TRIES} tries")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("service", choices=("pytrio", "tinker"))
    parser.add_argument("--quick", action="store_true", help="two turns, no hanging call")
    parser.add_argument("--scale", type=float, help="seconds; default: pytrio 1, tinker 2")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=900)
    args = parser.parse_args()
    name, scale = args.service, args.scale or SCALE[args.service]
    if importlib.util.find_spec(name) is None:
        print(f"skipped: the {name} SDK is not installed (pip install 'turncredit[{name}]')")
        return 0
    turns = 2 if args.quick else args.turns
    job = Job(
        groups=args.groups, size=8, turns=turns, prompt=args.prompt, observe=150, act=40, hint=1150
    )
    print(machine(), job, sep="\n", flush=True)
    undisturbed(name, scale, 0.0, lambda url, pid: measure(name, job, scale, url, pid))
    if not args.quick:
        slow = SLOW[name] * scale  # longer than all others take
        undisturbed(
            name, scale, slow, lambda url, _: with_a_hanging_call(name, job, scale, url, slow)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
