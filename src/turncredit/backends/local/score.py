"""Log-probabilities of given tokens by a full forward pass: the one path that all terms share.

On the CPU every row is scored alone. A whole trajectory fills the matrix units by itself, there is
no padding to waste, and the numbers cannot depend on what else is in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from turncredit.backends.local.policy import Policy
from turncredit.core.types import Array

_HEAD_ELEMENTS = 2**24  # logits held at once: 64 MiB of float32


def token_logprobs(policy: Policy, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Log-probability of each target.

    Args:
        policy: whose head is used.
        hidden: (N, d) states that predict.
        targets: (N,) ids.

    Returns:
        (N,) float32. At most 64 MiB of logits exist at a time.
    """
    rows = max(1, _HEAD_ELEMENTS // policy.vocabulary)
    parts: list[torch.Tensor] = []
    for i in range(0, len(hidden), rows):
        piece = hidden[i : i + rows], targets[i : i + rows]
        if torch.is_grad_enabled() and len(hidden) > rows:
            # Logits of a large vocabulary are computed again rather than kept for the backward.
            parts.append(checkpoint(_gathered, policy, *piece, use_reentrant=False))
        else:
            parts.append(_gathered(policy, *piece))
    return torch.cat(parts) if parts else hidden.new_zeros(0, dtype=torch.float32)


def _gathered(policy: Policy, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = policy.logits(hidden)
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)


@torch.no_grad()
def score_rows(
    policy: Policy,
    weights: Mapping[str, torch.Tensor],
    rows: Sequence[tuple[list[int], int]],
) -> list[Array]:
    """Score rows with one snapshot in one pass.

    Args:
        policy: the network.
        weights: the snapshot's tensors.
        rows: per row its ids and how many of the last ones are wanted.

    Returns:
        Per row (T,) float64, NaN where not wanted and at 0.
    """
    policy.mount(weights)
    hidden = policy.full([ids for ids, _ in rows])
    out: list[Array] = []
    for b, (ids, last_n) in enumerate(rows):
        start = max(1, len(ids) - last_n)
        targets = torch.tensor(ids[start:], device=policy.device)
        scores = token_logprobs(policy, hidden[b, start - 1 : len(ids) - 1], targets)
        filled = np.full(len(ids), np.nan)
        filled[start:] = scores.double().cpu().numpy()
        out.append(filled)
    return out
