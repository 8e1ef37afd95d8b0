"""Parity with two helpers of upstream OPID: which turns are critical, and who reads which skill.

Critical by statistics: turns are grouped by anchor; anchors of enough turns whose returns vary at
least as much as the given quantile of the anchors' variances are eligible; of their turns those
below the mean (or all) are candidates, ranked by variance times distance from the mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from turncredit.conformance.rows import Inputs, Outputs
from turncredit.conformance.stepwise import anchor_labels, opid_rows
from turncredit.conformance.vectors import Unsupported

_TIE = np.float32(1e-6)  # a turn at the mean of a varied anchor still ranks by variance
_ROUTING = ("step_skill", "episode_skill_enabled", "step_skill_enabled")


def opid(inputs: Inputs) -> Outputs:
    """Vectors that carry OPID's plain name: its advantage, or its routing table."""
    return opid_rows(inputs) if "options" in inputs else routing(inputs)


def by_statistics(inputs: Inputs) -> Outputs:
    """The critical turns of each trajectory, and what was counted on the way."""
    reward_R = np.array(inputs["step_rewards"], np.float32)
    most = int(inputs.get("topk_per_traj", 1))
    if most <= 0 or not len(reward_R):
        counts = dict.fromkeys(("num_groups", "eligible_groups", "selected_steps"), 0.0)
        return {"critical_mask": [False] * len(reward_R), "metrics": counts}
    label_R = np.array(anchor_labels(inputs))
    values_A = [reward_R[label_R == a] for a in range(label_R.max() + 1)]
    variance_A = np.array([np.var(values) for values in values_A], np.float32)
    big_A = np.array([len(v) >= int(inputs.get("min_group_size", 2)) for v in values_A])
    share = min(max(float(inputs.get("var_quantile", 0.75)), 0.0), 1.0)
    cutoff = float(np.quantile(variance_A[big_A], share)) if big_A.any() else np.inf
    eligible_A = big_A & (variance_A >= cutoff) & (variance_A > 0)

    below_R = np.array([v.mean() for v in values_A], np.float32)[label_R] - reward_R
    only_below = bool(inputs.get("below_group_mean_only", True))
    distance_R = np.maximum(below_R, 0) if only_below else np.abs(below_R)
    candidate_R = eligible_A[label_R] & ((distance_R > 0) | (not only_below))
    score_R = variance_A[label_R] * (distance_R + _TIE)
    chosen_R = np.zeros(len(reward_R), bool)
    for member in dict.fromkeys(inputs["traj_id"]):
        rows = [row for row, other in enumerate(inputs["traj_id"]) if other == member]
        ranked = sorted((r for r in rows if candidate_R[r]), key=lambda r: (-score_R[r], -r))
        chosen_R[ranked[:most]] = True
    return {
        "critical_mask": chosen_R.tolist(),
        "metrics": {
            "num_groups": float(len(values_A)),
            "eligible_groups": float(eligible_A.sum()),
            "selected_steps": float(chosen_R.sum()),
            "variance_cutoff": cutoff if np.isfinite(cutoff) else 0.0,
        },
    }


def readers(case: Mapping[str, object]) -> tuple[bool, bool]:
    """Whether a turn is read with the episode's skill, and whether with its own.

    A turn with a skill of its own is read with that alone, unless the mode is "additive".
    """
    mode = case.get("mode", "step_priority")
    if mode not in ("step_priority", "additive"):
        raise Unsupported(f"mode {mode}")
    own = bool(str(case["step_skill"]).strip()) and bool(case["step_skill_enabled"])
    return bool(case["episode_skill_enabled"]) and (mode == "additive" or not own), own


def routing(inputs: Inputs) -> Outputs:
    """A table of cases, each with the two readings it gives: (episode, step)."""
    for cases in inputs.values():
        if isinstance(cases, list) and all(
            isinstance(case, Mapping) and all(key in case for key in _ROUTING) for case in cases
        ):
            read = [list(readers(case)) for case in cases]
            return dict.fromkeys(("results", "sources", "selected", "outputs"), read)
    raise Unsupported("a routing table of another form")
