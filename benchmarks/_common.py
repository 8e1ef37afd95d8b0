"""What the benchmarks share: forced games on a backend, clocks, memory, arguments."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from statistics import median
from typing import Any

# Waiting threads must not spin: whoever else wants a core would be slowed 4-16 times by it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler counts bytes; it need not say so

import _forced
import numpy as np
import torch
from _forced import ForcedChat, ForcedClient, ForcedWorld, Job
from _forced import bar as bar

from turncredit.backends.local import Config
from turncredit.backends.local.backend import LocalBackend
from turncredit.core.clients import SamplingClient
from turncredit.core.types import Group
from turncredit.loop.rollout import Limits, rollout

LORA_RANK = 16  # of every side of every comparison


# ── jobs of forced lengths, on a backend ─────────────────────────────────────────────────────


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


def machine() -> str:
    """The machine in one line."""
    return _forced.machine(f"{THREADS} threads", f"torch {torch.__version__}")


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
