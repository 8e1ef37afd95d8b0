"""Policy losses besides PPO as they are published: per padded row, or per ragged sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turncredit.conformance.vectors import matrix
from turncredit.core.losses import Settings
from turncredit.loop.loss import MASK_EPSILON, POLICIES, clipped_objective, token_weight

Inputs = Mapping[str, Any]
Outputs = Mapping[str, Any]

# The published log-ratio of a row is clamped here, and does not move beyond.
_LOG_LIMIT = 10.0


def _bounds(inputs: Inputs) -> Settings:
    return {
        "clip_low_threshold": float(inputs["clip_low"]),
        "clip_high_threshold": float(inputs["clip_high"]),
    }


def gspo(inputs: Inputs) -> Outputs:
    """GSPO's token form on padded rows: each token keeps its own advantage under the row's ratio.

    Same value as the row form; same gradient where a row has one advantage, as it has in GSPO.
    Each row counts the same, whatever it holds.
    """
    new, old, advantage, mask = (
        matrix(inputs[name])
        for name in ("log_probs", "old_log_probs", "advantages", "response_mask")
    )
    on = mask > 0
    log_ratio = ((new - old) * on).sum(axis=1) / np.maximum(on.sum(axis=1), 1)
    ratio = np.exp(np.minimum(log_ratio, _LOG_LIMIT))[:, None] * np.ones_like(new)
    tokens = clipped_objective(ratio, advantage, _bounds(inputs))
    slope = np.where((log_ratio <= _LOG_LIMIT)[:, None], tokens.slope, 0.0)
    weight, count = token_weight(on, "seq-mean-token-mean"), on.sum() + MASK_EPSILON
    return {
        "loss": float((weight * tokens.value).sum()),
        "clip_fraction": (tokens.clipped & on).sum() / count,
        "approx_kl": ((old - new) * on).sum() / count,
        "grad_log_probs": weight * slope,
    }


def gspo_sequences(inputs: Inputs) -> Outputs:
    """GSPO over whole sequences, divided by a number that counts those left out as well."""
    bounds = _bounds(inputs)
    rows = list(
        zip(*(inputs[n] for n in ("logprobs", "sampling_logprobs", "advantages")), strict=True)
    )
    shared = float(inputs.get("normalization_sequences") or len(rows))
    losses, ratios = [], []
    for new, old, advantage in rows:
        new_N, old_N = np.array(new, np.float64), np.array(old, np.float64)
        weight_N = np.full(len(new_N), advantage / max(len(new_N), 1) / shared)
        losses.append(POLICIES["gspo"](new_N, old_N, weight_N, bounds))
        ratios.append(float(np.exp((new_N - old_N).mean())))
    loss = sum(float(row.value.sum()) for row in losses)
    trained = sum(len(row.value) for row in losses)
    tokens = float(inputs.get("normalization_tokens") or trained)
    clipped = [bool(row.clipped.any()) for row in losses]
    clipped_tokens = sum(int(row.clipped.sum()) for row in losses)
    return {
        "loss": loss,
        "grads": [row.slope for row in losses],
        "metrics": {
            "gspo/loss": loss,
            "gspo/seq_ratio_mean": float(np.mean(ratios)),
            "gspo/sequence_clip_fraction": sum(clipped) / shared,
            "gspo/token_clip_fraction": clipped_tokens / tokens,
            "gspo/train_sequences": len(rows),
            "gspo/normalization_sequences": shared,
            "gspo/active_sequence_fraction": len(rows) / shared,
            "gspo/train_tokens": trained,
            "gspo/normalization_tokens": tokens,
            "gspo/active_token_fraction": trained / tokens,
        },
    }


def dapo(inputs: Inputs) -> Outputs:
    """The clipped loss over ragged rows, each token or each row counting the same."""
    bounds = _bounds(inputs)
    low, high = bounds["clip_low_threshold"], bounds["clip_high_threshold"]
    masks = [np.array(row, bool) for row in inputs["completion_mask"]]
    total, rows = sum(int(mask.sum()) for mask in masks), len(masks)
    grads, parts = [], []
    names = ("logprobs", "old_logprobs", "advantages")
    for mask, *arrays in zip(masks, *(inputs[name] for name in names), strict=True):
        new, old, advantage = (np.array(values, np.float64)[mask] for values in arrays)
        share = 1 / total if inputs["reduction"] == "token" else 1 / rows / max(len(new), 1)
        loss = POLICIES["ppo"](new, old, advantage, bounds)
        grad = np.zeros(len(mask))
        grad[mask] = share * loss.slope
        grads.append(grad)
        parts.append((share * loss.value, np.exp(new - old), advantage, loss.clipped))
    value, ratio, advantage, clipped = (np.concatenate(part) for part in zip(*parts, strict=True))
    metrics = {
        "ppo/loss": float(value.sum()),
        "ppo/ratio_mean": ratio.mean(),
        "ppo/clip_fraction": clipped.mean(),
        "ppo/lower_clip_fraction": ((ratio < low) & (advantage < 0)).mean(),
        "ppo/upper_clip_fraction": ((ratio > high) & (advantage > 0)).mean(),
        "ppo/train_tokens": total,
        "ppo/gradient_active_tokens": int(((advantage != 0) & ~clipped).sum()),
        "ppo/sequences": rows,
        "ppo/clip_low": low,
        "ppo/clip_high": high,
    }
    return {"loss": metrics["ppo/loss"], "grads": grads, "metrics": metrics}
