"""What the benchmarks share: a job of forced lengths, clocks, bars, and a line about the machine.

A benchmark plays *forced* games: prompts, observations and actions have given numbers of tokens, so
that all sides of a comparison do the same amount of work whatever the model says.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

# Waiting threads must not spin: whoever else wants a core would be slowed 4-16 times by it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler counts bytes; it need not say so

import numpy as np
import torch

from turncredit.backends.local import Config
from turncredit.backends.local.backend import LocalBackend
from turncredit.core.protocols import SampleResult, SamplingClient, SamplingParams, ScoreResult
from turncredit.core.types import Group, Ids, Observation, Step, Task
from turncredit.loop.rollout import Limits, rollout
from turncredit.loop.toolcall import Parsed

LORA_RANK = 16  # of every side of every comparison


# ── jobs of forced lengths ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Job:
    """How much is played. Lengths are in tokens.

    Attributes:
        groups: tasks.
        size: trajectories per task.
        turns: of each trajectory.
        prompt: before the first action; the same for all members of a group.
        observe: between two actions; different for every member.
        act: of each action.
        hint: what a teacher reads before the prompt; 0: no teacher.
    """

    groups: int = 1
    size: int = 8
    turns: int = 10
    prompt: int = 300
    observe: int = 40
    act: int = 8
    hint: int = 0

    @property
    def length(self) -> int:
        """Of a whole trajectory."""
        return self.prompt + self.turns * self.act + (self.turns - 1) * self.observe

    @property
    def trajectories(self) -> int:
        return self.groups * self.size

    def __str__(self) -> str:
        return (
            f"{self.groups} x {self.size} trajectories of {self.turns} turns: prompt {self.prompt},"
            f" action {self.act}, observation {self.observe}"
            + (f", hint {self.hint}" if self.hint else "")
            + f" tokens ({self.length} in all)"
        )


class ForcedChat:
    """Stands where `loop.chat.Chat` does; every text becomes ids drawn from it, so many of them."""

    stop_ids = ()
    note_format = note_inadmissible = ""

    def __init__(self, job: Job, vocabulary: int) -> None:
        self._job, self._vocabulary = job, vocabulary

    def prompt(
        self, task: Task, observation: Observation, hint: str | None = None, step: str | None = None
    ) -> list[int]:
        """Half of it is common to all tasks, as a system message is."""
        common = self._ids("system", self._job.prompt // 2)
        own = self._ids(task.id, self._job.prompt - len(common))
        return [*(self._ids(hint, self._job.hint) if hint else ()), *common, *own]

    def reply(
        self, observation: Observation, turn_number: int, *, note: str = "", after: int = 0
    ) -> list[int]:
        return self._ids(observation.text, self._job.observe)

    def parse(self, ids: Ids) -> Parsed:
        return Parsed("go", "", "")

    def _ids(self, text: str, count: int) -> list[int]:
        draw = Random(text)
        return [draw.randrange(20, self._vocabulary) for _ in range(count)]


class ForcedWorld:
    """An environment that ends after the job's turns; every other member wins."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.started: Counter[str] = Counter()

    def tasks(self) -> list[Task]:
        return [
            Task(id=f"task-{i}", env="bench", split="train", task_type="", digest="")
            for i in range(self.job.groups)
        ]

    def episode(self, task: Task) -> ForcedEpisode:
        self.started[task.id] += 1
        return ForcedEpisode(f"{task.id}#{self.started[task.id]}", self)


class ForcedEpisode:
    """One play of a `ForcedWorld`."""

    def __init__(self, name: str, world: ForcedWorld) -> None:
        self._name, self._turns, self._done = name, world.job.turns, 0
        self._wins = world.started.total() % 2 == 0

    async def start(self) -> Observation:
        return Observation(self._name)

    async def act(self, action: str) -> Step:
        self._done += 1
        over = self._done == self._turns
        shown = Observation(f"{self._name}/{self._done}")
        return Step(observation=shown, success=over and self._wins, done=over)

    async def close(self) -> None:
        pass


class ForcedClient:
    """A sampling client whose every action has its full length and counts as finished."""

    def __init__(self, client: SamplingClient) -> None:
        self.client, self.snapshot_id = client, client.snapshot_id

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        result = await self.client.sample(prompt, params=params, num_samples=num_samples)
        ended = tuple(replace(s, stop_reason="stop") for s in result.samples)
        return replace(result, samples=ended)

    async def compute_logprobs(self, tokens: Ids, *, last_n: int | None = None) -> ScoreResult:
        return await self.client.compute_logprobs(tokens, last_n=last_n)

    async def close(self) -> None:
        await self.client.close()


async def play(job: Job, client: SamplingClient, vocabulary: int) -> list[Group]:
    """The job's groups, by the library's own rollout."""
    world: Any = ForcedWorld(job)
    chat: Any = ForcedChat(job, vocabulary)
    limits = Limits(
        max_turns=job.turns,
        max_trajectory_tokens=job.length + job.act,
        max_action_tokens=job.act,
        max_concurrency=job.trajectories,
    )
    return await rollout(
        world.tasks(),
        world,
        chat,
        ForcedClient(client),
        limits,
        group_size=job.size,
        run_seed=0,
        step=1,
    )


def policy_of(backend: LocalBackend) -> Any:
    """The network behind a backend, for its sizes and for peers that share its weights."""
    return backend._engine(backend.config.lora_rank)[0].policy


def local(model: str, **settings: Any) -> LocalBackend:
    """A local backend in float32 with the benchmarks' LoRA rank."""
    known = {field.name for field in fields(Config)}
    missing = sorted(set(settings) - known)
    if missing:
        print(f"note: this build has no setting {', '.join(missing)}")
    kept = {name: value for name, value in settings.items() if name in known}
    config = Config(base_model=model, lora_rank=LORA_RANK, dtype="float32", device="cpu", **kept)
    return LocalBackend(config)


def same_tokens(one: Sequence[Group], other: Sequence[Group]) -> float:
    """Share of trajectories with the same ids."""
    pairs = [
        np.array_equal(a.tokens, b.tokens)
        for g, h in zip(one, other, strict=True)
        for a, b in zip(g.trajectories, h.trajectories, strict=True)
    ]
    return sum(pairs) / len(pairs)


# ── clocks ───────────────────────────────────────────────────────────────────────────────────

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def seconds(call: Callable[[], object], clock: str = "wall") -> float:
    """How long a call takes, with all the threads torch was given at the start."""
    torch.set_num_threads(THREADS)
    now = CLOCKS[clock]
    start = now()
    call()
    return now() - start


def interleaved(
    calls: Mapping[str, Callable[[], object]], rounds: int, clock: str
) -> dict[str, float]:
    """Median seconds of each call. They take turns, so that a disturbance hits all of them."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(seconds(call, clock))
    return {name: median(values) for name, values in taken.items()}


def straightness(x: Sequence[float], y: Sequence[float]) -> float:
    """R² of the straight line through the points."""
    return float(np.corrcoef(x, y)[0, 1] ** 2)


THREADS = torch.get_num_threads()


# ── memory ───────────────────────────────────────────────────────────────────────────────────


def peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes of the CPU allocator that were alive at once, beyond those before the call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as seen:
        call()
    events = seen.profiler.kineto_results.events()
    moves = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    alive = most = 0
    for _, size in moves:
        alive += size
        most = max(most, alive)
    return most


# ── what is printed ──────────────────────────────────────────────────────────────────────────


def bar(name: str, ratio: float, needed: float) -> bool:
    """Print whether a ratio reaches what is asked of it."""
    ok = ratio >= needed
    print(f"bar {name} {ratio:.4g} {needed:g} {'pass' if ok else 'fail'}", flush=True)
    return ok


def machine() -> str:
    """The machine in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, "
        f"{THREADS} threads, torch {torch.__version__}, python {platform.python_version()}, "
        f"load {load:.1f}"
    )


def arguments(about: str | None, **defaults: Any) -> argparse.Namespace:
    """`--quick`, `--clock`, and a flag for every default."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smaller form, for a first look")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    for name, value in defaults.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, tuple):
            parser.add_argument(flag, type=type(value[0]), nargs="+", default=list(value))
        else:
            parser.add_argument(flag, type=type(value), default=value)
    args = parser.parse_args()
    print(machine(), file=sys.stderr)
    return args
