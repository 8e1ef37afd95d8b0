"""(e) Steps per second of the household environment, from 1 to 1,000 games at once.

    python benchmarks/environments.py [--quick] [--games 1 10 100 1000]

Generated games as large as ALFWorld's, played by random admissible commands. "engine" goes through
the environment's own interface, all games in lockstep; "rollout" has the library's whole rollout
around them (prompts, chat template, tokens, parsing, records), with a policy that answers at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache
from random import Random
from statistics import median
from typing import Any

import _common as common

from turncredit.backends.local.loading import load_tokenizer
from turncredit.core.calls import Sample, SampleResult, SamplingParams
from turncredit.core.protocols import Environment, Episode
from turncredit.core.types import Ids, Observation, Task, Usage
from turncredit.envs.household import Config, Household
from turncredit.loop.chat import Chat
from turncredit.loop.rollout import Limits, rollout

NEEDED = 0.5  # share of one game's steps per second that 1,000 games still reach


class Stocked:
    """The environment with its episodes made beforehand: making a game is not a step."""

    def __init__(self, environment: Household) -> None:
        self.name, self.splits = environment.name, environment.splits
        self.instructions, self.tool = environment.instructions, environment.tool
        self._environment = environment
        # Every game is made once here, however many rounds play it.
        environment._made = lru_cache(maxsize=None)(environment._made.__wrapped__)
        self._ready: defaultdict[str, list[Episode]] = defaultdict(list)

    def stock(self, tasks: Sequence[Task], each: int) -> None:
        for task in tasks:
            self._ready[task.id] = [self._environment.episode(task) for _ in range(each)]

    def tasks(self, split: str) -> Sequence[Task]:
        return self._environment.tasks(split)

    def episode(self, task: Task) -> Episode:
        return self._ready[task.id].pop()


async def engine(environment: Environment, tasks: Sequence[Task], turns: int) -> int:
    """Play every task for some turns, in lockstep; returns the steps made."""
    rng, steps = Random(0), 0
    games = [environment.episode(task) for task in tasks]
    shown: list[Observation | None] = [await game.start() for game in games]
    for _ in range(turns):
        for i, game in enumerate(games):
            if (seen := shown[i]) is not None:
                step = await game.act(rng.choice(seen.actions))
                shown[i] = None if step.done else step.observation
                steps += 1
    for game in games:
        await game.close()
    return steps


class Instant:
    """A sampling client that always says the same."""

    snapshot_id = "instant"

    def __init__(self, action: Ids) -> None:
        self._sample = Sample(
            tokens=tuple(action), logprobs=(-1.0,) * len(action), stop_reason="stop"
        )

    async def sample(
        self, prompt: Ids, *, params: SamplingParams, num_samples: int = 1
    ) -> SampleResult:
        return SampleResult(
            samples=(self._sample,), snapshot_id=self.snapshot_id, usage=Usage(requests=1)
        )


class Whole:
    """The library's rollout, all games at once."""

    def __init__(self, environment: Environment, turns: int) -> None:
        self._chat = Chat(load_tokenizer("household-tiny"), environment, max_turns=turns)
        self._environment, self._turns = environment, turns

    async def play(self, tasks: Sequence[Task]) -> int:
        client: Any = Instant(self._chat.action_ids("look"))
        groups = await rollout(
            tasks,
            self._environment,
            self._chat,
            client,
            Limits(
                max_turns=self._turns, max_action_tokens=64, max_trajectory_tokens=100_000,
                max_concurrency=len(tasks),
            ),
            group_size=1,
            run_seed=0,
            step=1,
        )  # fmt: skip
        return sum(len(t.turns) for group in groups for t in group.trajectories)


def main() -> None:
    args = common.arguments(__doc__, games=(1, 10, 100, 1000), turns=20, rounds=3)
    if args.quick:
        args.rounds, args.turns = 1, 5
    environment = Stocked(Household(Config(size="full")))
    whole = Whole(environment, args.turns)
    tasks = environment.tasks("train")
    print(f"(e) household environment, games of full size, {args.turns} turns each")
    print(f"{'games':>6} {'engine steps/s':>15} {'rollout steps/s':>16}")
    rates: dict[int, list[float]] = {}
    for count in args.games:
        chosen = tasks[:count]
        again = max(1, 40 // count)  # one short game is too little to time
        plays = (
            lambda c=chosen: engine(environment, c, args.turns),
            lambda c=chosen: whole.play(c),
        )
        rates[count] = [_rate(play, environment, chosen, again, args) for play in plays]
        print(f"{count:6} {rates[count][0]:15.0f} {rates[count][1]:16.0f}", flush=True)
    fewest, most = min(rates), max(rates)
    for i, what in enumerate(("engine", "rollout")):
        common.bar(f"e-{what}-{most}-games-vs-{fewest}", rates[most][i] / rates[fewest][i], NEEDED)


def _rate(
    play: Callable[[], Coroutine[Any, Any, int]],
    environment: Stocked,
    tasks: Sequence[Task],
    again: int,
    args: Any,
) -> float:
    """Steps per second."""
    steps, taken = 0, []

    def go() -> None:
        nonlocal steps
        steps = sum(asyncio.run(play()) for _ in range(again))

    warm = len(tasks) < 100
    for _ in range(args.rounds + warm):
        environment.stock(tasks, again)
        taken.append(common.seconds(go, args.clock))
    return steps / median(taken[warm:])


if __name__ == "__main__":
    main()
