"""Losses of action tokens, as plain sums: the caller has scaled every weight.

Formulas are those of `core.losses`; here they are differentiated by torch. Terms of the whole
next-token distribution are in `vocabulary`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from turncredit.core.losses import LossSpec, Settings

# Past this exp() overflows in float32, and 0 times infinity would spoil a token without weight.
_LOG_RATIO_LIMIT = 80.0

# The published clamps of the two exponential estimators.
_RHO_LIMIT = 10.0
_K3_LIMIT = 20.0
_KL_LIMIT = 10.0


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Per action token, all (N,): loss, probability ratio, and what the clips did.

    `clipped` marks tokens whose ratio the window cuts, `floored` those of the dual clip.
    """

    loss_N: torch.Tensor
    ratio_N: torch.Tensor
    clipped_N: torch.Tensor
    floored_N: torch.Tensor


def policy_loss(
    spec: LossSpec,
    new: torch.Tensor,
    old: torch.Tensor,
    advantage: torch.Tensor,
    row: torch.Tensor,
) -> PolicyLoss:
    """The policy loss of N action tokens.

    Args:
        spec: names and settings.
        new: (N,) log-probs under the weights being trained.
        old: (N,) those of the sampling snapshot.
        advantage: (N,). cross_entropy reads them as weights.
        row: (N,) which row a token belongs to, ascending; gspo has one ratio for each.
    """
    log_ratio = (new - old).clamp(max=_LOG_RATIO_LIMIT)
    never = torch.zeros_like(new, dtype=torch.bool)
    if spec.policy == "gspo":
        log_ratio = _row_mean(new - old, row).clamp(max=_LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    if spec.policy == "cross_entropy":
        return PolicyLoss(-advantage * new, ratio, never, never)
    if spec.policy == "importance_sampling":
        return PolicyLoss(-advantage * ratio, ratio, never, never)
    low, high = spec.settings["clip_low_threshold"], spec.settings["clip_high_threshold"]
    clipped = ratio.clamp(low, high)
    if spec.policy == "cispo":
        outside = (ratio < low) | (ratio > high)
        return PolicyLoss(-clipped.detach() * advantage * new, ratio, outside, never)
    loss = -torch.minimum(ratio * advantage, clipped * advantage)
    outside = ((advantage > 0) & (ratio > high)) | ((advantage < 0) & (ratio < low))
    if dual := spec.settings.get("dual_clip", 0.0):
        cap = -advantage * dual
        never = (advantage < 0) & (loss > cap)
        loss = torch.where(never, cap, loss)
    return PolicyLoss(loss, ratio, outside, never)


def _row_mean(values: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of the same row, at each of them, (N,)."""
    count = torch.bincount(row)
    total = torch.zeros(len(count), dtype=values.dtype, device=values.device)
    return (total.index_add(0, row, values) / count.clamp(min=1))[row]


# ── terms of the sampled token ───────────────────────────────────────────────────────────────


def _sdar(new: torch.Tensor, old: torch.Tensor, teacher: torch.Tensor, s: Settings) -> torch.Tensor:
    gap = teacher - new
    return (s["sdar_beta"] * gap).sigmoid().detach() * gap


def _skillsd(
    new: torch.Tensor, old: torch.Tensor, teacher: torch.Tensor, s: Settings
) -> torch.Tensor:
    """Value rho k3. The product rule leaves rho l, which holds no exponential of the gap.

    Given to torch as it is: the derivative of the clamped value would push a token that the
    teacher wants away with e^20.
    """
    with torch.no_grad():
        rho = (new - old).clamp(max=_RHO_LIMIT).exp()
        above = new - teacher
        value = rho * ((-above).clamp(max=_K3_LIMIT).exp() - 1 + above)
        slope = rho * above
    return value + slope * (new - new.detach())


def _opid(new: torch.Tensor, old: torch.Tensor, teacher: torch.Tensor, s: Settings) -> torch.Tensor:
    gap, clip = teacher - old, s["opid_clip"]
    return -(gap.clamp(-clip, clip) if clip else gap) * new


def _kl(new: torch.Tensor, old: torch.Tensor, reference: torch.Tensor, s: Settings) -> torch.Tensor:
    above, order = new - reference, s["kl_order"]
    if order == 1:
        return above
    if order == 2:
        return 0.5 * above**2
    return ((-above).clamp(max=_K3_LIMIT).exp() - 1 + above).clamp(max=_KL_LIMIT)


TokenTerm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Settings], torch.Tensor]

# name -> (new_N, old_N, what it compares with, settings) -> value_N, no weight or coefficient.
TOKEN_TERMS: Mapping[str, TokenTerm] = {
    "sdar": _sdar,
    "skillsd": _skillsd,
    "opid": _opid,
    "kl": _kl,
}
