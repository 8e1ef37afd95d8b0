"""The NumPy reference of the losses every backend is held to.

Per action token, with A its advantage and r = e^(new - old):

    ppo                  max(-A r, -A clip(r)); with a dual clip c and A < 0 no more than -A c
    importance_sampling  -A r
    cispo                -sg(clip(r)) A new
    gspo                 max(-A s, -A clip(s)), s = e^(mean of new - old over the row)
    cross_entropy        -A new

Terms beside them are in `loop.terms`; whole rows with losses and terms in `loop.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from turncredit.core.errors import ConfigError, did_you_mean
from turncredit.core.losses import Settings
from turncredit.core.needs import Aggregation
from turncredit.core.types import Array

# The published mean adds this to its token count, so an empty batch gives 0 and not NaN.
MASK_EPSILON = 1e-8

# Past this exp() overflows; no clip window reaches anywhere near it.
_LOG_RATIO_LIMIT = 700.0


# ── policy losses of one row ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss of each token, its slope by the new log-prob, and what the clips did; same shapes.

    `clipped` marks tokens whose value the ratio's clip decides, `floored` those of the dual clip.
    """

    value: Array
    slope: Array
    clipped: NDArray[np.bool_]
    floored: NDArray[np.bool_]


def _plain(value: Array, slope: Array) -> TokenLoss:
    never = np.zeros(np.shape(value), bool)
    return TokenLoss(value, slope, never, never)


def _ratio(log_ratio: Array) -> Array:
    return np.exp(np.clip(log_ratio, -_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT))


def clipped_objective(ratio: Array, advantage: Array, settings: Settings) -> TokenLoss:
    """max(-A ratio, -A clip(ratio)) and its derivative by the log of the ratio."""
    low, high = settings["clip_low_threshold"], settings["clip_high_threshold"]
    plain, bounded = -advantage * ratio, -advantage * np.clip(ratio, low, high)
    loss, clipped = np.maximum(plain, bounded), bounded > plain
    # The clipped branch is flat: where it wins, the token has no gradient.
    slope = np.where(clipped, 0.0, plain)
    floored = np.zeros(np.shape(loss), bool)
    if dual := settings.get("dual_clip", 0.0):
        cap = -advantage * dual
        floored = (advantage < 0) & (loss > cap)
        loss, slope = np.where(floored, cap, loss), np.where(floored, 0.0, slope)
    return TokenLoss(loss, slope, clipped, floored)


def _ppo(new: Array, old: Array, advantage: Array, settings: Settings) -> TokenLoss:
    return clipped_objective(_ratio(new - old), advantage, settings)


def _importance_sampling(new: Array, old: Array, advantage: Array, settings: Settings) -> TokenLoss:
    value = -advantage * _ratio(new - old)
    return _plain(value, value)


def _cispo(new: Array, old: Array, advantage: Array, settings: Settings) -> TokenLoss:
    """No token loses its gradient: the clip bounds a weight, not the objective."""
    low, high = settings["clip_low_threshold"], settings["clip_high_threshold"]
    ratio = _ratio(new - old)
    slope = -np.clip(ratio, low, high) * advantage
    return TokenLoss(
        slope * new, slope, (ratio < low) | (ratio > high), np.zeros(np.shape(new), bool)
    )


def _gspo(new: Array, old: Array, advantage: Array, settings: Settings) -> TokenLoss:
    """One ratio for the row, so every token has the same slope: the mean over the row.

    With one advantage per row that is each token's own; advantages that differ within a row are
    averaged, and credit by turn is lost.
    """
    if not len(new):
        return _plain(np.zeros(0), np.zeros(0))
    ratio = np.repeat(_ratio((new - old).mean(keepdims=True)), len(new))
    loss = clipped_objective(ratio, advantage, settings)
    slope = np.full(len(new), loss.slope.mean())
    return TokenLoss(loss.value, slope, loss.clipped, loss.floored)


def _cross_entropy(new: Array, old: Array, advantage: Array, settings: Settings) -> TokenLoss:
    """The advantages are weights."""
    return _plain(-advantage * new, -advantage)


# name -> (new_N, old_N, advantage_N of one row's action tokens, settings) -> TokenLoss
POLICIES: Mapping[str, Callable[[Array, Array, Array, Settings], TokenLoss]] = {
    "ppo": _ppo,
    "importance_sampling": _importance_sampling,
    "cispo": _cispo,
    "gspo": _gspo,
    "cross_entropy": _cross_entropy,
}


# ── padded batches with an aggregation, as they are published ────────────────────────────────


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
        check_aggregation(self.aggregation)


def check_aggregation(name: str) -> None:
    """Refuse an aggregation that does not exist.

    Raises:
        ConfigError: with the nearest known name.
    """
    if name not in (known := get_args(Aggregation)):
        raise ConfigError(f'no aggregation "{name}".{did_you_mean(name, known)}')


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

    Args:
        new_DT: (D, T) log-probs under the weights being trained.
        old_DT: (D, T) log-probs under the sampling snapshot.
        advantage_DT: (D, T).
        mask_DT: (D, T), True on action tokens; all else is ignored, whatever it holds.
        config: clip bounds and aggregation.
    """
    mask_DT = np.asarray(mask_DT, bool)
    new, old, advantage = (np.where(mask_DT, x, 0.0) for x in (new_DT, old_DT, advantage_DT))
    settings = {
        "clip_low_threshold": config.clip_low,
        "clip_high_threshold": config.clip_high,
        "dual_clip": config.dual_clip or 0.0,
    }
    tokens = _ppo(new, old, advantage, settings)
    weight = token_weight(mask_DT, config.aggregation)
    count = mask_DT.sum() + MASK_EPSILON
    return PPOResult(
        loss=float((tokens.value * weight).sum()),
        grad_DT=tokens.slope * weight,
        clip_fraction=float((tokens.clipped & mask_DT).sum() / count),
        dual_clip_fraction=float((tokens.floored & mask_DT).sum() / count),
        approx_kl=float((old - new).sum() / count),
    )
