"""The NumPy reference of the losses every backend is held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from turncredit.core.errors import ConfigError, did_you_mean
from turncredit.core.types import Array

Aggregation = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]

# The published mean adds this to its token count, so an empty batch gives 0 and not NaN.
MASK_EPSILON = 1e-8

# Past this exp() overflows; no clip window reaches anywhere near it.
_LOG_RATIO_LIMIT = 700.0


@dataclass(frozen=True)
class PPOConfig:
    """Clip bounds are bounds of the *ratio*: [0.8, 1.24] is the article's asymmetric window."""

    clip_low: float = 0.8
    clip_high: float = 1.24
    dual_clip: float | None = None
    aggregation: Aggregation = "token-mean"

    def __post_init__(self) -> None:
        if not 0 < self.clip_low <= 1 <= self.clip_high:
            raise ConfigError(
                "PPO clip bounds are ratios with 0 < low <= 1 <= high "
                f"(0.8 and 1.24 in the article); got {self.clip_low} and {self.clip_high}"
            )
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ConfigError(f"dual_clip must be above 1, or None; got {self.dual_clip}")
        if self.aggregation not in (known := get_args(Aggregation)):
            raise ConfigError(
                f'no aggregation "{self.aggregation}".{did_you_mean(self.aggregation, known)}'
            )


@dataclass(frozen=True, slots=True)
class PPOResult:
    """Loss, its gradient with respect to the new log-probs (D, T), and diagnostics."""

    loss: float
    grad_DT: Array
    clip_fraction: float
    dual_clip_fraction: float
    approx_kl: float


def token_weight(mask_DT: NDArray[np.bool_], aggregation: Aggregation) -> Array:
    """The weight each token's loss has in the aggregate, (D, T); 0 outside the mask.

    A row without action tokens adds nothing and never makes NaN; it still counts as a row, as in
    the published sums.
    """
    mask = mask_DT.astype(np.float64)
    rows, width = mask.shape
    if aggregation == "token-mean":
        return mask / (mask.sum() + MASK_EPSILON)
    if aggregation == "seq-mean-token-sum":
        return mask / max(rows, 1)
    if aggregation == "seq-mean-token-mean":
        return mask / np.maximum(mask.sum(axis=1, keepdims=True), 1) / max(rows, 1)
    return mask / max(width, 1)


def ppo(
    new_DT: Array,
    old_DT: Array,
    advantage_DT: Array,
    mask_DT: NDArray[np.bool_],
    config: PPOConfig = PPOConfig(),
) -> PPOResult:
    """PPO with a clipped ratio, on masked tokens only.

    Per token max(-A r, -A clip(r)), r = exp(new - old); with `dual_clip` c and A < 0 no more
    than -A c.

    Args:
        new_DT: (D, T) log-probs under the weights being trained.
        old_DT: (D, T) log-probs under the sampling snapshot.
        advantage_DT: (D, T).
        mask_DT: (D, T), True on action tokens; all else is ignored, whatever it holds.
        config: clip bounds and aggregation.
    """
    mask_DT = np.asarray(mask_DT, bool)
    new, old, advantage = (np.where(mask_DT, x, 0.0) for x in (new_DT, old_DT, advantage_DT))
    ratio = np.exp(np.clip(new - old, -_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT))
    plain = -advantage * ratio
    clipped = -advantage * np.clip(ratio, config.clip_low, config.clip_high)
    loss = np.maximum(plain, clipped)
    # The clipped branch is flat: where it wins, the token has no gradient.
    slope = np.where(clipped > plain, 0.0, plain)
    floored = np.zeros_like(mask_DT)
    if config.dual_clip is not None:
        cap = -advantage * config.dual_clip
        floored = (advantage < 0) & (loss > cap)
        loss, slope = np.where(floored, cap, loss), np.where(floored, 0.0, slope)
    weight = token_weight(mask_DT, config.aggregation)
    count = mask_DT.sum() + MASK_EPSILON
    return PPOResult(
        loss=float((loss * weight).sum()),
        grad_DT=slope * weight,
        clip_fraction=float(((clipped > plain) & mask_DT).sum() / count),
        dual_clip_fraction=float((floored & mask_DT).sum() / count),
        approx_kl=float((old - new).sum() / count),
    )
