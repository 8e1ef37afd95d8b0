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
evidence still moves the belief back towards B_0. By default only the success indicator feeds B_0: a
return on another scale would pin the belief at its clamp.

With `granularity` "token" the same recursion walks over the tokens of one turn, and the belief
begins again in every turn. `variant` names the published ablations (`credit.ablations`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Array, Credit, Group, Trajectory, frozen_array
from turncredit.credit import ablations, grpo
from turncredit.credit.belief import Knobs, Scene, Shaped, clamped, shaped, walk
from turncredit.credit.gaps import gaps_of, joined, turn_sums
from turncredit.credit.grpo import over_tokens
from turncredit.credit.weights import check_bound, check_mix, gap_metrics, weight_metrics

NEEDS_TEACHER = True
NEEDS = Needs(hint="skillbank", mix="reshape_lambda", bound="weight_bound")


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of AgentOPSD; the defaults are the article's."""

    epsilon: float = setting(1e-4, "added to standard deviations; also clamps the prior")
    gamma: float = setting(0.95, "decay of earlier evidence, per turn")
    reshape_lambda: float = setting(0.5, "share of the turn weight in the advantage; 0 is GRPO")
    weight_bound: float = setting(0.2, "turn weights stay within 1 +/- this bound")
    granularity: Literal["turn", "token"] = setting(
        "turn", "what the belief walks over: a trajectory's turns, or the tokens of each turn"
    )
    belief_source: Literal["success_rate", "return"] = setting(
        "success_rate", "what the belief begins at: the group's success rate or its mean reward"
    )
    variant: Literal["full", "unsigned", "no_gate", "telescoping", "tether", "anchored"] = setting(
        "full", "the method, or a published ablation of it"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mix(self.reshape_lambda, "reshape_lambda")
        check_bound(self.weight_bound)
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma must lie in [0, 1] (1: no decay); got {self.gamma}")


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


def full(scene: Scene, knobs: Knobs) -> Shaped:
    """The method itself: turns weigh by the step of the belief towards the outcome."""
    return shaped(np.sign(scene.advantage) * scene.walk.delta, scene, knobs)


def needs(config: Config) -> Needs:
    """What the method asks for with these settings: two of its ablations keep no bound."""
    return replace(NEEDS, bound="") if config.variant in ("telescoping", "anchored") else NEEDS


VARIANTS: Mapping[str, Callable[[Scene, Knobs], Shaped]] = {
    "full": full,
    "unsigned": ablations.unsigned,
    "no_gate": ablations.no_gate,
    "telescoping": ablations.telescoping,
    "tether": ablations.tether,
    "anchored": ablations.anchored,
}


def prior(group: Group, epsilon: float) -> float:
    """B_0: the group's success rate, kept off 0 and 1 by `epsilon`."""
    return clamped(float(group.success_G.mean()), epsilon)


def reshape_turns(
    evidence_K: Array,
    advantage: float,
    initial_belief: float,
    config: Config,
    *,
    tokens_K: Array | None = None,
    outcome: float = 0.0,
) -> TurnFigures:
    """Spread one trajectory's advantage over its K turns (or one turn's over its tokens).

    Args:
        evidence_K: (K,) nats; K may be 0.
        advantage: the trajectory's group-relative advantage.
        initial_belief: B_0, clamped here by `config.epsilon`.
        config: gamma, lambda, bound, epsilon and variant are used.
        tokens_K: (K,) tokens that gave each evidence, one each when left out; for `tether`.
        outcome: what the belief should have come to; for `telescoping` and `anchored`.
    """
    start = clamped(initial_belief, config.epsilon)
    path = walk(np.asarray(evidence_K, np.float64), start, config.gamma)
    mean_K = path.evidence / np.maximum(1 if tokens_K is None else tokens_K, 1)
    scene = Scene(path, mean_K, advantage, outcome - start)
    made = VARIANTS[config.variant](scene, config)
    return TurnFigures(
        evidence=path.evidence,
        cumulative=path.cumulative,
        belief_before=path.before,
        belief_after=path.after,
        delta_b=path.delta,
        credit=made.credit,
        z=made.z,
        weight=made.weight,
        advantage=made.advantage,
    )


def credit(group: Group, config: Config) -> Credit:
    """Credit of a scored group. Every intermediate is kept in `Credit.figures`, per turn.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    if not group.trajectories:
        return Credit(())
    gap_GK = [gaps_of(trajectory) for trajectory in group.trajectories]
    ends_G = group.success_G if config.belief_source == "success_rate" else group.reward_G
    start = clamped(float(ends_G.mean()), config.epsilon)
    judge = _by_turn if config.granularity == "turn" else _by_token
    advantage_G = grpo.outcome_G(group, config)
    judged_G = [
        judge(trajectory, gap_K, (float(advantage), start, float(end)), config)
        for trajectory, gap_K, advantage, end in zip(
            group.trajectories, gap_GK, advantage_G, ends_G, strict=True
        )
    ]
    turns_G = [turns for turns, _ in judged_G]
    return Credit(
        tuple(tokens_K for _, tokens_K in judged_G),
        figures={name: tuple(frozen_array(getattr(t, name)) for t in turns_G) for name in FIGURES},
        metrics={"initial_belief": start, **_metrics(gap_GK, turns_G)},
    )


def _by_turn(
    trajectory: Trajectory,
    gap_K: Sequence[Array],
    given: tuple[float, float, float],
    config: Config,
) -> tuple[TurnFigures, tuple[Array, ...]]:
    advantage, start, outcome = given
    tokens_K = np.array([len(gap_N) for gap_N in gap_K])
    turns = reshape_turns(
        turn_sums(gap_K), advantage, start, config, tokens_K=tokens_K, outcome=outcome
    )
    return turns, over_tokens(trajectory, turns.advantage)


def _by_token(
    trajectory: Trajectory,
    gap_K: Sequence[Array],
    given: tuple[float, float, float],
    config: Config,
) -> tuple[TurnFigures, tuple[Array, ...]]:
    advantage, start, outcome = given
    made_K = [reshape_turns(gap_N, advantage, start, config, outcome=outcome) for gap_N in gap_K]
    rows = [_summary(made, start) for made in made_K]
    turns = TurnFigures(*(np.array([row[i] for row in rows]) for i in range(len(FIGURES))))
    return turns, tuple(made.advantage for made in made_K)


def _summary(made: TurnFigures, start: float) -> tuple[float, ...]:
    """A turn's tokens in one number a figure: sums of what adds up, ends of paths, else means."""
    if not len(made.weight):
        return (0.0, 0.0, start, start, 0.0, 0.0, 0.0, 1.0, 0.0)
    return (
        float(made.evidence.sum()),
        float(made.cumulative[-1]),
        float(made.belief_before[0]),
        float(made.belief_after[-1]),
        float(made.delta_b.sum()),
        float(made.credit.sum()),
        float(made.z.mean()),
        float(made.weight.mean()),
        float(made.advantage.mean()),
    )


def _metrics(
    gap_GK: Sequence[Sequence[Array]], turns_G: Sequence[TurnFigures]
) -> Mapping[str, float]:
    delta, weight = (
        joined([getattr(turns, name) for turns in turns_G]) for name in ("delta_b", "weight")
    )
    if not len(weight):
        return {}
    return {
        **gap_metrics(gap_GK),
        "delta_b_mean": float(delta.mean()),
        "delta_b_abs_mean": float(np.abs(delta).mean()),
        **weight_metrics(weight),
    }
