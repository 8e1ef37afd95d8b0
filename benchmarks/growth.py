"""(f) How the time of one update grows with turns, group size and context.

    python benchmarks/growth.py [--model household-tiny] [--parts turns size prompt]

One update with a teacher: rollout, rescoring, credit, loss, optimizer step. With turns and with
group size it must grow in a straight line; the context is what stands before the first action.

Attention looks back at all there is, so that the line is straight as long as this is little beside
the weights: the more so, the larger the model. One of a million parameters, whose tokens meet fewer
numbers in their weights than in two thousand tokens before them, bends.
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
BASE = {
    "household-tiny": Job(size=8, turns=10, prompt=300, observe=40, act=8, hint=300),
    "smollm2-135m": Job(size=4, turns=10, prompt=80, observe=12, act=2, hint=80),
}


def grow(side: Side, base: Job, field: str, values: Sequence[int], args: Any) -> float:
    """Print seconds per value; returns R² of the straight line through them."""
    rows: list[list[float]] = [[] for _ in values]
    for _ in range(args.rounds):
        for row, value in zip(rows, values, strict=True):
            job = replace(base, **{field: value})
            row.append(common.seconds(lambda job=job: side.update(job), args.clock))
    taken = [median(row) for row in rows]
    for value, second in zip(values, taken, strict=True):
        tokens = replace(base, **{field: value})
        per = second / (tokens.trajectories * tokens.length)
        print(f"{field:>8} {value:6} {second:9.2f} s {per * 1e6:9.0f} us/token", flush=True)
    return common.straightness(values, taken)


def main() -> None:
    args = common.arguments(
        __doc__, model="household-tiny", turns=(5, 10, 20, 30, 40), size=(4, 8, 16, 32),
        prompt=(128, 256, 512, 1024), parts=("turns", "size", "prompt"), rounds=3,
    )  # fmt: skip
    if args.quick:
        args.turns, args.size, args.prompt, args.rounds = [5, 10, 20], [4, 8, 16], [128, 512], 1
    side, base = Side(args.model), BASE.get(args.model, BASE["household-tiny"])
    side.update(replace(base, turns=2))
    print(f"(f) growth of one update with a teacher, {args.model}, from {base}")
    straight = {
        part: grow(side, base, part, getattr(args, part), args)
        for part in ("turns", "size", "prompt")
        if part in args.parts
    }
    for part, name in (("turns", "turns"), ("size", "group-size")):
        if part in straight:
            common.bar(f"f-linear-in-{name}-r2-{args.model}", straight[part], STRAIGHT)


if __name__ == "__main__":
    main()
