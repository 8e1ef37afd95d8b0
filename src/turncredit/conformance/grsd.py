"""Parity with published GRSD: a row is a turn, and rows without tokens count in its statistics.

Signals, gates and factors are the library's own; rows, their means and the published diagnostics
are put together here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turncredit.conformance.rows import Inputs, Outputs
from turncredit.conformance.vectors import matrix
from turncredit.core.types import Array
from turncredit.credit import grsd as library
from turncredit.credit.weights import mixed


@dataclass(frozen=True)
class Units:
    """What has a gate, in any order: U turn rows, or U tokens. Each (U,).

    Attributes:
        gap_U: mean gap of a row, or gap of a token, nats.
        advantage_U: outcome advantage of its row.
        group_U: group of its row.
        valid_U: the group has both outcomes and a hint.
    """

    gap_U: Array
    advantage_U: Array
    group_U: NDArray[np.str_]
    valid_U: NDArray[np.bool_]


def modulated(inputs: Inputs) -> Outputs:
    """Reshaped advantages and the published diagnostics, by turn or by token."""
    if "rewards" in inputs:
        return reflection(inputs)
    by_token = "token_norm" in inputs
    config = library.Config(
        mix=float(inputs["grsd_lambda"]),
        weight_bound=float(inputs["g_hat_max"]),
        dead_zone=float(inputs["eta"]),
        level="token" if by_token else "turn",
        token_norm=inputs.get("token_norm", "none"),
    )
    mask = matrix(inputs["response_mask"]) > 0
    units = _units(inputs, mask, by_token=by_token)
    signal_U = library.signal(units.gap_U, units.advantage_U)
    free = by_token and config.token_norm == "none"
    mean_U = np.ones(len(signal_U)) if free else _group_means(units, signal_U)
    scaled_U = signal_U / (mean_U if free else mean_U + float(inputs["epsilon"]))
    gate_U = np.where(units.valid_U, library.gate(scaled_U, 1.0, config), 0.0)
    value_U = units.advantage_U * mixed(1.0, 1 + gate_U, config.mix, config.floor)
    out = np.zeros(mask.shape)
    out[mask] = value_U if by_token else np.repeat(value_U, mask.sum(axis=1))
    rows_valid = np.asarray(inputs["valid_mask"], bool)
    return {
        "token_advantages": out,
        "metrics": _diagnostics(units, signal_U, mean_U, scaled_U, gate_U, config)
        | {"grsd/valid_group_ratio": float(rows_valid.mean())},
    }


def reflection(inputs: Inputs) -> Outputs:
    """Advantages of reflections, group by group."""
    group = np.array([str(name) for name in inputs["group_id"]])
    score, valid = np.array(inputs["rewards"], np.float64), np.array(inputs["valid"], bool)
    out = np.zeros(len(score))
    for name in np.unique(group):
        here = group == name
        out[here] = library.reflection_advantage(score[here], valid[here], float(inputs["epsilon"]))
    return {"advantages": out}


def _units(inputs: Inputs, mask: NDArray[np.bool_], *, by_token: bool) -> Units:
    gap = matrix(inputs["teacher_log_probs"]) - matrix(inputs["student_log_probs"])
    count_R = mask.sum(axis=1)
    first_R = mask.argmax(axis=1)
    advantage_R = matrix(inputs["seq_advantages"])[np.arange(len(mask)), first_R]
    group_R = np.array([str(name) for name in inputs["group_id"]])
    valid_R = np.array(inputs["valid_mask"], bool)
    if not by_token:
        gap_R = np.where(mask, gap, 0.0).sum(axis=1) / np.maximum(count_R, 1)
        return Units(gap_R, advantage_R, group_R, valid_R)
    row_U = np.repeat(np.arange(len(mask)), count_R)
    return Units(gap[mask], advantage_R[row_U], group_R[row_U], valid_R[row_U])


def _group_means(units: Units, signal_U: Array) -> Array:
    """Mean size of the valid signals of each unit's group, (U,); 0 where there is none."""
    mean_U = np.zeros(len(signal_U))
    for name in np.unique(units.group_U):
        here = units.group_U == name
        mean_U[here] = library.scale(signal_U[here & units.valid_U], epsilon=0.0)
    return mean_U


def _diagnostics(
    units: Units,
    signal_U: Array,
    mean_U: Array,
    scaled_U: Array,
    gate_U: Array,
    config: library.Config,
) -> dict[str, float]:
    valid_U, wide = units.valid_U, library.Config(dead_zone=config.dead_zone, weight_bound=1e30)
    loud_U = library.gate(scaled_U, 1.0, wide)

    def mean(values_U: Array) -> float:
        return float(values_U[valid_U].mean()) if valid_U.any() else 0.0

    aligned_U = np.sign(units.advantage_U) * units.gap_U
    factor_U = mixed(1.0, 1 + gate_U, config.mix, config.floor)
    return {
        "grsd/skill_gap_mean": float(units.gap_U.mean()),
        "grsd/skill_gap_abs_mean": float(np.abs(units.gap_U).mean()),
        "grsd/aligned_gap_mean": float(aligned_U.mean()),
        "grsd/exponential_signal_mean": mean(signal_U),
        "grsd/exponential_signal_abs_mean": mean(np.abs(signal_U)),
        "grsd/q_norm_mean": mean(scaled_U),
        "grsd/q_norm_scale": mean(mean_U),
        "grsd/g_mean": mean(loud_U),
        "grsd/g_hat_mean": mean(gate_U),
        "grsd/modulation_mean": mean(factor_U),
        "grsd/gate_amplify_ratio": mean((loud_U > config.dead_zone).astype(np.float64)),
        "grsd/gate_attenuate_ratio": mean((loud_U < -config.dead_zone).astype(np.float64)),
    }
