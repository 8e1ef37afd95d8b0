"""(c) Memory that scoring and training add for log-probs, against the logits of every position.

    python benchmarks/memory.py [--model smollm2-135m] [--length 2048] [--actions 256]

What counts is the most the CPU allocator held at once during a call (PyTorch's own events, not the
size of the process). "Added" is that peak minus the peak of the same call with one action token.
Full logits are measured too, but the bar divides what they are at the least: positions x vocabulary
x 4 bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import _common as common
import numpy as np
import torch
from _ours import Side

from turncredit.core.datum import Datum

MIB = 2**20
NEEDED = 8.0


def row(ids: list[int], actions: int) -> Datum:
    """A training row whose last `actions` tokens are an action."""
    mask = np.zeros(len(ids), bool)
    mask[-actions:] = True
    return Datum(
        tokens=np.array(ids),
        mask=mask,
        logprobs=np.where(mask, -1.0, 0.0),
        advantages=mask.astype(float),
    )


def scoring(side: Side, ids: list[int]) -> Callable[[int], Any]:
    async def score(actions: int) -> None:
        client = await side.training.save_weights_and_get_sampling_client()
        await client.compute_logprobs(ids, last_n=actions)
        await client.close()

    return lambda actions: asyncio.run(score(actions))


def training(side: Side, ids: list[int]) -> Callable[[int], Any]:
    return lambda actions: asyncio.run(
        side.training.forward_backward([row(ids, actions)], loss_fn="ppo")
    )


def full_logits(side: Side, ids: list[int], *, train: bool) -> Callable[[int], Any]:
    """The usual way: logits of all positions, then the log-probs of the actions."""
    policy = common.policy_of(side.backend)

    def go(actions: int) -> None:
        hidden = policy.full([ids])[0, :-1]
        if actions > 1:
            logprobs = policy.logits(hidden).log_softmax(-1)
            chosen = logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[-actions:]
        else:
            chosen = policy.logits(hidden[-1:])
        if train:
            chosen.sum().backward()

    def run(actions: int) -> None:
        with torch.set_grad_enabled(train):
            go(actions)

    return run


def main() -> None:
    args = common.arguments(__doc__, model="smollm2-135m", length=2048, actions=256)
    side = Side(args.model)
    ids = common.ForcedChat(common.Job(prompt=args.length), side.vocabulary)._ids("x", args.length)
    nominal = args.length * side.vocabulary * 4
    print(
        f"(c) memory, {args.model}, {args.length} tokens, {args.actions} of them actions; "
        f"full logits are {nominal / MIB:.0f} MiB"
    )
    cases: dict[str, Callable[[int], Any]] = {
        "scoring": scoring(side, ids),
        "training": training(side, ids),
        "scoring, full logits": full_logits(side, ids, train=False),
        "training, full logits": full_logits(side, ids, train=True),
    }
    print(f"{'':22} {'peak MiB':>9} {'added MiB':>10}")
    added: dict[str, float] = {}
    for name, call in cases.items():
        call(1)  # caches of the first call are not this call's memory
        low, high = (common.peak_bytes(partial(call, n)) for n in (1, args.actions))
        added[name] = max(high - low, MIB / 8)
        print(f"{name:22} {high / MIB:9.1f} {(high - low) / MIB:10.1f}", flush=True)
    for name in ("scoring", "training"):
        common.bar(f"c-memory-{name}", nominal / added[name], NEEDED)


if __name__ == "__main__":
    main()
