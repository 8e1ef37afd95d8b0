"""What a training call did, worked out here from the log-probs a service returns.

Services report other numbers under other names, or none; these are the ones `local` reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from turncredit.core.datum import Datum
from turncredit.core.losses import LossSpec
from turncredit.core.types import Array

_LOG_RATIO_LIMIT = 80.0  # as in `local`: past it exp() overflows in float32


def tally(data: Sequence[Datum], new: Sequence[Array], loss: LossSpec) -> dict[str, float]:
    """Means per action token, but for `loss`, the sum that was differentiated.

    Args:
        data: the rows of a call, before any scaling for the service.
        new: per row (T,) log-probs under the weights being trained.
        loss: a policy loss of tokens, without terms.
    """
    masks = [row.mask for row in data]
    pairs = list(zip(data, masks, strict=True))
    advantage_N = np.concatenate([row.advantages[mask] for row, mask in pairs])
    old_N = np.concatenate([row.logprobs[mask] for row, mask in pairs])
    new_N = np.concatenate([found[mask] for found, mask in zip(new, masks, strict=True)])
    ratio_N = np.exp(np.minimum(new_N - old_N, _LOG_RATIO_LIMIT))
    loss_N, clipped_N = _policy_loss(loss, new_N, ratio_N, advantage_N)
    return {
        "loss": float(loss_N.sum()),
        "ratio_mean": float(ratio_N.mean()),
        "ratio_max": float(ratio_N.max()),
        "clip_fraction": float(clipped_N.mean()),
        "approx_kl": float((ratio_N - 1 - np.log(ratio_N)).mean()),
        "action_tokens": float(len(new_N)),
    }


def _policy_loss(
    loss: LossSpec, new_N: Array, ratio_N: Array, advantage_N: Array
) -> tuple[Array, NDArray[np.bool_]]:
    """Loss of every action token, and whether the window cut its ratio."""
    never = np.zeros(len(new_N), bool)
    if loss.policy == "cross_entropy":
        return -advantage_N * new_N, never
    if loss.policy == "importance_sampling":
        return -advantage_N * ratio_N, never
    low, high = loss.settings["clip_low_threshold"], loss.settings["clip_high_threshold"]
    clipped_N = np.clip(ratio_N, low, high)
    if loss.policy == "cispo":
        return -clipped_N * advantage_N * new_N, (ratio_N < low) | (ratio_N > high)
    value_N = -np.minimum(ratio_N * advantage_N, clipped_N * advantage_N)
    outside = ((advantage_N > 0) & (ratio_N > high)) | ((advantage_N < 0) & (ratio_N < low))
    return value_N, outside


def window(loss: LossSpec) -> Mapping[str, float]:
    """The settings a service is sent: both bounds, always, because services' defaults differ."""
    return {name: loss.settings[name] for name in loss.settings if name.startswith("clip_")}
