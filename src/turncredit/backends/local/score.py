"""Log-probabilities of given tokens by a full forward pass: the one path that all terms share.

On the CPU every row is scored alone. A whole trajectory fills the matrix units by itself, there is
no padding to waste, and the numbers cannot depend on what else is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from turncredit.backends.local.policy import Policy
from turncredit.backends.local.vocabulary import Probe
from turncredit.core.datum import Distribution
from turncredit.core.types import Array

_HEAD_ELEMENTS = 2**24  # logits held at once: 64 MiB of float32

# What is read of one row: the policy, hidden states (T, d) of the row, its ids.
Reading = Callable[[Policy, torch.Tensor, list[int]], Any]


def token_logprobs(
    policy: Policy, hidden: torch.Tensor, targets: torch.Tensor, probes: Sequence[Probe] = ()
) -> tuple[torch.Tensor, ...]:
    """Log-probability of each target, and what the probes see of the same logits.

    Args:
        policy: whose head is used.
        hidden: (N, d) states that predict.
        targets: (N,) ids.
        probes: each gives one number per position.

    Returns:
        For the log-probs and each probe (N,) float32. At most 64 MiB of logits exist at a time,
        with probes a quarter of that, since they need some copies.
    """
    rows = max(1, _HEAD_ELEMENTS // policy.vocabulary // (4 if probes else 1))
    parts: list[torch.Tensor] = []
    for i in range(0, len(hidden), rows):
        at = slice(i, i + rows)
        piece = hidden[at], targets[at], probes, at
        if torch.is_grad_enabled() and len(hidden) > rows:
            # Logits of a large vocabulary are computed again rather than kept for the backward.
            parts.append(checkpoint(_gathered, policy, *piece, use_reentrant=False))
        else:
            parts.append(_gathered(policy, *piece))
    empty = hidden.new_zeros(0, 1 + len(probes), dtype=torch.float32)
    return (torch.cat(parts) if parts else empty).unbind(-1)


def _gathered(
    policy: Policy,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    probes: Sequence[Probe],
    at: slice,
) -> torch.Tensor:
    logits = policy.logits(hidden)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
    return torch.stack([logprobs, *(probe(logits, at) for probe in probes)], dim=-1)


@torch.no_grad()
def read_rows(
    policy: Policy,
    weights: Mapping[str, torch.Tensor],
    rows: Sequence[tuple[list[int], Reading]],
) -> list[Any]:
    """Read rows with one snapshot in one pass.

    Args:
        policy: the network.
        weights: the snapshot's tensors.
        rows: per row its ids and what is read of it.
    """
    policy.mount(weights)
    hidden = policy.full([ids for ids, _ in rows])
    return [read(policy, hidden[b], ids) for b, (ids, read) in enumerate(rows)]


def row_logprobs(policy: Policy, hidden: torch.Tensor, ids: list[int], *, last_n: int) -> Array:
    """Scores of a row, (T,) float64, NaN at 0 and before its last n."""
    start = max(1, len(ids) - last_n)
    targets = torch.tensor(ids[start:], device=policy.device)
    (scores,) = token_logprobs(policy, hidden[start - 1 : len(ids) - 1], targets)
    filled = np.full(len(ids), np.nan)
    filled[start:] = scores.double().cpu().numpy()
    return filled


def row_distribution(
    policy: Policy,
    hidden: torch.Tensor,
    ids: list[int],
    *,
    last_n: int,
    k: int,
    temperature: float,
) -> Distribution:
    """What each of the last n tokens of a row was drawn from; see `DistributionClient`."""
    start, vocabulary = max(1, len(ids) - last_n), policy.vocabulary
    width = vocabulary if k < 0 else min(k, vocabulary)
    logprobs = np.full((len(ids), width), np.nan, np.float32)
    chosen = np.zeros((len(ids), width if k >= 0 else 0), np.int64)
    rows = max(1, _HEAD_ELEMENTS // vocabulary)
    for i in range(start, len(ids), rows):
        at = slice(i, min(i + rows, len(ids)))
        logits = policy.logits(hidden[at.start - 1 : at.stop - 1]) / temperature
        values = logits.log_softmax(-1)
        if k >= 0:
            values, picked = values.topk(width)
            chosen[at] = picked.cpu().numpy()
        logprobs[at] = values.cpu().numpy()
    if k < 0:  # the same ids everywhere: one line, seen T times
        chosen = np.broadcast_to(np.arange(vocabulary), logprobs.shape)
    return Distribution(chosen, logprobs)
