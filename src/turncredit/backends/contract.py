"""What our backends refuse alike, before anything is computed.

The names of losses are in `core.losses`; here is what each reads of a `Datum`, and the checks of
arguments that have no other home.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from turncredit.core.datum import Datum
from turncredit.core.errors import ConfigError
from turncredit.core.losses import LossSpec
from turncredit.core.types import Array, Ids

# Per term: the stream of its weights, then what it compares the policy with ("" : nothing).
STREAMS: Mapping[str, tuple[str, str]] = {
    "sdar": ("distill", "teacher"),
    "skillsd": ("distill", "teacher"),
    "opid": ("distill", "teacher"),
    "jsd": ("distill", "distribution"),
    "topk": ("distill", "distribution"),
    "kl": ("weight", "reference"),
    "entropy": ("weight", ""),
}
# Terms of the whole next-token distribution, not only of the sampled token.
VOCABULARY = frozenset({"jsd", "topk", "entropy"})
_CURES = {
    "distill": "the method's Credit.distill becomes it",
    "teacher": "score the rows with a teacher (a hint, and a method that needs one)",
    "distribution": "ask the teacher's client for distributions (Needs.vocabulary)",
    "reference": "score the rows with the initial policy",
    "weight": "give each token what the aggregation gives it",
}


def coefficient(loss: LossSpec, term: str) -> float:
    """What multiplies a term beside its weights."""
    return loss.settings.get(f"{term}_coefficient", 1.0)


def weights(row: Datum, term: str) -> Array:
    """The weights of a term on the N action tokens of a row, (N,)."""
    return getattr(row, STREAMS[term][0])[row.mask]


def has_signal(row: Datum, loss: LossSpec) -> bool:
    """Some token has a weight; without any, the gradient of the row is zero."""
    return bool(row.advantages[row.mask].any()) or any(
        bool(coefficient(loss, term)) and bool(weights(row, term).any()) for term in loss.terms
    )


def check_places(at_N: Ids, length: int) -> None:
    """Refuse places no token of a row can be scored at.

    Raises:
        ConfigError: they do not ascend, or are not within 1 .. `length` - 1.
    """
    places = [0, *at_N, length]
    if any(b <= a for a, b in pairwise(places)):
        raise ConfigError(f"places to score must ascend within 1 .. {length - 1}; got {list(at_N)}")


def check_rows(data: Sequence[Datum], loss: LossSpec, vocabulary: int) -> None:
    """Refuse rows that lack what the loss reads, before anything is computed.

    A row whose weights for a term are all 0 takes no part in it, and needs nothing else for it.

    Args:
        data: training rows.
        loss: what will be computed.
        vocabulary: all ids lie below it.

    Raises:
        ConfigError: names the row, the stream, and where it comes from.
    """
    widths: set[int] = set()
    for i, row in enumerate(data):
        _check_ids(i, row, vocabulary)
        for term in loss.terms:
            _check_present(i, row, term)
            _check_numbers(i, row, term, vocabulary)
            if STREAMS[term][1] == "distribution" and weights(row, term).any():
                widths.add(row.distribution.ids.shape[1] if row.distribution else 0)
        distilled = row.distill is not None and bool(row.distill[row.mask].any())
        if distilled and not any(STREAMS[term][0] == "distill" for term in loss.terms):
            raise ConfigError(
                f"row {i} has distillation weights, but no term of the loss reads them: name one, "
                f'like "{loss.policy}+sdar", or fold them into the advantages and leave them out'
            )
    if len(widths) > 1:
        raise ConfigError(f"distributions over {sorted(widths)} tokens in one call: use one number")


def _check_ids(i: int, row: Datum, vocabulary: int) -> None:
    if row.tokens.min() < 0 or row.tokens.max() >= vocabulary:
        raise ConfigError(
            f"row {i} has token ids {row.tokens.min()} to {row.tokens.max()}, the model has 0 to "
            f"{vocabulary - 1}: they come from another tokenizer"
        )


def _check_present(i: int, row: Datum, term: str) -> None:
    weighted_by, against = STREAMS[term]
    missing = weighted_by if getattr(row, weighted_by) is None else ""
    if not missing and against and getattr(row, against) is None and weights(row, term).any():
        missing = against
    if missing:
        raise ConfigError(
            f'row {i} has no "{missing}", which the term "{term}" reads: {_CURES[missing]}'
        )


def _check_numbers(i: int, row: Datum, term: str, vocabulary: int) -> None:
    """Streams are finite, and ids in range, wherever the term has a weight."""
    weighted_by, against = STREAMS[term]
    weight_T = getattr(row, weighted_by)
    if not np.isfinite(weight_T[row.mask]).all():
        raise ConfigError(
            f'row {i}: "{weighted_by}" is not finite on an action token: {_CURES[weighted_by]}'
        )
    used_T = row.mask & (weight_T != 0)
    if not used_T.any():
        return
    if against == "distribution" and row.distribution is not None:
        found, ids = row.distribution.logprobs[used_T], row.distribution.ids[used_T]
        if not 0 <= ids.min() <= ids.max() < vocabulary:
            raise ConfigError(
                f"row {i}: a distribution names ids {ids.min()} to {ids.max()}, the model has "
                f"0 to {vocabulary - 1}: it comes from another model"
            )
    else:
        found = getattr(row, against)[used_T] if against else weight_T[used_T]
    if not np.isfinite(found).all():
        raise ConfigError(
            f'row {i}: "{against}" is not finite where the term "{term}" has a weight: '
            f"{_CURES[against]}, or give those tokens the weight 0"
        )


def check_question(k: int, temperature: float) -> None:
    """Refuse a question for distributions that has no answer.

    Raises:
        ConfigError: k is 0, or the temperature not positive.
    """
    if k == 0:
        raise ConfigError("k=0 asks for no token: use the number of likeliest tokens, or -1 (all)")
    if not temperature > 0:
        raise ConfigError(
            f"temperature={temperature}: logits are divided by it, use a positive one"
        )


def check_decay(decay: float) -> None:
    """Refuse the decay of an average that would never move.

    Raises:
        ConfigError: it is not in [0, 1).
    """
    if not 0 <= decay < 1:
        raise ConfigError(f"decay={decay} of the weight average: use 0 to below 1, like 0.999")


def check_origin(from_state: str | None, from_weights: str | None) -> None:
    """Refuse two places to start from.

    Raises:
        ConfigError: both are given.
    """
    if from_state and from_weights:
        raise ConfigError(
            "from_state and from_weights are both given: resume a state (with its optimizer), or "
            "start from weights alone"
        )
