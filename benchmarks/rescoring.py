"""(b) Teacher rescoring with the hint and prompt of a group read once, against one by one.

    python benchmarks/rescoring.py [--model smollm2-135m] [--size 8] [--hint 1150] [--length 700]

Same trajectories, same engine; only the setting `share_prefixes` differs. Both give the same
log-probs (that is checked).
"""

from __future__ import annotations

from dataclasses import replace

import _common as common
import numpy as np
from _common import Job
from _ours import Side

NEEDED = 1.2
TOLERANCE = 1e-3  # nats a token, float32


def main() -> None:
    args = common.arguments(
        __doc__, model="smollm2-135m", size=8, hint=1150, prompt=300, length=700, rounds=2
    )
    job = Job(size=args.size, turns=1, prompt=args.prompt, act=1, hint=args.hint)
    turns = max(1, args.length // 48)
    job = replace(job, turns=turns, act=args.length // turns - job.observe)
    if args.quick:
        args.rounds = 1
    print(f"(b) teacher rescoring, {args.model}, {job}", flush=True)
    shared, separate = Side(args.model), Side(args.model, share_prefixes=False)
    groups = shared.rollout(job)
    small = replace(job, hint=8)
    seen = {}

    def score(side: Side, name: str) -> None:
        seen[name] = side.rescore(job, groups)

    for side in (shared, separate):
        side.rescore(small, groups[:1])
    calls = {
        "shared": lambda: score(shared, "shared"),
        "separate": lambda: score(separate, "separate"),
    }
    took = common.interleaved(calls, args.rounds, args.clock)
    gap = max(
        float(np.abs(a - b).max())
        for g, h in zip(seen["shared"], seen["separate"], strict=True)
        for t, u in zip(g.trajectories, h.trajectories, strict=True)
        for a, b in zip(t.teacher_K, u.teacher_K, strict=True)
    )
    tokens = job.trajectories * (job.hint + job.length)
    print(
        f"read once {took['shared']:.2f} s, one by one {took['separate']:.2f} s "
        f"({tokens / took['separate']:.0f} tokens/s); log-probs differ by at most {gap:.1e} nats"
    )
    common.bar("b-rescoring-same-logprobs", float(gap <= TOLERANCE), 1.0)
    common.bar("b-rescoring-shared", took["separate"] / took["shared"], NEEDED)


if __name__ == "__main__":
    main()
