"""AgentOPSD: the outcome sets sign and size, the hinted self moves each turn by a bounded amount.

Per turn k of a trajectory with group-relative advantage A (numbers: the article's defaults):

    evidence    e_k = sum over the turn's action tokens of (teacher - student) log-prob, nats
    cumulative  c_k = gamma c_{k-1} + e_k,  c_0 = 0
    belief      B_k = sigmoid(logit(B_0) + c_k),  B_0 = success rate of the group, clamped
    credit      q_k = sign(A) (B_k - B_{k-1})
    z           z_k = (q_k - mean q) / (std q + epsilon), over the turns of the trajectory
    weight      w_k = clip(1 + bound z_k, 1 - bound, 1 + bound)
    advantage   A_k = A ((1 - lambda) + lambda w_k)

The sign of A is never changed. Decay acts on the evidence, not on logit(B_0), so a turn without
evidence still moves the belief back towards B_0. Only the success indicator feeds B_0: a reward
on another scale would pin the belief at its clamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.settings import setting
from turncredit.core.types import (
    Array,
    Credit,
    Group,
    ScoredTrajectory,
    Trajectory,
    frozen_array,
)
from turncredit.credit.grpo import advantage_G, check_baseline, over_tokens

NEEDS_TEACHER = True


@dataclass(frozen=True)
class Config:
    """Settings of AgentOPSD; the defaults are the article's."""

    gamma: float = setting(0.95, "decay of earlier evidence, per turn")
    reshape_lambda: float = setting(0.5, "share of the turn weight in the advantage; 0 is GRPO")
    weight_bound: float = setting(0.2, "turn weights stay within 1 +/- this bound")
    epsilon: float = setting(1e-4, "added to standard deviations; also clamps the prior")
    std: Literal["population", "sample", "none"] = setting(
        "population", "standard deviation of the group baseline"
    )

    def __post_init__(self) -> None:
        check_baseline(self.std, self.epsilon)
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma must lie in [0, 1] (1: no decay); got {self.gamma}")
        if not 0 <= self.reshape_lambda <= 1:
            raise ConfigError(
                f"reshape_lambda must lie in [0, 1] (0 is GRPO); got {self.reshape_lambda}"
            )
        if not 0 <= self.weight_bound < 1:
            raise ConfigError(
                f"weight_bound must lie in [0, 1), or a turn could change sign; "
                f"got {self.weight_bound}"
            )


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """Every intermediate of the recursion, each (K,) in turn order."""

    evidence: Array
    cumulative: Array
    belief_before: Array
    belief_after: Array
    delta_b: Array
    credit: Array
    z: Array
    weight: Array
    advantage: Array


FIGURES = tuple(f.name for f in fields(TurnFigures))


def prior(group: Group, epsilon: float) -> float:
    """B_0: the group's success rate, kept off 0 and 1 by `epsilon`."""
    return clamped(float(group.success_G.mean()), epsilon)


def clamped(rate: float, epsilon: float) -> float:
    """`rate` inside [epsilon, 1 - epsilon]."""
    return min(max(rate, epsilon), 1 - epsilon)


def sigmoid(x: Array) -> Array:
    """Logistic function that neither overflows nor warns at |x| of hundreds."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def decayed(evidence_K: Array, gamma: float) -> Array:
    """c_k = gamma c_{k-1} + e_k, (K,) nats."""
    total, out = 0.0, []
    for evidence in evidence_K.tolist():
        total = gamma * total + evidence
        out.append(total)
    return np.array(out, np.float64)


def reshape_turns(
    evidence_K: Array, advantage: float, initial_belief: float, config: Config
) -> TurnFigures:
    """Spread one trajectory's advantage over its K turns.

    Args:
        evidence_K: (K,) nats; K may be 0.
        advantage: the trajectory's group-relative advantage.
        initial_belief: B_0, clamped here by `config.epsilon`.
        config: gamma, lambda, bound and epsilon are used.
    """
    evidence_K = np.asarray(evidence_K, np.float64)
    start = clamped(initial_belief, config.epsilon)
    cumulative_K = decayed(evidence_K, config.gamma)
    belief_K = np.concatenate([[start], sigmoid(np.log(start / (1 - start)) + cumulative_K)])
    delta_K = np.diff(belief_K)
    credit_K = np.sign(advantage) * delta_K
    if len(credit_K):
        z_K = (credit_K - credit_K.mean()) / (credit_K.std() + config.epsilon)
    else:
        z_K = np.zeros(0)
    bound, share = config.weight_bound, config.reshape_lambda
    weight_K = np.clip(1 + bound * z_K, 1 - bound, 1 + bound)
    return TurnFigures(
        evidence=evidence_K,
        cumulative=cumulative_K,
        belief_before=belief_K[:-1],
        belief_after=belief_K[1:],
        delta_b=delta_K,
        credit=credit_K,
        z=z_K,
        weight=weight_K,
        advantage=advantage * ((1 - share) + share * weight_K),
    )


def evidence_of(trajectory: Trajectory) -> Array:
    """Sum of the gaps of each turn, (K,) nats; 0 for a turn without tokens.

    Raises:
        ConfigError: the trajectory has not been scored by a teacher.
    """
    if not isinstance(trajectory, ScoredTrajectory):
        raise ConfigError(
            f"trajectory {trajectory.name} has no teacher scores: run the teacher "
            "(loop.teacher.score, with a hint) before a method that needs it, or use grpo"
        )
    return turn_sums(trajectory.gap_K)


def turn_sums(gap_K: tuple[Array, ...]) -> Array:
    """Sum of each turn's values, (K,)."""
    sums_K = np.zeros(len(gap_K))
    stops = np.cumsum([len(gap_N) for gap_N in gap_K], dtype=np.int64)
    filled = np.flatnonzero(np.diff(stops, prepend=0))
    if len(filled):  # one pass over all tokens; empty turns have no segment and stay 0
        starts = np.concatenate([[0], stops])[filled]
        sums_K[filled] = np.add.reduceat(np.concatenate(gap_K), starts)
    return sums_K


def credit(group: Group, config: Config) -> Credit:
    """Turn-level credit of a scored group. Every intermediate is kept in `Credit.figures`.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    if not group.trajectories:
        return Credit(())
    outcome_G = advantage_G(group.reward_G, std=config.std, epsilon=config.epsilon)
    start = prior(group, config.epsilon)
    turns_G = [
        reshape_turns(evidence_of(trajectory), float(advantage), start, config)
        for trajectory, advantage in zip(group.trajectories, outcome_G, strict=True)
    ]
    pairs = zip(group.trajectories, turns_G, strict=True)
    return Credit(
        tuple(over_tokens(trajectory, turns.advantage) for trajectory, turns in pairs),
        figures={name: tuple(frozen_array(getattr(t, name)) for t in turns_G) for name in FIGURES},
        metrics=_metrics(turns_G, start),
    )


def _metrics(turns_G: list[TurnFigures], start: float) -> Mapping[str, float]:
    evidence, delta, weight = (
        np.concatenate([getattr(turns, name) for turns in turns_G])
        for name in ("evidence", "delta_b", "weight")
    )
    if not len(weight):
        return {"initial_belief": start}
    return {
        "initial_belief": start,
        "evidence_mean": float(evidence.mean()),
        "evidence_abs_mean": float(np.abs(evidence).mean()),
        "delta_b_mean": float(delta.mean()),
        "delta_b_abs_mean": float(np.abs(delta).mean()),
        "weight_mean": float(weight.mean()),
        "weight_std": float(weight.std()),
        "weight_min": float(weight.min()),
        "weight_max": float(weight.max()),
    }
