"""(c) Memory that scoring and training add for log-probs, against the logits of every position.

    python benchmarks/memory.py [--model smollm2-135m] [--length 2048] [--actions 256]

What counts is the most the CPU allocator held at once during a call (PyTorch's own events, not the
size of the process). "Added" is that peak minus the peak of the same call with a head of two words:
what is left of it is the network's own. The bar divides what full logits are at the least,
positions x vocabulary x 4 bytes, by what is added; the usual way is measured beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
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


def scoring(side: Side, ids: list[int], actions: int) -> Callable[[], Any]:
    # A snapshot's merged weights are made once, by the first call.
    client = asyncio.run(side.training.save_weights_and_get_sampling_client())
    asyncio.run(client.compute_logprobs(ids[:8]))
    return lambda: asyncio.run(client.compute_logprobs(ids, last_n=actions))


def training(side: Side, ids: list[int], actions: int) -> Callable[[], Any]:
    data = [row(ids, actions)]
    # Gradients of the weights stay where the first pass puts them.
    asyncio.run(side.training.forward_backward([row(ids[:16], 4)], loss_fn="ppo"))
    return lambda: asyncio.run(side.training.forward_backward(data, loss_fn="ppo"))


def full_logits(side: Side, ids: list[int], actions: int, *, train: bool) -> Callable[[], Any]:
    """The usual way: logits of all positions, then the log-probs of the actions."""
    policy = common.policy_of(side.backend)

    def go() -> None:
        with torch.set_grad_enabled(train):
            logprobs = policy.logits(policy.full([ids])[0, :-1]).log_softmax(-1)
            chosen = logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[-actions:]
            if train:
                chosen.sum().backward()

    return go


@contextmanager
def two_words(side: Side) -> Iterator[None]:
    """Within: the network's head knows two words."""
    policy = common.policy_of(side.backend)
    head = policy._head
    policy._head = torch.nn.Linear(head.in_features, 2, bias=False).requires_grad_(False)
    try:
        yield
    finally:
        policy._head = head


def main() -> None:
    args = common.arguments(__doc__, model="smollm2-135m", length=2048, actions=256)
    side = Side(args.model)
    ids = [Random(i).randrange(2) for i in range(args.length)]
    nominal = args.length * side.vocabulary * 4
    print(
        f"(c) memory, {args.model}, {args.length} tokens, {args.actions} of them actions; "
        f"full logits are {nominal / MIB:.0f} MiB"
    )
    what = side, ids, args.actions
    cases: dict[str, Callable[[], Any]] = {
        "scoring": scoring(*what),
        "training": training(*what),
        "scoring, full logits": full_logits(*what, train=False),
        "training, full logits": full_logits(*what, train=True),
    }
    print(f"{'':22} {'peak MiB':>9} {'added MiB':>10}")
    added: dict[str, int] = {}
    for name, call in cases.items():
        if args.quick and "full" in name:
            continue
        with two_words(side):
            low = common.peak_bytes(call)
        high = common.peak_bytes(call)
        added[name] = high - low
        print(f"{name:22} {high / MIB:9.1f} {added[name] / MIB:10.1f}", flush=True)
    for name in [n for n in added if "full" not in n]:
        common.bar(f"c-memory-{name}", nominal / max(added[name], MIB), NEEDED)


if __name__ == "__main__":
    main()
