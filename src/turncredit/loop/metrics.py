"""What one update looked like, in numbers. Names follow the article's dashboards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from turncredit.core.types import Credit, Group, StopReason, Trajectory


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """`reward/*`, `trajectory/*` and `tokens/*` of the student's trajectories."""
    played = [t for group in groups for t in group.trajectories]
    faults = sum(len(group.faults) for group in groups)
    metrics: dict[str, float] = {
        "trajectory/count": len(played),
        "trajectory/env_errors": faults,
        "reward/mixed_groups": sum(bool(np.ptp(g.reward_G)) for g in groups if g.trajectories),
        "reward/groups": len(groups),
    }
    if not played:
        return metrics
    metrics |= {
        "reward/mean": _mean([t.reward for t in played]),
        "reward/success_rate": _mean([t.success for t in played]),
        "trajectory/turns_mean": _mean([len(t.turns) for t in played]),
        "trajectory/invalid_format_mean": _mean([_count_format(t) for t in played]),
        "trajectory/inadmissible_mean": _mean([_count_inadmissible(t) for t in played]),
        "trajectory/truncated_rate": _mean([t.stop.truncated for t in played]),
        "tokens/trajectory_mean": _mean([len(t.tokens) for t in played]),
        "tokens/action_mean": _mean([_action_tokens(t) for t in played]),
        "tokens/action": sum(_action_tokens(t) for t in played),
        "tokens/context": sum(len(t.tokens) - _action_tokens(t) for t in played),
    }
    for reason in StopReason:
        if reason is not StopReason.ENV_ERROR:
            metrics[f"trajectory/stop/{reason}"] = _mean([t.stop is reason for t in played])
    return metrics


def credit_metrics(credits: Sequence[Credit]) -> dict[str, float]:
    """`advantage/*`, and the method's own figures averaged over groups with a signal (`opsd/*`).

    Names ending in `_min` and `_max` keep the extreme instead of the mean.
    """
    live = [credit for credit in credits if credit.has_signal]
    flat = [a for credit in live for turns in credit.advantage for a in turns]
    values = np.concatenate(flat) if flat else np.zeros(0)
    metrics: dict[str, float] = {
        "advantage/groups_with_signal": len(live),
        "advantage/degenerate_groups": len(credits) - len(live),
        "advantage/abs_mean": float(np.abs(values).mean()) if values.size else 0.0,
    }
    for name in sorted({name for credit in live for name in credit.metrics}):
        given = [credit.metrics[name] for credit in live if name in credit.metrics]
        fold = {"_min": min, "_max": max}.get(name[-4:], _mean)
        metrics[f"opsd/{name}"] = float(fold(given))
    return metrics


def prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """`metrics` with `prefix/` before every name."""
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _count_format(t: Trajectory) -> int:
    return sum(turn.action is None for turn in t.turns)


def _count_inadmissible(t: Trajectory) -> int:
    return sum(turn.action is not None and not turn.admissible for turn in t.turns)


def _action_tokens(t: Trajectory) -> int:
    return sum(len(turn.logprob_N) for turn in t.turns)
