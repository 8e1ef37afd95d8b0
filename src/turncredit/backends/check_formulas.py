"""Formulas of losses and terms for a few settings, by hand: what `check_terms` expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from turncredit.core.types import Array

WINDOW = {"clip_low_threshold": 0.95, "clip_high_threshold": 1.05}

# (new_N, old_N, other_N) -> value_N, slope_N by the new log-probs; `other` is the advantage, the
# teacher's log-prob, or the initial policy's.
Formula = Callable[[Array, Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Case:
    """One loss with settings, and its formula."""

    settings: Mapping[str, float]
    formula: Formula


def _bounded(ratio: Array, advantage: Array) -> tuple[Array, Array]:
    bounded = -advantage * np.clip(ratio, 0.95, 1.05)
    plain = -advantage * ratio
    return np.maximum(plain, bounded), np.where(bounded > plain, 0.0, plain)


def _ppo(new: Array, old: Array, advantage: Array) -> tuple[Array, Array]:
    return _bounded(np.exp(new - old), advantage)


def _importance_sampling(new: Array, old: Array, advantage: Array) -> tuple[Array, Array]:
    value = -advantage * np.exp(new - old)
    return value, value


def _cispo(new: Array, old: Array, advantage: Array) -> tuple[Array, Array]:
    slope = -advantage * np.clip(np.exp(new - old), 0.95, 1.05)
    return slope * new, slope


def _gspo(new: Array, old: Array, advantage: Array) -> tuple[Array, Array]:
    value, slope = _bounded(np.full(len(new), np.exp((new - old).mean())), advantage)
    return value, np.full(len(new), slope.mean())


def _cross_entropy(new: Array, old: Array, advantage: Array) -> tuple[Array, Array]:
    return -advantage * new, -advantage


def _sdar(new: Array, old: Array, teacher: Array) -> tuple[Array, Array]:
    gate = 1 / (1 + np.exp(-2.0 * (teacher - new)))
    return gate * (teacher - new), -gate


def _skillsd(new: Array, old: Array, teacher: Array) -> tuple[Array, Array]:
    ratio, above = np.exp(new - old), new - teacher
    return ratio * (np.exp(-above) - 1 + above), ratio * above


def _opid(new: Array, old: Array, teacher: Array) -> tuple[Array, Array]:
    pull = np.clip(teacher - old, -0.3, 0.3)
    return -pull * new, -pull


def _kl(new: Array, old: Array, initial: Array) -> tuple[Array, Array]:
    above = new - initial
    return 0.5 * (np.exp(-above) - 1 + above), 0.5 * (1 - np.exp(-above))


POLICIES: Mapping[str, Case] = {
    "ppo": Case(WINDOW, _ppo),
    "importance_sampling": Case({}, _importance_sampling),
    "cispo": Case(WINDOW, _cispo),
    "gspo": Case(WINDOW, _gspo),
    "cross_entropy": Case({}, _cross_entropy),
}
TERMS: Mapping[str, Case] = {
    "sdar": Case({"sdar_beta": 2.0}, _sdar),
    "skillsd": Case({}, _skillsd),
    "opid": Case({"opid_clip": 0.3}, _opid),
    "kl": Case({"kl_coefficient": 0.5, "kl_order": 3.0}, _kl),
}


def divergence(student_k: Array, teacher_k: Array, beta: float) -> tuple[float, Array]:
    """Of three probabilities each: beta KL(T, M) + (1 - beta) KL(S, M), and its slope by logits."""
    s, t = np.exp(student_k), np.exp(teacher_k)
    s, t = s / s.sum(), t / t.sum()
    if beta == 0:
        return float((t * np.log(t / s)).sum()), s - t
    m = (1 - beta) * s + beta * t
    push = (1 - beta) * np.log(s / m)
    value = beta * (t * np.log(t / m)).sum() + (s * push).sum()
    return float(value), s * (push - (s * push).sum())
