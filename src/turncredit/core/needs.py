"""What a method asks of a run, said by the method itself, so that no stage knows its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

PolicyLoss = Literal["ppo", "importance_sampling", "cispo", "gspo"]
Aggregation = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
Snapshot = Literal["current", "stale", "initial", "average", "trained"]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Beyond sampled trajectories. The defaults are those of GRPO.

    Attributes:
        hint: the hint source it is published with; the default of `--hint` ("" : none).
        snapshot: who rescores: the sampling snapshot; a stale copy; the initial policy; a running
            average of the weights; another, separately trained policy.
        student_hint: which members act with the hint in their own prompt.
        loss: the policy loss.
        clip: bounds of the probability ratio.
        aggregation: how token losses become one number.
        term: a distillation term beside the policy loss ("" : none). Its weights are
            `Credit.distill`.
        vocabulary: tokens of the teacher's distribution the term reads at every position: 0 none,
            -1 all.
        policy_gradient: False: no outcome advantage, the term alone.
        mix: name of the Config field whose 0 is exactly GRPO ("" : there is none).
        decay_steps: updates over which the mix falls linearly to 0 (0: constant).
    """

    hint: str = ""
    snapshot: Snapshot = "current"
    student_hint: Literal["none", "all", "half"] = "none"
    loss: PolicyLoss = "ppo"
    clip: tuple[float, float] = (0.8, 1.24)
    aggregation: Aggregation = "token-mean"
    term: str = ""
    vocabulary: int = 0
    policy_gradient: bool = True
    mix: str = ""
    decay_steps: int = 0


def needs_of(method: Any) -> Needs:
    """What `method` (a module or class) asks for; a method that says nothing asks nothing."""
    return getattr(method, "NEEDS", None) or Needs()
