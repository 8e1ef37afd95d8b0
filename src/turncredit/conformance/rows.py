"""Parity with code whose unit is the turn *row*: upstream GRPO and AgentOPSD.

There every turn is a row of a padded batch, and a trajectory's return stands in each of its rows.
Numbers are float32, as they were. Differences from ours, all deliberate: statistics over rows,
sample deviation with epsilon 1e-6, a lone entry keeps its raw reward, the prior is the clamped
mean *return*, beliefs are clamped, and an invalid-action penalty can differ between rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turncredit.conformance.vectors import matrix

Inputs = Mapping[str, Any]
Outputs = Mapping[str, Any]
Rows = NDArray[np.float32]

_EPSILON = 1e-6


def advantage_R(
    score_R: Rows,
    group_ids: Sequence[str],
    trajectory_ids: Sequence[str],
    *,
    epsilon: float = _EPSILON,
    by_std: bool = True,
    over_rows: bool = True,
) -> Rows:
    """Group-relative advantage of each turn row, (R,).

    Args:
        score_R: (R,) return of each row.
        group_ids: group of each row.
        trajectory_ids: trajectory of each row.
        epsilon: added to the standard deviation.
        by_std: divide by it.
        over_rows: statistics over all rows of a group, else over the first row of each trajectory.
    """
    chosen: dict[str, list[np.float32]] = {}
    seen: set[tuple[str, str]] = set()
    for score, name, member in zip(score_R, group_ids, trajectory_ids, strict=True):
        if over_rows or (name, member) not in seen:
            chosen.setdefault(name, []).append(score)
        seen.add((name, member))
    out = np.empty_like(score_R)
    for i, (score, name) in enumerate(zip(score_R, group_ids, strict=True)):
        values = np.array(chosen[name], np.float32)
        mean, std = (values.mean(), values.std(ddof=1)) if len(values) > 1 else (0.0, 1.0)
        out[i] = (score - mean) / (std + np.float32(epsilon)) if by_std else score - mean
    return out


def grpo(inputs: Inputs) -> Outputs:
    """Outcome advantage of every row, spread over its response."""
    score_R = matrix(inputs["token_level_rewards"]).sum(axis=1).astype(np.float32)
    row_R = advantage_R(
        score_R,
        inputs["group_id"],
        inputs["traj_id"],
        epsilon=float(inputs.get("epsilon", _EPSILON)),
        by_std=bool(inputs["norm_adv_by_std"]),
        over_rows=bool(inputs["compute_mean_std_cross_steps"]),
    )
    return {"advantages": row_R[:, None] * matrix(inputs["response_mask"])}
