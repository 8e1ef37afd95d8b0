"""(f) How the time of one update grows with turns, group size and context.

    python benchmarks/growth.py [--model household-tiny]

One update with a teacher: rollout, rescoring, credit, loss, optimizer step. With turns and with
group size it must grow in a straight line; the context is what stands before the first action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import _common as common
from _common import Job
from _ours import Side

STRAIGHT = 0.98
BASE = Job(size=8, turns=10, prompt=300, observe=40, act=8, hint=300)


def grow(side: Side, field: str, values: Sequence[int], args: Any) -> float:
    """Print seconds per value; returns R² of the straight line through them."""
    rows: list[list[float]] = [[] for _ in values]
    for _ in range(args.rounds):
        for row, value in zip(rows, values, strict=True):
            job = replace(BASE, **{field: value})
            row.append(common.seconds(lambda job=job: side.update(job), args.clock))
    taken = [median(row) for row in rows]
    for value, second in zip(values, taken, strict=True):
        tokens = replace(BASE, **{field: value})
        per = second / (tokens.trajectories * tokens.length)
        print(f"{field:>8} {value:6} {second:9.2f} s {per * 1e6:9.0f} us/token", flush=True)
    return common.straightness(values, taken)


def main() -> None:
    args = common.arguments(
        __doc__, model="household-tiny", turns=(5, 10, 20, 30, 40), size=(4, 8, 16, 32),
        prompt=(128, 256, 512, 1024), rounds=3,
    )  # fmt: skip
    if args.quick:
        args.turns, args.size, args.prompt, args.rounds = [5, 10, 20], [4, 8, 16], [128, 512], 1
    side = Side(args.model)
    side.update(replace(BASE, turns=2))
    print(f"(f) growth of one update with a teacher, {args.model}, from {BASE}")
    turns = grow(side, "turns", args.turns, args)
    size = grow(side, "size", args.size, args)
    grow(side, "prompt", args.prompt, args)
    common.bar("f-linear-in-turns-r2", turns, STRAIGHT)
    common.bar("f-linear-in-group-size-r2", size, STRAIGHT)


if __name__ == "__main__":
    main()
