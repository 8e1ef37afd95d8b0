"""Losses of one row's action tokens, with their exact slopes by the logits.

The policy's own numbers are log-probs (N, V) of the N action tokens' situations. A slope by the
sampled token's log-prob acts on the logits as one-hot minus probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turncredit.backends.contract import STREAMS, coefficient, weights
from turncredit.backends.tabular.policy import log_softmax
from turncredit.core.datum import Datum
from turncredit.core.losses import LossSpec, Settings
from turncredit.core.types import Array, Tokens

_LOG_RATIO_LIMIT = 700.0  # past this exp() overflows

# The published clamps of the two exponential estimators.
_RHO_LIMIT, _K3_LIMIT, _KL_LIMIT = 10.0, 20.0, 10.0


@dataclass(frozen=True)
class RowLoss:
    """The loss of a row: its sum over N tokens, its slope by their logits, and what was seen.

    `values` holds, per term, its value on the tokens that have a weight in it.
    """

    loss: float
    new_N: Array
    slope_NV: Array
    clipped: int
    floored: int
    values: Mapping[str, Array] = field(default_factory=dict)


def row_loss(spec: LossSpec, datum: Datum, logprob_NV: Array) -> RowLoss:
    """The loss of one row, of which `contract.check_rows` approved.

    Args:
        spec: names and settings.
        datum: the row.
        logprob_NV: the policy's log-probs where its N action tokens are predicted.
    """
    ids_N = datum.tokens[datum.mask]
    new_N = logprob_NV[np.arange(len(ids_N)), ids_N]
    old_N, advantage_N = datum.logprobs[datum.mask], datum.advantages[datum.mask]
    policy = _policy(spec, new_N, old_N, advantage_N)
    loss, slope_N = float(policy.loss_N.sum()), policy.slope_N.copy()
    vocabulary_NV, values = np.zeros_like(logprob_NV), {}
    for term in spec.terms:
        used = np.flatnonzero(weights(datum, term))
        if not len(used):
            values[term] = np.zeros(0)
            continue
        weight_n = coefficient(spec, term) * weights(datum, term)[used]
        if term in _OF_TOKENS:
            against_n = getattr(datum, STREAMS[term][1])[datum.mask][used]
            value_n, slope_n = _OF_TOKENS[term](new_N[used], old_N[used], against_n, spec.settings)
            slope_N[used] += weight_n * slope_n
        else:
            value_n, slope_nV = _of_vocabulary(term, spec, datum, logprob_NV[used], used)
            vocabulary_NV[used] += weight_n[:, None] * slope_nV
        loss += float((weight_n * value_n).sum())
        values[term] = -value_n if term == "entropy" else value_n  # it is minimised negated
    return RowLoss(
        loss=loss,
        new_N=new_N,
        slope_NV=vocabulary_NV + _by_logits(slope_N, ids_N, logprob_NV),
        clipped=int(policy.clipped_N.sum()),
        floored=int(policy.floored_N.sum()),
        values=values,
    )


def _by_logits(slope_N: Array, ids_N: Tokens, logprob_NV: Array) -> Array:
    slope_NV = -np.exp(logprob_NV) * slope_N[:, None]
    slope_NV[np.arange(len(ids_N)), ids_N] += slope_N
    return slope_NV


# ── policy losses ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Policy:
    loss_N: Array
    slope_N: Array
    clipped_N: NDArray[np.bool_]
    floored_N: NDArray[np.bool_]


def _policy(spec: LossSpec, new_N: Array, old_N: Array, advantage_N: Array) -> _Policy:
    """Loss and its slope by the new log-probs, (N,) each."""
    never = np.zeros(len(new_N), bool)
    if spec.policy == "cross_entropy":
        return _Policy(-advantage_N * new_N, -advantage_N, never, never)
    change = new_N - old_N
    if spec.policy == "gspo":  # one ratio for the row
        change = np.full(len(new_N), change.mean())
    ratio = np.exp(np.clip(change, -_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT))
    plain = -advantage_N * ratio
    if spec.policy == "importance_sampling":
        return _Policy(plain, plain, never, never)
    low, high = spec.settings["clip_low_threshold"], spec.settings["clip_high_threshold"]
    bounded = -advantage_N * np.clip(ratio, low, high)
    if spec.policy == "cispo":  # the clip bounds a weight, no token loses its gradient
        return _Policy(bounded * new_N, bounded, (ratio < low) | (ratio > high), never)
    loss, flat = np.maximum(plain, bounded), bounded > plain
    slope = np.where(flat, 0.0, plain)
    if dual := spec.settings.get("dual_clip", 0.0):
        never = (advantage_N < 0) & (loss > -advantage_N * dual)
        loss, slope = np.where(never, -advantage_N * dual, loss), np.where(never, 0.0, slope)
    if spec.policy == "gspo":
        slope = np.full(len(slope), slope.mean())
    return _Policy(loss, slope, flat, never)


# ── terms: values without weight or coefficient, and slopes ──────────────────────────────────


def _sdar(new: Array, old: Array, teacher: Array, settings: Settings) -> tuple[Array, Array]:
    gap = teacher - new
    gate = np.exp(-np.logaddexp(0.0, -settings["sdar_beta"] * gap))
    return gate * gap, -gate  # the gate is not differentiated


def _skillsd(new: Array, old: Array, teacher: Array, settings: Settings) -> tuple[Array, Array]:
    rho, above = np.exp(np.minimum(new - old, _RHO_LIMIT)), new - teacher
    k3 = np.exp(np.minimum(-above, _K3_LIMIT)) - 1 + above
    return rho * k3, rho * above  # rho k3 + rho (1 - e^-above), at every gap


def _opid(new: Array, old: Array, teacher: Array, settings: Settings) -> tuple[Array, Array]:
    gap, clip = teacher - old, settings["opid_clip"]
    pull = np.clip(gap, -clip, clip) if clip else gap
    return -pull * new, -pull


def _kl(new: Array, old: Array, reference: Array, settings: Settings) -> tuple[Array, Array]:
    above, order = new - reference, settings["kl_order"]
    if order == 1:
        return above, np.ones_like(above)
    if order == 2:
        return above**2 / 2, above
    ratio = np.exp(np.minimum(-above, _K3_LIMIT))
    k3 = ratio - 1 + above
    return np.minimum(k3, _KL_LIMIT), np.where(k3 < _KL_LIMIT, 1 - ratio, 0.0)


_TokenTerm = Callable[[Array, Array, Array, Settings], tuple[Array, Array]]
_OF_TOKENS: Mapping[str, _TokenTerm] = {
    "sdar": _sdar,
    "skillsd": _skillsd,
    "opid": _opid,
    "kl": _kl,
}


def _of_vocabulary(
    term: str, spec: LossSpec, datum: Datum, logprob_nV: Array, used: NDArray[np.intp]
) -> tuple[Array, Array]:
    """Value (n,) and slope by the logits (n, V) of a term, on the `used` of the action tokens."""
    if term == "entropy":
        p_nV = np.exp(logprob_nV)
        negated_n = (p_nV * logprob_nV).sum(axis=1)
        return negated_n, p_nV * (logprob_nV - negated_n[:, None])
    beta, temperature = 0.0, 1.0
    if term == "jsd":
        beta, temperature = spec.settings["jsd_beta"], spec.settings["jsd_temperature"]
    assert datum.distribution is not None  # check_rows has refused the others
    ids_nk = datum.distribution.ids[datum.mask][used]
    teacher_nk = log_softmax(datum.distribution.logprobs[datum.mask][used].astype(np.float64))
    # Dividing log-probs is dividing logits: what is normalised again loses any constant.
    student_nk = log_softmax(np.take_along_axis(logprob_nV, ids_nk, axis=1) / temperature)
    value_n, slope_nk = _divergence(student_nk, teacher_nk, beta)
    slope_nV = np.zeros_like(logprob_nV)
    np.put_along_axis(slope_nV, ids_nk, slope_nk / temperature, axis=1)
    return value_n, slope_nV


def _divergence(log_s: Array, log_t: Array, beta: float) -> tuple[Array, Array]:
    """Of log-probs: beta KL(T, M) + (1 - beta) KL(S, M), M the mixture; its slope by S's logits.

    The slope by a probability is (1 - beta) log(s / m); through the softmax it loses its mean.
    """
    s, t = np.exp(log_s), np.exp(log_t)
    if beta == 0:
        return (t * (log_t - log_s)).sum(axis=1), s - t
    if beta == 1:
        push = log_s - log_t
        value = (s * push).sum(axis=1)
    else:
        log_m = np.logaddexp(log_s + np.log1p(-beta), log_t + np.log(beta))
        push = (1 - beta) * (log_s - log_m)
        value = beta * (t * (log_t - log_m)).sum(axis=1) + (s * push).sum(axis=1)
    return value, s * (push - (s * push).sum(axis=1, keepdims=True))
