"""Terms that may stand beside a policy loss, one small description each.

A token's term is its weight (of the row) times a value; a backend sums that over action tokens.
Slopes are what a gradient step follows: parts under a stop-gradient do not move.

With s = new log-prob, o = old one, t = teacher's (or reference) log-prob of the sampled token:

    sdar     sg(sigmoid(beta (t - s))) (t - s)            slope -gate: every token is raised
    skillsd  rho k3, rho = e^(s - o), l = s - t, k3 = e^-l - 1 + l             slope rho l
    opid     -sg(clip(t - o, +/- c)) s                    slope -clip(t - o)
    kl       coefficient times k1 = d, k2 = d^2 / 2 or k3 = e^-d - 1 + d, with d = s - t
    jsd      beta KL(T, M) + (1 - beta) KL(S, M), M = (1 - beta) S + beta T
    topk     KL(T, S) over the reference's likeliest tokens
    entropy  -coefficient H(S)

S and T are the student's and the teacher's distribution of the next token, renormalised over the
tokens that are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from turncredit.core.datum import Distribution
from turncredit.core.errors import ConfigError, did_you_mean
from turncredit.core.losses import LOSS_TERMS, Settings
from turncredit.core.types import Array

# The published clamps. Past them a value stays that of the clamp.
RHO_LIMIT = 10.0  # nats, of the log-ratio of skillsd
K3_LIMIT = 20.0  # nats, of the exponent of skillsd
KL_LIMIT = 10.0  # of k3 as a penalty, whose slope is 0 there

# A probability of exactly 0 would make infinite divergences and 0 * inf.
_LOG_FLOOR = -1e4


@dataclass(frozen=True, slots=True)
class TokenTerm:
    """A term of the sampled token alone. It folds into an advantage.

    Attributes:
        name: in the loss string.
        against: the log-probs of a training row it compares with.
        weighted_by: the weights of a training row that multiply it.
        at: (new_N, old_N, against_N, settings) -> value_N, slope_N (by the new log-prob).
    """

    name: str
    against: Literal["teacher", "reference"]
    weighted_by: Literal["distill", "weight"]
    at: Callable[[Array, Array, Array, Settings], tuple[Array, Array]]


@dataclass(frozen=True, slots=True)
class VocabularyTerm:
    """A term of the whole next-token distribution. No advantage has its gradient.

    Attributes:
        name: in the loss string.
        against: "distribution", or "" when it compares with nothing.
        weighted_by: the weights of a training row that multiply it.
        at: (logits_NV, distribution of N positions, settings) -> value_N, slope_NV (by the logits).
    """

    name: str
    against: Literal["distribution", ""]
    weighted_by: Literal["distill", "weight"]
    at: Callable[[Array, Distribution | None, Settings], tuple[Array, Array]]


# ── sampled tokens ───────────────────────────────────────────────────────────────────────────


def sigmoid(x: Array) -> Array:
    """Logistic function that neither overflows nor warns."""
    return np.exp(-np.logaddexp(0.0, -x))


def _sdar(new: Array, old: Array, teacher: Array, settings: Settings) -> tuple[Array, Array]:
    gate = sigmoid(settings["sdar_beta"] * (teacher - new))
    return gate * (teacher - new), -gate


def _skillsd(new: Array, old: Array, teacher: Array, settings: Settings) -> tuple[Array, Array]:
    """Both factors carry gradient: rho k3 + rho (1 - e^-l) = rho l.

    Written so, the slope has no exponential of the gap: it is exact at every gap, where the
    derivative of the clamped value would push a token the teacher wants away with e^20.
    """
    rho = np.exp(np.minimum(new - old, RHO_LIMIT))
    above = new - teacher
    return rho * (np.exp(np.minimum(-above, K3_LIMIT)) - 1 + above), rho * above


def _opid(new: Array, old: Array, teacher: Array, settings: Settings) -> tuple[Array, Array]:
    gap, clip = teacher - old, settings["opid_clip"]
    pull = np.clip(gap, -clip, clip) if clip else gap
    return -pull * new, -pull


def _kl(new: Array, old: Array, reference: Array, settings: Settings) -> tuple[Array, Array]:
    value, slope = kl(new - reference, int(settings["kl_order"]))
    return settings["kl_coefficient"] * value, settings["kl_coefficient"] * slope


def kl(above: Array, order: int) -> tuple[Array, Array]:
    """Estimators k1, k2 and k3 of KL(new, reference), with slopes; `above` = new - reference.

    k3 is clamped at the published limit; a clamped token has no slope.
    """
    if order == 1:
        return above, np.ones_like(above)
    if order == 2:
        return 0.5 * above**2, above
    ratio = np.exp(np.minimum(-above, K3_LIMIT))
    value = ratio - 1 + above
    return np.minimum(value, KL_LIMIT), np.where(value < KL_LIMIT, 1 - ratio, 0.0)


# ── distributions ────────────────────────────────────────────────────────────────────────────


def log_softmax(logits: Array) -> Array:
    """Normalised logits over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.maximum(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), _LOG_FLOOR)


def divergence(student_Nk: Array, teacher_Nk: Array, beta: float) -> tuple[Array, Array]:
    """Generalised Jensen-Shannon divergence of two logits (N, k), and its slope by the first.

    M = (1 - beta) S + beta T, value = beta KL(T, M) + (1 - beta) KL(S, M); by convention beta = 0
    is KL(T, S) and beta = 1 is KL(S, T).
    """
    log_s, log_t = log_softmax(student_Nk), log_softmax(teacher_Nk)
    s, t = np.exp(log_s), np.exp(log_t)
    if beta == 0:
        value, by_log_s = t * (log_t - log_s), -t
    elif beta == 1:
        value = s * (log_s - log_t)
        by_log_s = value + s
    else:
        log_m = np.logaddexp(log_s + np.log1p(-beta), log_t + np.log(beta))
        by_log_s = (1 - beta) * s * (log_s - log_m)
        value = beta * t * (log_t - log_m) + by_log_s
    slope_Nk = by_log_s - s * by_log_s.sum(axis=-1, keepdims=True)
    return value.sum(axis=-1), slope_Nk


def _over_ids(
    logits_NV: Array, distribution: Distribution | None, beta: float, temperature: float
) -> tuple[Array, Array]:
    """Divergence over the tokens of `distribution`; a teacher's temperature is already in it."""
    if distribution is None:
        raise ConfigError("a term over the vocabulary needs the teacher's distribution")
    ids_Nk = distribution.ids
    picked_Nk = np.take_along_axis(logits_NV, ids_Nk, axis=1) / temperature
    value_N, slope_Nk = divergence(picked_Nk, distribution.logprobs.astype(np.float64), beta)
    slope_NV = np.zeros_like(logits_NV)
    np.put_along_axis(slope_NV, ids_Nk, slope_Nk / temperature, axis=1)
    return value_N, slope_NV


def _jsd(logits_NV: Array, given: Distribution | None, settings: Settings) -> tuple[Array, Array]:
    return _over_ids(logits_NV, given, settings["jsd_beta"], settings["jsd_temperature"])


def _topk(logits_NV: Array, given: Distribution | None, settings: Settings) -> tuple[Array, Array]:
    return _over_ids(logits_NV, given, beta=0.0, temperature=1.0)


def _entropy(
    logits_NV: Array, given: Distribution | None, settings: Settings
) -> tuple[Array, Array]:
    log_p = log_softmax(logits_NV)
    p = np.exp(log_p)
    entropy_N = -(p * log_p).sum(axis=1)
    coefficient = settings["entropy_coefficient"]
    return -coefficient * entropy_N, coefficient * p * (log_p + entropy_N[:, None])


TERMS: Mapping[str, TokenTerm | VocabularyTerm] = {
    term.name: term
    for term in (
        TokenTerm("sdar", "teacher", "distill", _sdar),
        TokenTerm("skillsd", "teacher", "distill", _skillsd),
        TokenTerm("opid", "teacher", "distill", _opid),
        VocabularyTerm("jsd", "distribution", "distill", _jsd),
        VocabularyTerm("topk", "distribution", "distill", _topk),
        TokenTerm("kl", "reference", "weight", _kl),
        VocabularyTerm("entropy", "", "weight", _entropy),
    )
}


# ── folding ──────────────────────────────────────────────────────────────────────────────────


def term_named(name: str) -> TokenTerm | VocabularyTerm:
    """The description of a term.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in TERMS:
        raise ConfigError(
            f'no loss term "{name}".{did_you_mean(name, TERMS)} (known: {", ".join(TERMS)})'
        )
    return TERMS[name]


def folds(name: str) -> bool:
    """Whether some advantage has the gradient of this term where new = old.

    So it is for terms of the sampled token alone; one over the vocabulary moves other tokens too.

    Raises:
        ConfigError: there is no term of that name.
    """
    return isinstance(term_named(name), TokenTerm)


def fold(
    name: str,
    advantage_N: Array,
    weight_N: Array,
    old_N: Array,
    against_N: Array,
    settings: Settings | None = None,
) -> Array:
    """The advantages under which the policy loss alone has the gradient of loss and term.

    Exact where the new log-probs are the old ones, hence for one optimizer step per snapshot, and
    for policy losses that give each token its own advantage (not GSPO). The slope of -A e^(new -
    old) is then -A, so A loses weight times the slope of the term.

    Args:
        name: a term that folds.
        advantage_N: (N,) signed weights.
        weight_N: (N,) what multiplies the term: `distill`, or `weight` for kl. Where it is 0 the
            log-probs may hold anything.
        old_N: (N,) log-probs under the sampling snapshot.
        against_N: (N,) those of the teacher, or of the reference for kl.
        settings: those of the term that depart from the defaults.

    Raises:
        ConfigError: no such term, or one that does not fold.
    """
    term = term_named(name)
    if not isinstance(term, TokenTerm):
        raise ConfigError(
            f'the term "{name}" reads the whole distribution, which no advantage can stand for: '
            "use a backend that runs it"
        )
    used = weight_N != 0
    old, against = (np.where(used, x, 0.0) for x in (old_N, against_N))
    _, slope = term.at(old, old, against, {**LOSS_TERMS[name], **(settings or {})})
    return advantage_N - weight_N * slope
