"""Parity with upstream GiGPO and OPID: an outcome over turn rows, anchors, and gaps added to it.

float32, statistics over rows, a lone entry's own rules: see `rows`. The formulas of returns and of
anchors are the library's.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from turncredit.conformance.rows import Inputs, Outputs, Rows
from turncredit.conformance.vectors import Unsupported, matrix
from turncredit.core.types import Array
from turncredit.credit import anchors, opid

_EPSILON = np.float32(1e-6)
_OPTIONS = frozenset(
    {
        "step_advantage_w",
        "episode_skill_teacher_advantage_w",
        "step_skill_teacher_advantage_w",
        "mode",
        "normalize_teacher_adv",
        "clip_teacher_adv",
        "enable_similarity",
        "similarity_thresh",
        "epsilon",
    }
)


def gigpo_rows(inputs: Inputs) -> Outputs:
    """Returns, anchors, and both advantages with their weighted sum."""
    return_R = discounted_R(inputs)
    label_R = anchor_labels(inputs)
    mask = matrix(inputs["response_mask"]).astype(np.float32)
    by_std, epsilon = _mode(inputs["mode"]), np.float32(inputs.get("epsilon", _EPSILON))
    episode = _outcome_R(inputs, by_std=by_std, epsilon=epsilon)[:, None] * mask
    step = centred_R(return_R, label_R, by_std=by_std, epsilon=epsilon)[:, None] * mask
    return {
        "step_discounted_returns": return_R,
        "step_group_label": label_R,
        "episode_advantages": episode,
        "step_advantages": step,
        "advantages": episode + np.float32(inputs["step_advantage_w"]) * step,
    }


def opid_rows(inputs: Inputs) -> Outputs:
    """The three components of OPID's advantage, and their sum."""
    options = inputs["options"]
    if unknown := sorted(set(options) - _OPTIONS):
        raise Unsupported(", ".join(unknown))
    mask = matrix(inputs["response_mask"]).astype(np.float32)
    by_std, epsilon = _mode(options["mode"]), np.float32(options.get("epsilon", _EPSILON))
    episode = _outcome_R(inputs, by_std=by_std, epsilon=epsilon)[:, None] * mask
    step, weight = np.zeros_like(episode), np.float32(options["step_advantage_w"])
    if weight:
        reward_R = np.array(inputs["step_rewards"], np.float32)
        label_R = anchor_labels({**options, **inputs})
        step = centred_R(reward_R, label_R, by_std=by_std, epsilon=epsilon)[:, None] * mask
    teacher = sum(
        np.float32(options[f"{look}_skill_teacher_advantage_w"]) * _gaps(inputs, look)
        for look in ("episode", "step")
    )
    return {
        "episode_advantages": episode,
        "step_advantages": step,
        "teacher_advantages": teacher,
        "advantages": episode + weight * step + teacher,
    }


def discounted_R(inputs: Inputs) -> Rows:
    """Discounted return of every row along its trajectory, in the order of the batch, (R,)."""
    reward_R = np.array(inputs["step_env_rewards"], np.float32)
    out_R = np.zeros_like(reward_R)
    members = list(zip(inputs["group_id"], inputs["traj_id"], strict=True))
    for member in dict.fromkeys(members):
        rows = [row for row, other in enumerate(members) if other == member]
        out_R[rows] = anchors.discounted(reward_R[rows].tolist(), float(inputs["gamma"]))
    return out_R


def anchor_labels(inputs: Inputs) -> list[int]:
    """Number of every row's anchor, by first appearance; anchors never span groups."""
    threshold = float(inputs["similarity_thresh"]) if inputs.get("enable_similarity") else 1.0
    found: dict[int, tuple[str, int]] = {}
    groups = inputs["group_id"]
    for group in dict.fromkeys(groups):
        rows = [row for row, other in enumerate(groups) if other == group]
        keys = [str(inputs["anchor_obs"][row]) for row in rows]
        for row, label in zip(rows, anchors.labels(keys, threshold), strict=True):
            found[row] = (group, label)
    order: dict[tuple[str, int], int] = {}
    return [order.setdefault(found[row], len(order)) for row in range(len(groups))]


def centred_R(
    value_R: Rows, ids: Sequence[Hashable], *, by_std: bool, epsilon: np.float32, lone: bool = True
) -> Rows:
    """Each value against those with its id, (R,).

    Args:
        value_R: float32 values.
        ids: whom each is compared with.
        by_std: divide by the sample deviation plus `epsilon`.
        epsilon: added to it.
        lone: a value that is alone is centred on itself (else on 0); its deviation counts as 1.
    """
    out_R = np.empty_like(value_R)
    for name in dict.fromkeys(ids):
        rows = [row for row, other in enumerate(ids) if other == name]
        values = value_R[rows]
        # Summed one by one: the rounding of the mean is all there is between equal values.
        mean, std = np.cumsum(values)[-1] / np.float32(len(rows)), np.float32(1)
        if len(rows) > 1:
            far = values.astype(np.float64) - np.float64(mean)
            std = np.float32(np.sqrt(far @ far / (len(rows) - 1)))
        elif not lone:
            mean = np.float32(0)
        out_R[rows] = (values - mean) / (std + epsilon) if by_std else values - mean
    return out_R


def _outcome_R(inputs: Inputs, *, by_std: bool, epsilon: np.float32) -> Rows:
    score_R = matrix(inputs["token_level_rewards"]).sum(axis=1).astype(np.float32)
    return centred_R(score_R, inputs["group_id"], by_std=by_std, epsilon=epsilon, lone=False)


def _mode(mode: str) -> bool:
    if mode not in ("mean_norm", "mean_std_norm"):
        raise Unsupported(f"mode {mode}")
    return mode == "mean_std_norm"


def _gaps(inputs: Inputs, look: str) -> Rows:
    """Gaps of one look over its rows, standardised and clipped as asked, (R, T)."""
    options: Mapping[str, Any] = inputs["options"]
    taught, acted = matrix(inputs[f"{look}_teacher_log_probs"]), matrix(inputs["old_log_probs"])
    seen_R = np.array(inputs[f"{look}_skill_mask"], np.bool_)
    valid = (matrix(inputs["response_mask"]) > 0) & seen_R[:, None]
    gap: Array = np.where(valid, taught - acted, 0.0)
    if options.get("normalize_teacher_adv"):
        centre, scale = opid.moments(gap[valid])
        gap[valid] = (gap[valid] - centre) / scale
    if (bound := options.get("clip_teacher_adv")) is not None:
        gap = np.clip(gap, -float(bound), float(bound))
    return gap.astype(np.float32)
