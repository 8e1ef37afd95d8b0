"""Vectors that the library's own functions must reproduce: the article's credit, and PPO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turncredit.conformance.vectors import matrix
from turncredit.core.tokens import to_datum
from turncredit.core.types import (
    Group,
    ScoredTrajectory,
    StopReason,
    Task,
    Turn,
)
from turncredit.credit import agentopsd, grpo
from turncredit.loop.loss import PPOConfig, ppo

Inputs = Mapping[str, Any]
Outputs = Mapping[str, Any]

_TASK = Task(id="vector", env="vector", split="", task_type="", digest="")
_TURN_FIELDS = {
    "evidence": "evidence",
    "cumulative_evidence": "cumulative",
    "belief_before": "belief_before",
    "belief_after": "belief_after",
    "delta_belief": "delta_b",
    "outcome_credit": "credit",
    "normalized_credit": "z",
    "weight": "weight",
    "advantage": "advantage",
}


def grpo_with_std(inputs: Inputs) -> Outputs:
    """Population standard deviation plus epsilon; the prior is the mean, clamped only in use."""
    reward_G = np.array(inputs["rewards"], np.float64)
    epsilon = float(inputs.get("epsilon", 1e-4))
    return {
        "advantages": grpo.advantage_G(reward_G, epsilon=epsilon),
        "initial_belief": float(reward_G.mean()),
        "degenerate_groups": int(np.ptp(reward_G) == 0),
    }


def grpo_centred(inputs: Inputs) -> Outputs:
    """Reward minus the group mean."""
    advantage_G = grpo.advantage_G(np.array(inputs["rewards"], np.float64), std="none")
    return {"advantages": advantage_G, "degenerate_groups": int(not advantage_G.any())}


def turns(inputs: Inputs) -> Outputs:
    """One trajectory's recursion, every intermediate."""
    config = agentopsd.Config(**inputs["config"])
    evidence_K = np.array(inputs["evidences"], np.float64)
    figures = agentopsd.reshape_turns(
        evidence_K, float(inputs["sequence_advantage"]), float(inputs["initial_belief"]), config
    )
    rows = [
        {"turn_index": k + 1}
        | {theirs: getattr(figures, ours)[k] for theirs, ours in _TURN_FIELDS.items()}
        for k in range(len(evidence_K))
    ]
    start = agentopsd.clamped(float(inputs["initial_belief"]), config.epsilon)
    return {"initial_belief": start, "turns": rows}


def scored_group(reward_G: Sequence[float], evidence_GK: Sequence[Sequence[float]]) -> Group:
    """A group whose turns have one token each, with the given evidence as its gap."""
    members = tuple(
        _trajectory(i, float(reward), [float(e) for e in evidence_K])
        for i, (reward, evidence_K) in enumerate(zip(reward_G, evidence_GK, strict=True))
    )
    return Group(_TASK, members)


def _trajectory(member: int, reward: float, evidence_K: Sequence[float]) -> ScoredTrajectory:
    count = len(evidence_K)
    return ScoredTrajectory(
        task=_TASK,
        member=member,
        seed=0,
        snapshot_id="vector",
        tokens=np.zeros(1 + 2 * count, np.int64),
        prompt_length=1,
        # A student log-prob of 0 makes the gap equal to the evidence without rounding.
        turns=tuple(Turn(start=1 + 2 * k, logprob_N=np.zeros(1)) for k in range(count)),
        reward=reward,
        stop=StopReason.SUCCESS if reward > 0 else StopReason.FAILED,
        teacher_K=tuple(np.array([e]) for e in evidence_K),
        hint_hash="",
        teacher_snapshot_id="vector",
    )


def group(inputs: Inputs) -> Outputs:
    """A whole group through the public `credit` function."""
    config = agentopsd.Config(**inputs["config"])
    members = scored_group(inputs["rewards"], inputs["turn_evidences"])
    credit = agentopsd.credit(members, config)
    advantage_G = grpo.advantage_G(members.reward_G, epsilon=config.epsilon)
    start = agentopsd.prior(members, config.epsilon)
    return {
        "sequence_advantages": advantage_G,
        "initial_belief": [start] * len(members.trajectories),
        "turn_advantages": credit.figures["advantage"],
        "weights": credit.figures["weight"],
        "delta_belief": credit.figures["delta_b"],
        "degenerate_groups": int(not advantage_G.any()),
    }


def datum(inputs: Inputs) -> Outputs:
    """A training row, shifted right as the article's client wants it."""
    tokens = np.array(inputs["full_tokens"], np.int64)
    steps = inputs["steps"]
    turns_K = tuple(
        Turn(start=step["action_start"], logprob_N=np.array(step["old_logprobs"], np.float64))
        for step in steps
    )
    trajectory = ScoredTrajectory(
        task=_TASK,
        member=0,
        seed=0,
        snapshot_id="vector",
        tokens=tokens,
        prompt_length=min((t.start for t in turns_K), default=len(tokens)),
        turns=turns_K,
        reward=0.0,
        stop=StopReason.FAILED,
        teacher_K=tuple(t.logprob_N for t in turns_K),
        hint_hash="",
        teacher_snapshot_id="vector",
    )
    value_K = np.array(inputs["turn_advantages"], np.float64)
    row = to_datum(trajectory, grpo.over_tokens(trajectory, value_K))
    return {
        "input_tokens": row.tokens[:-1],
        "target_tokens": row.tokens[1:],
        "old_logprobs": row.logprobs[1:],
        "advantages": row.advantages[1:],
        "action_tokens": int(row.mask.sum()),
    }


def ppo_loss(inputs: Inputs) -> Outputs:
    """The loss, its gradient and its diagnostics."""
    new_DT, old_DT, advantage_DT, mask_DT = (
        matrix(inputs[name])
        for name in ("log_probs", "old_log_probs", "advantages", "response_mask")
    )
    dual = inputs.get("dual_clip_c")
    config = PPOConfig(
        clip_low=float(inputs["clip_low"]),
        clip_high=float(inputs["clip_high"]),
        dual_clip=None if dual is None else float(dual),
        aggregation=inputs["loss_agg_mode"],
    )
    result = ppo(new_DT, old_DT, advantage_DT, mask_DT > 0, config)
    return {
        "loss": result.loss,
        "clip_fraction": result.clip_fraction,
        "approx_kl": result.approx_kl,
        "dual_clip_fraction": result.dual_clip_fraction,
        "grad_log_probs": result.grad_DT,
    }
