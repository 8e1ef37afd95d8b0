"""(a) Incremental rollouts against a whole prompt per turn, by the same engine.

    python benchmarks/rollouts.py [--quick] [--model household-tiny] [--turns 10 20 50] [--bars 20]

The longer reading takes beside writing, the more is won: a network of 135 M parameters (with
--prompt 80 --observe 12 --act 2, or nobody would wait for the other side) wins more than one of a
million. `--bars` says at how many turns a bar is set, `--grid` up to how many the straight line of
seconds over turns goes (0: none).

Both sides sample the same ids (that is checked). What differs is whether keys and values of earlier
turns, and of the prompt that a group shares, are kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from statistics import median

import _common as common
from _common import Job

from turncredit.core.types import Group

NEEDED = {20: 5.0, 50: 10.0}
STRAIGHT = 0.98


class Side:
    """One backend with one frozen snapshot."""

    def __init__(self, model: str, **settings: bool) -> None:
        self.backend = common.local(model, **settings)
        self.groups: list[Group] = []

    def run(self, job: Job) -> None:
        async def go() -> None:
            client = await self.backend.create_sampling_client()
            vocabulary = common.policy_of(self.backend).vocabulary
            # Not returned: `asyncio.run` would write out what its coroutine returns, as text.
            self.groups = await common.play(job, client, vocabulary)
            await client.close()

        asyncio.run(go())


def main() -> None:
    args = common.arguments(
        __doc__, model="household-tiny", turns=(10, 20, 50), groups=4, size=8, prompt=300,
        observe=40, act=8, rounds=3, grid=50, bars=(20,),
    )  # fmt: skip
    if args.quick:
        args.turns, args.rounds, args.grid = [10, 20], 1, 20
    base = Job(args.groups, args.size, prompt=args.prompt, observe=args.observe, act=args.act)
    kept, whole = Side(args.model), Side(args.model, reuse_prefixes=False)
    for side in (kept, whole):  # loading and first calls are nobody's turn
        side.run(replace(base, turns=2))
    print(f"(a) rollouts, {args.model}, {replace(base, turns=max(args.turns))}")
    print(f"{'turns':>6} {'kept s':>9} {'whole s':>9} {'ratio':>7} {'same ids':>9}")
    ratios: dict[int, float] = {}
    for turns in args.turns:
        job = replace(base, turns=turns)
        calls = {"kept": lambda job=job: kept.run(job), "whole": lambda job=job: whole.run(job)}
        took = common.interleaved(calls, args.rounds if turns < 50 else 1, args.clock)
        ratios[turns] = took["whole"] / took["kept"]
        same = common.same_tokens(kept.groups, whole.groups)
        print(
            f"{turns:6} {took['kept']:9.2f} {took['whole']:9.2f} {ratios[turns]:7.2f} {same:9.0%}",
            flush=True,
        )
        common.bar(f"a-same-ids-{turns}-turns", same, 1.0)
    for turns, ratio in ratios.items():
        if turns in NEEDED and turns in args.bars:
            common.bar(f"a-rollout-{turns}-turns-{args.model}", ratio, NEEDED[turns])
    if args.grid:
        grid = range(5, args.grid + 1, 5)
        taken = [
            median(
                common.seconds(lambda t=t: kept.run(replace(base, turns=t)), args.clock)
                for _ in range(max(3, args.rounds))  # one disturbed point would bend the line
            )
            for t in grid
        ]
        straight = common.straightness(list(grid), taken)
        common.bar("a-linear-in-turns-r2", straight, STRAIGHT)


if __name__ == "__main__":
    main()
