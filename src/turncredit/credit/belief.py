"""A belief in success that moves with evidence, and what its steps do to an advantage.

A *step* is whatever the belief walks over: a turn of a trajectory, or a token of a turn. Axis
letter `_U`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from turncredit.core.types import Array
from turncredit.credit.weights import around_one, mixed


class Knobs(Protocol):
    """Settings that shape an advantage."""

    @property
    def reshape_lambda(self) -> float: ...  # noqa: D102
    @property
    def weight_bound(self) -> float: ...  # noqa: D102
    @property
    def epsilon(self) -> float: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Walk:
    """The belief along U steps, each (U,). Evidence and its decayed sum are in nats."""

    evidence: Array
    cumulative: Array
    before: Array
    after: Array

    @property
    def delta(self) -> Array:
        """How far each step moved the belief."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Scene:
    """What a variant may look at.

    Attributes:
        walk: the belief along the steps.
        mean_U: mean gap of each step's tokens, nats.
        advantage: the trajectory's group-relative advantage.
        target: its outcome minus the belief it began with.
    """

    walk: Walk
    mean_U: Array
    advantage: float
    target: float


@dataclass(frozen=True, slots=True)
class Shaped:
    """What a variant makes of a scene, each (U,)."""

    credit: Array
    z: Array
    weight: Array
    advantage: Array


def clamped(rate: float, epsilon: float) -> float:
    """`rate` inside [epsilon, 1 - epsilon]."""
    return min(max(rate, epsilon), 1 - epsilon)


def sigmoid(x: Array) -> Array:
    """Logistic function that neither overflows nor warns at |x| of hundreds."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def decayed(evidence_U: Array, gamma: float) -> Array:
    """c_u = gamma c_{u-1} + e_u, (U,) nats."""
    total, out = 0.0, []
    for evidence in evidence_U.tolist():
        total = gamma * total + evidence
        out.append(total)
    return np.array(out, np.float64)


def walk(evidence_U: Array, start: float, gamma: float) -> Walk:
    """B_u = sigmoid(logit(B_0) + c_u) from B_0 = `start`, which must lie inside (0, 1)."""
    cumulative_U = decayed(evidence_U, gamma)
    after_U = sigmoid(np.log(start / (1 - start)) + cumulative_U)
    before_U = np.concatenate([[start], after_U])[:-1]
    return Walk(evidence_U, cumulative_U, before_U, after_U)


def standardised(values_U: Array, epsilon: float) -> Array:
    """(values - mean) / (population deviation + epsilon); nothing for no values."""
    if not len(values_U):
        return np.zeros(0)
    return (values_U - values_U.mean()) / (values_U.std() + epsilon)


def shaped(credit_U: Array, scene: Scene, knobs: Knobs) -> Shaped:
    """Weights around 1 from standardised credit, and the advantage they give."""
    z_U = standardised(credit_U, knobs.epsilon)
    weight_U = around_one(z_U, knobs.weight_bound)
    return Shaped(credit_U, z_U, weight_U, mixed(scene.advantage, weight_U, knobs.reshape_lambda))
