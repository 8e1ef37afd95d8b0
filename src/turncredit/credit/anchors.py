"""Turns of a group that started from the same place, and what they returned from there.

An *anchor* is a state that several turns of a group began in: turns of one anchor can be compared
with each other, whatever trajectory they belong to, because everything before them is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.settings import setting
from turncredit.core.types import Array, Credit, Group, frozen_array
from turncredit.credit import grpo
from turncredit.credit.terms import check_not_negative


@dataclass(frozen=True)
class Config(grpo.Config):
    """Settings of an advantage among turns of the same anchor."""

    gamma: float = setting(0.95, "discount of later rewards, per turn")
    step_weight: float = setting(1.0, "weight of the anchor-relative part; 0 is GRPO")
    step_std: Literal["population", "sample", "none"] = setting(
        "sample", "divide returns of an anchor by their standard deviation, or do not"
    )
    anchor: Literal["observation", "state_key"] = setting(
        "observation", "same state: the same text shown, or the environment's own key of it"
    )
    similarity: float = setting(
        1.0, "observations at least this alike (difflib ratio) are one anchor; 1: only equal ones"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(step_weight=self.step_weight)
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma must lie in [0, 1] (1: no discount); got {self.gamma}")
        if self.step_std not in grpo.STD_CHOICES:
            raise ConfigError(
                f"step_std must be one of {', '.join(grpo.STD_CHOICES)}; got {self.step_std!r}"
            )
        if not 0 < self.similarity <= 1:
            raise ConfigError(f"similarity must lie in (0, 1] (1: equal); got {self.similarity}")
        if self.similarity < 1 and self.anchor == "state_key":
            raise ConfigError("similarity compares texts: use --anchor observation, or 1")


def discounted(reward_K: Sequence[float] | Array, gamma: float) -> Array:
    """Return from every turn on, G_k = r_k + gamma G_{k+1}, (K,)."""
    total, out = 0.0, []
    for reward in reversed([float(reward) for reward in reward_K]):
        total = reward + gamma * total
        out.append(total)
    return np.array(out[::-1], np.float64)


def labels(keys: Sequence[str], similarity: float = 1.0) -> list[int]:
    """Number of the anchor of each key, counted by first appearance.

    Args:
        keys: what was seen, in order.
        similarity: below 1, a key joins the first anchor whose first key it is at least this
            alike; this depends on the order, and takes time quadratic in the number of anchors.
    """
    if similarity >= 1:
        order: dict[str, int] = {}
        return [order.setdefault(key, len(order)) for key in keys]
    firsts: list[str] = []
    return [_join(firsts, key, similarity) for key in keys]


def _join(firsts: list[str], key: str, similarity: float) -> int:
    for label, first in enumerate(firsts):
        if SequenceMatcher(None, key, first).ratio() >= similarity:
            return label
    firsts.append(key)
    return len(firsts) - 1


def among_equals(value_R: Array, label_R: Sequence[int], config: Config) -> Array:
    """Each value against those of its own label, (R,); 0 for one that is alone."""
    out_R = np.zeros(len(value_R))
    numbers_R = np.array(label_R, np.int64)
    for label in dict.fromkeys(label_R):
        rows = numbers_R == label
        out_R[rows] = grpo.advantage_G(value_R[rows], std=config.step_std, epsilon=config.epsilon)
    return out_R


def turn_labels(group: Group, config: Config) -> list[int]:
    """Number of the anchor of every turn, all turns of the group in order.

    Raises:
        ConfigError: the environment gives no state keys.
    """
    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    if config.anchor == "observation":
        return labels([turn.observation for turn in turns], config.similarity)
    if turns and not any(turn.state_key for turn in turns):
        raise ConfigError(
            f"task {group.task.id}: this environment gives no state keys; use --anchor observation"
        )
    return labels([turn.state_key for turn in turns])


def turn_returns(group: Group, gamma: float) -> Array:
    """Discounted return of every turn, all turns of the group in order."""
    parts = [discounted([turn.reward for turn in t.turns], gamma) for t in group.trajectories]
    return np.concatenate([np.zeros(0), *parts])


def credit(group: Group, config: Config) -> Credit:
    """GRPO's advantage plus `step_weight` times that of each turn among those of its anchor.

    Raises:
        ConfigError: the environment gives no state keys, and they are asked for.
    """
    if not group.trajectories:
        return Credit(())
    outcome_G = grpo.outcome_G(group, config)
    label_R, return_R = turn_labels(group, config), turn_returns(group, config.gamma)
    step_R = among_equals(return_R, label_R, config)
    size_R = np.bincount(label_R, minlength=1)[np.array(label_R, np.int64)].astype(np.float64)
    step_GK = by_member(group, step_R)
    value_GK = tuple(
        outcome + config.step_weight * step_K
        for outcome, step_K in zip(outcome_G.tolist(), step_GK, strict=True)
    )
    pairs = zip(group.trajectories, value_GK, strict=True)
    return Credit(
        tuple(grpo.over_tokens(trajectory, value_K) for trajectory, value_K in pairs),
        figures={
            "advantage": tuple(map(frozen_array, value_GK)),
            "step_advantage": step_GK,
            "return": by_member(group, return_R),
            "anchor_size": by_member(group, size_R),
        },
        metrics=_metrics(label_R, step_R),
    )


def by_member(group: Group, value_R: Array) -> tuple[Array, ...]:
    """Numbers of all turns of `group` in order, cut into one (K,) array per member."""
    cuts = np.cumsum([len(trajectory.turns) for trajectory in group.trajectories])[:-1]
    return tuple(frozen_array(values_K) for values_K in np.split(value_R, cuts))


def _metrics(label_R: Sequence[int], step_R: Array) -> Mapping[str, float]:
    if not label_R:
        return {}
    size_A = np.bincount(label_R)
    return {
        "anchors": float(len(size_A)),
        "anchor_size_mean": float(size_A.mean()),
        "turns_alone": float((size_A == 1).sum() / len(label_R)),
        "step_advantage_abs_mean": float(np.abs(step_R).mean()),
    }
