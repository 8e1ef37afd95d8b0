"""(h) What runs beside what: scores beside the rollout, the next rollout beside the update.

    python benchmarks/overlap.py [--quick] [--answer 0.1] [--score 0.15] [--train 1]

Whole updates of AgentOPSD by the library's own loop, on the toy with the table policy. Games,
scores and gradients *wait* instead of computing, as behind a network or on another device:
`answer` seconds on average for a game's answer (games differ by up to three times), `score` for a
teacher's request (two at a time), `train` for an update. So what is measured is the order of the
loop, hardly the machine. The work is the same on all sides, but for groups that are skipped; level
1 learns from trajectories that are one update behind.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

from turncredit import config
from turncredit.cli.train import begin, train
from turncredit.core.types import Task
from turncredit.loop.listener import Listener
from turncredit.loop.parts import open_parts

SIZE = {"tasks_per_update": 4, "group_size": 3, "save_every": 1000}
AT_ONCE = 2  # scores: what a teacher can do at a time
AFTER = {"teacher": {"overlap": False, "skip_silent": False}}
SIDES: dict[str, dict[str, Any]] = {
    "one after the other": AFTER,
    "groups without signal skipped": {"teacher": {"overlap": False}},
    "and scores beside the rollout": {},
    "and the next rollout beside it": {"schedule": {"async_level": 1}},
}


def after(seconds: float, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`call`, which takes a while."""

    async def slow(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(seconds)
        return await call(*args, **kwargs)

    return slow


class Slow:
    """An environment or backend that makes slow things."""

    def __init__(self, inner: Any, **replaced: Any) -> None:
        self._inner = inner
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def slow_environment(environment: Any, answer: float) -> Any:
    """Games whose answers take 0.5 to 1.5 times `answer` seconds."""

    def episode(task: Task) -> Any:
        game = environment.episode(task)
        return Slow(game, act=after(answer * (0.5 + Random(task.id).random()), game.act))

    return Slow(environment, episode=episode)


def slow_backend(backend: Any, score: float, update: float) -> Any:
    """A backend whose scores and gradients take a while."""

    def scoring(client: Any) -> Any:
        return Slow(client, compute_logprobs=after(score, client.compute_logprobs))

    async def create_training_client(**kwargs: Any) -> Any:
        training = await backend.create_training_client(**kwargs)

        async def snapshot() -> Any:
            return scoring(await training.save_weights_and_get_sampling_client())

        return Slow(
            training,
            forward_backward=after(update, training.forward_backward),
            save_weights_and_get_sampling_client=snapshot,
        )

    return Slow(backend, create_training_client=create_training_client)


def run(changes: dict[str, Any], args: argparse.Namespace) -> float:
    """Seconds an update."""
    with tempfile.TemporaryDirectory() as folder:
        size = {**SIZE, "max_steps": args.updates, "runs_dir": folder}
        common = {"schedule": size, "teacher": {"teacher_concurrency": AT_ONCE}}
        settings = config.build(config.merge(config.read_recipe("toy-agentopsd"), common, changes))
        parts = open_parts(settings)
        parts = replace(
            parts,
            environment=slow_environment(parts.environment, args.answer),
            backend=slow_backend(parts.backend, args.score, args.train),
        )
        began = time.perf_counter()
        train(settings, begin(settings), Listener(), parts)
        return (time.perf_counter() - began) / args.updates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smaller form, for a first look")
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--answer", type=float, default=0.1)
    parser.add_argument("--score", type=float, default=0.15)
    parser.add_argument("--train", type=float, default=1.0)
    args = parser.parse_args()
    if args.quick:
        args.updates = 3
    print(
        f"(h) {args.updates} updates of {SIZE['tasks_per_update']} x {SIZE['group_size']} games; "
        f"{args.answer} s an answer, {args.score} s a score, {args.train} s a gradient"
    )
    took = {name: run(changes, args) for name, changes in SIDES.items()}
    first = next(iter(took.values()))
    for name, seconds in took.items():
        print(f"{name:<32} {seconds:6.2f} s an update   {first / seconds:5.2f} x")


if __name__ == "__main__":
    main()
