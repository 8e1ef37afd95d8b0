"""Distillation and penalty terms of the sampled token, on padded batches with an aggregation.

Values and slopes are those of `loop.terms`. Here lives what only the published code has: the
derivative *through* Skill-SD's clamps, OPID's importance form, the absolute KL penalty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turncredit.conformance import schedules
from turncredit.conformance.vectors import matrix
from turncredit.core.losses import LOSS_TERMS, Settings
from turncredit.core.types import Array
from turncredit.loop.loss import MASK_EPSILON, token_weight
from turncredit.loop.terms import K3_LIMIT, RHO_LIMIT, TERMS, TokenTerm, kl

Inputs = Mapping[str, Any]
Outputs = Mapping[str, Any]


def _at(name: str, new: Array, old: Array, against: Array, settings: Settings) -> tuple[Any, Any]:
    term = TERMS[name]
    assert isinstance(term, TokenTerm)
    return term.at(new, old, against, {**LOSS_TERMS[name], **settings})


def sdar(inputs: Inputs) -> Outputs:
    """The gated gap: loss, gradient and gate. The slope of a token is minus its gate."""
    new, teacher, mask = (
        matrix(inputs[name]) for name in ("student_log_probs", "teacher_log_probs", "response_mask")
    )
    settings = {"sdar_beta": float(inputs["gate_beta"])}
    value, slope = _at("sdar", new, new, teacher, settings)
    gate, weight = -slope, token_weight(mask > 0, inputs["loss_agg_mode"])
    loss, count = float((weight * value).sum()), max(mask.sum(), 1.0)
    return {
        "loss": loss,
        "grad_student_log_probs": weight * slope,
        "gate": gate,
        "metrics": {
            "sdar/gate_mean": (gate * mask).sum() / count,
            "sdar/gate_active_ratio": ((gate > 0.5) * mask).sum() / count,
            "sdar/teacher_gap_mean": ((teacher - new) * mask).sum() / count,
            "sdar/loss": loss,
        },
    }


def skillsd(inputs: Inputs) -> Outputs:
    """The weighted k3 and its published derivative; or, in one vector, the schedule beside it."""
    if "steps" in inputs:
        return schedules.linear(inputs)
    new, old, teacher, mask = (
        matrix(inputs[name])
        for name in ("student_log_probs", "old_log_probs", "teacher_log_probs", "response_mask")
    )
    value, slope = _at("skillsd", new, old, teacher, {})
    weight = token_weight(mask > 0, inputs["loss_agg_mode"])
    return {
        "loss": float((weight * value).sum()),
        "grad_student_log_probs": weight * _through_clamps(new, old, teacher, value, slope),
    }


def _through_clamps(new: Array, old: Array, teacher: Array, value: Array, slope: Array) -> Array:
    """The derivative automatic differentiation gives: a clamped factor does not move."""
    rho = np.exp(np.minimum(new - old, RHO_LIMIT))
    by_rho = np.where(new - old <= RHO_LIMIT, value, 0.0)
    below = teacher - new
    by_k3 = rho * (1 - np.where(below <= K3_LIMIT, np.exp(np.minimum(below, K3_LIMIT)), 0.0))
    unclamped = (new - old <= RHO_LIMIT) & (below <= K3_LIMIT)
    return np.where(unclamped, slope, by_rho + by_k3)


def kl_penalty(inputs: Inputs) -> Outputs:
    """All penalties of every entry; nothing is aggregated."""
    above = matrix(inputs["log_probs"]) - matrix(inputs["ref_log_probs"])
    k1, k2, k3 = (kl(above, order)[0] for order in (1, 2, 3))
    return {"k1": k1, "abs": np.abs(above), "k2": k2, "k3": k3}


def opid(inputs: Inputs) -> Outputs:
    """The loss form of OPID, on the turns that have a skill."""
    new, old, teacher, mask = (
        matrix(inputs[name])
        for name in ("log_probs", "old_log_probs", "teacher_log_probs", "response_mask")
    )
    on = (mask > 0) & (np.array(inputs["step_mask"], np.float64) > 0)[:, None]
    clip = float(inputs["clip"] or 0.0)
    weight = token_weight(on, inputs["loss_agg_mode"])
    if inputs["weight_mode"] == "importance":
        ratio = np.exp(new - old)
        pull = (teacher - old) * ratio
        flat = np.abs(pull) > (clip or np.inf)
        pull = np.clip(pull, -clip, clip) if clip else pull
        value, slope = -pull, np.where(flat, 0.0, -pull)
        seen = (_mean(np.abs(new - old), on), _mean(ratio, on), np.where(on, ratio, 0.0).max())
    else:
        value, slope = _at("opid", new, old, teacher, {"opid_clip": clip})
        pull, seen = -slope, (0.0, 0.0, 0.0)
    return {
        "loss": float((weight * value).sum()),
        "grad_log_probs": weight * slope,
        "metrics": [on.mean(), _mean(np.abs(pull), on), *seen],
    }


def _mean(values: Array, on: NDArray[np.bool_]) -> float:
    return float((values * on).sum() / (on.sum() + MASK_EPSILON))
