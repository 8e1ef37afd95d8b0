"""Divergences over the vocabulary as they are published: OPSD's JSD, UCOB's top-k term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turncredit.conformance.vectors import Unsupported, matrix
from turncredit.core.types import Array
from turncredit.loop.loss import token_weight
from turncredit.loop.terms import divergence, log_softmax, sigmoid

Inputs = Mapping[str, Any]
Outputs = Mapping[str, Any]

_IGNORED = -100  # label of a position that is not trained
_RATIO_LIMIT = 5.0  # nats; UCOB's optional clamp of the log-ratio


def _cube(values: Sequence[Any]) -> Array:
    return np.array([matrix(rows) for rows in values], np.float64)


def opsd_jsd(inputs: Inputs) -> Outputs:
    """Generalised JSD of two logits (D, T, V), over the vocabulary or the teacher's top k."""
    student, teacher = (_cube(inputs[n]) / float(inputs["temperature"]) for n in (
        "student_logits", "teacher_logits"))  # fmt: skip
    on = _trained(inputs.get("labels"), student.shape[:2])
    kept = int(inputs.get("top_k") or student.shape[-1])
    ids = np.argsort(-teacher, axis=-1, kind="stable")[..., :kept]
    value, by_kept = divergence(
        np.take_along_axis(student, ids, -1),
        np.take_along_axis(teacher, ids, -1),
        float(inputs["beta"]),
    )
    slope = np.zeros_like(student)
    np.put_along_axis(slope, ids, by_kept / float(inputs["temperature"]), -1)
    weight = on / _divisor(inputs, on, kept)
    return {
        "loss": float((weight * value).sum()),
        "grad_student_logits": weight[..., None] * slope,
    }


def _trained(labels: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    return np.ones(shape, bool) if labels is None else np.array(labels) != _IGNORED


def _divisor(inputs: Inputs, on: NDArray[np.bool_], kept: int) -> float:
    reduction = inputs.get("reduction", "batchmean")
    if reduction == "batchmean":
        return max(float(len(on) if inputs.get("labels") is None else on.sum()), 1.0)
    if reduction == "mean":  # over tokens and vocabulary entries alike
        return max(float(on.sum() * kept), 1.0)
    if reduction == "sum":
        return 1.0
    raise Unsupported(f"no reduction {reduction!r}")


def ucob(inputs: Inputs) -> Outputs:
    """KL over the reference's likeliest tokens, gated by the sampled token's gap and weighted."""
    if "target_logits_k" not in inputs:
        raise Unsupported("only the top-k loss of UCOB is known")
    mask = matrix(inputs["loss_mask"])
    value, by_logits, by_sum = _top_k(inputs)
    gate = _gate(inputs, mask)
    corrected = _corrected(inputs, mask)
    scale = np.ones_like(mask) if gate is None else gate
    weight = _spread(inputs.get("loss_weight"), mask)
    factor = scale * corrected * weight
    share = token_weight(mask > 0, inputs["loss_agg_mode"])
    loss, count = float((share * factor * value).sum()), max(mask.sum(), 1.0)
    return {
        "loss": loss,
        "grad_target_logits_k": (share * factor)[..., None] * by_logits,
        "grad_target_logsumexp": [] if by_sum is None else share * factor * by_sum,
        "metrics": {
            "sdar/topk_loss": loss,
            "sdar/topk_active_ratio": (corrected * (weight > 0) * mask).sum() / count,
            "sdar/topk_gate_mean": 1.0 if gate is None else (gate * mask).sum() / count,
            "sdar/topk_gate_active_ratio": (
                1.0 if gate is None else ((gate > 0.5) * mask).sum() / count
            ),
            **_by_direction(inputs, mask, factor * value),
        },
    }


def _top_k(inputs: Inputs) -> tuple[Array, Array, Array | None]:
    """Value (D, T), and its slopes by the target's logits (D, T, k) and their log-sum."""
    target, reference = _cube(inputs["target_logits_k"]), _cube(inputs["reference_logits_k"])
    renormalised = bool(inputs.get("norm_to_one", True))
    if renormalised:
        log_t, log_r = log_softmax(target), log_softmax(reference)
    else:
        log_t = target - matrix(inputs["target_logsumexp"])[..., None]
        log_r = reference - matrix(inputs["reference_logsumexp"])[..., None]
    p, ratio = np.exp(log_r), log_r - log_t
    flat = np.zeros(ratio.shape, bool)
    if inputs.get("clip_log_ratio"):
        flat = np.abs(ratio) > _RATIO_LIMIT
        ratio = np.clip(ratio, -_RATIO_LIMIT, _RATIO_LIMIT)
    by_log_t = np.where(flat, 0.0, -p)
    total = by_log_t.sum(axis=-1)
    if not renormalised:
        return (p * ratio).sum(axis=-1), by_log_t, -total
    return (p * ratio).sum(axis=-1), by_log_t - np.exp(log_t) * total[..., None], None


def _gate(inputs: Inputs, mask: Array) -> Array | None:
    names = ("target_log_probs", "reference_log_probs")
    if not inputs.get("gate_enable", True) or any(inputs.get(name) is None for name in names):
        return None
    target, reference = (matrix(inputs[name]) for name in names)
    sign = _spread(inputs.get("gate_delta_sign"), mask)
    return sigmoid(float(inputs["gate_beta"]) * (reference - target) * sign)


def _corrected(inputs: Inputs, mask: Array) -> Array:
    """1 where a row learns from the opposite view; other directions have no top-k loss."""
    direction = inputs.get("direction_ids")
    if direction is None:
        return np.ones_like(mask)
    return np.isin(_spread(direction, mask), (1, 2)).astype(np.float64)


def _by_direction(inputs: Inputs, mask: Array, value: Array) -> Mapping[str, float]:
    if (direction := inputs.get("direction_ids")) is None:
        return {}
    found = {}
    for number, name in ((1, "no_skill_from_skill"), (2, "skill_from_no_skill")):
        on = (mask > 0) & (_spread(direction, mask) == number)
        share = token_weight(on, inputs["loss_agg_mode"])
        found[f"sdar/topk_loss_{name}"] = float((share * value).sum())
    return found


def _spread(values: Any, mask: Array) -> Array:
    """Numbers per row or per token, or none at all (1), as (D, T)."""
    if values is None:
        return np.ones_like(mask)
    array = np.array(values, np.float64)
    return np.broadcast_to(array[:, None] if array.ndim == 1 else array, mask.shape)
