"""What a backend must compute for training rows: losses and terms summed, in NumPy, in the open.

A backend sums over the action tokens of all rows and reduces nothing: whoever built the rows has
divided their weights already.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turncredit.core.datum import Datum, Distribution
from turncredit.core.errors import ConfigError
from turncredit.core.losses import LossSpec, Settings, parse_loss
from turncredit.core.types import Array
from turncredit.loop.loss import POLICIES
from turncredit.loop.terms import TERMS, TokenTerm, VocabularyTerm, log_softmax


def reference_loss(
    loss_fn: str,
    loss_fn_config: Settings | None,
    data: Sequence[Datum],
    new: Sequence[Array],
    new_logits: Sequence[Array] | None = None,
) -> tuple[float, tuple[Array, ...]]:
    """What `forward_backward` must compute for `data`, and the gradient it must follow.

    Args:
        loss_fn: a policy loss and any terms, "ppo+sdar+kl".
        loss_fn_config: settings that depart from the defaults (`core.losses`).
        data: R rows of T tokens each.
        new: per row (T,) log-probs of its own tokens under the weights being trained; read on
            action tokens only.
        new_logits: per row (T, V), entry t the logits that predict token t. Needed by terms over
            the vocabulary.

    Returns:
        The sum over action tokens, and per row its slope: (T,) by `new`, or, with `new_logits`,
        (T, V) by the logits, what acts through the sampled token included.

    Raises:
        ConfigError: an unknown loss or setting, or rows without what a term reads.
    """
    spec = parse_loss(loss_fn, loss_fn_config)
    logits = [None] * len(data) if new_logits is None else new_logits
    rows = [
        _row(spec, datum, np.asarray(new_T, np.float64), logits_TV)
        for datum, new_T, logits_TV in zip(data, new, logits, strict=True)
    ]
    return float(sum(value for value, _ in rows)), tuple(slope for _, slope in rows)


def _row(
    spec: LossSpec, datum: Datum, new_T: Array, logits_TV: Array | None
) -> tuple[float, Array]:
    at = np.flatnonzero(datum.mask)
    policy = POLICIES[spec.policy]
    loss = policy(new_T[at], datum.logprobs[at], datum.advantages[at], spec.settings)
    total, slope_T = float(loss.value.sum()), np.zeros(len(new_T))
    slope_T[at] = loss.slope
    slope_TV = None if logits_TV is None else np.zeros_like(logits_TV, np.float64)
    for name in spec.terms:
        term = TERMS[name]
        weight_T = _part(datum, term.weighted_by, name)
        # Tokens of weight 0 may lack a teacher: they are never looked at.
        on = np.flatnonzero(datum.mask & (weight_T != 0))
        weight_N = weight_T[on]
        if isinstance(term, TokenTerm):
            against_N = _part(datum, term.against, name)[on]
            value_N, slope_N = term.at(new_T[on], datum.logprobs[on], against_N, spec.settings)
            slope_T[on] += weight_N * slope_N
        elif logits_TV is None or slope_TV is None:
            raise ConfigError(f'the term "{name}" reads whole distributions: give new_logits')
        else:
            value_N, slope_NV = term.at(logits_TV[on], _given(datum, term, on), spec.settings)
            slope_TV[on] += weight_N[:, None] * slope_NV
        total += float((weight_N * value_N).sum())
    if logits_TV is None or slope_TV is None:
        return total, slope_T
    return total, slope_TV + _through_sampled(datum, slope_T, logits_TV, at)


def _part(datum: Datum, name: str, term: str) -> Array:
    values = getattr(datum, name)
    if values is None:
        raise ConfigError(f'the term "{term}" reads "{name}" of every row, and one has none')
    return values


def _given(datum: Datum, term: VocabularyTerm, on: NDArray[np.intp]) -> Distribution | None:
    if not term.against:
        return None
    if (whole := datum.distribution) is None:
        raise ConfigError(f'the term "{term.name}" reads "distribution" of every row, one has none')
    return Distribution(whole.ids[on], whole.logprobs[on])


def _through_sampled(datum: Datum, slope_T: Array, logits_TV: Array, at: NDArray[np.intp]) -> Array:
    """A slope by the sampled token's log-prob, as one by the logits: one-hot minus softmax."""
    out_TV = np.zeros_like(logits_TV, np.float64)
    out_TV[at] = -slope_T[at, None] * np.exp(log_softmax(logits_TV[at]))
    out_TV[at, datum.tokens[at]] += slope_T[at]
    return out_TV
