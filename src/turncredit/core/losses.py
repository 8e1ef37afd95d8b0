"""Names of losses and their settings: what may be asked of a backend, in one place.

`loss_fn` is one policy loss and any terms after it, "ppo+sdar+kl"; `loss_fn_config` is a flat
mapping of numbers. The arithmetic is in `loop.loss` and `loop.terms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from turncredit.core.errors import ConfigError, did_you_mean

Settings = Mapping[str, float]

# Clip thresholds are bounds of the probability *ratio*. PPO: the article's; CISPO: no lower bound
# and the upper one in common use; GSPO: the paper's, for the ratio of a whole row.
POLICY_LOSSES: Mapping[str, Settings] = {
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.24, "dual_clip": 0.0},
    "importance_sampling": {},
    "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 5.0},
    "gspo": {"clip_low_threshold": 0.9997, "clip_high_threshold": 1.0004},
    "cross_entropy": {},
}
LOSS_TERMS: Mapping[str, Settings] = {
    "sdar": {"sdar_beta": 5.0},
    "skillsd": {},
    "opid": {"opid_clip": 0.0},
    "jsd": {"jsd_beta": 0.5, "jsd_temperature": 1.0},
    "topk": {},
    "kl": {"kl_coefficient": 0.01, "kl_order": 3.0},
    "entropy": {"entropy_coefficient": 0.001},
}

_RULES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "clip_low_threshold": (lambda x: 0 <= x <= 1, "a ratio in [0, 1]"),
    "clip_high_threshold": (lambda x: x >= 1, "a ratio of 1 or more"),
    "dual_clip": (lambda x: x == 0 or x > 1, "above 1, or 0 for none"),
    "sdar_beta": (lambda x: x >= 0, "0 or more (0: the gate is one half)"),
    "opid_clip": (lambda x: x >= 0, "0 or more nats (0: no clip)"),
    "jsd_beta": (lambda x: 0 <= x <= 1, "in [0, 1] (0: KL(teacher, student); 1: the reverse)"),
    "jsd_temperature": (lambda x: x > 0, "above 0"),
    "kl_coefficient": (math.isfinite, "a number"),
    "kl_order": (lambda x: x in (1, 2, 3), "1, 2 or 3"),
    "entropy_coefficient": (math.isfinite, "a number"),
}


def bounds(policy: str) -> tuple[float, float]:
    """The usual bounds of the ratio under a policy loss; of one that has none, PPO's."""
    settings = POLICY_LOSSES[policy] or POLICY_LOSSES["ppo"]
    return settings["clip_low_threshold"], settings["clip_high_threshold"]


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A checked loss: its policy loss, its terms in order, and every setting of them."""

    policy: str
    terms: tuple[str, ...]
    settings: Settings


def parse_loss(loss_fn: str, config: Settings | None = None) -> LossSpec:
    """Read a loss string and complete its settings with defaults.

    Args:
        loss_fn: a policy loss and any terms, joined by "+".
        config: settings that depart from the defaults.

    Raises:
        ConfigError: an unknown or repeated name, a setting that none of them has, or a value that
            cannot be.
    """
    policy, *terms = loss_fn.split("+")
    for problem in _misnamed(policy, terms):
        raise ConfigError(problem)
    defaults = dict(POLICY_LOSSES[policy])
    for term in terms:
        defaults.update(LOSS_TERMS[term])
    for key in config or {}:
        if key not in defaults:
            known = f" (it has: {', '.join(defaults)})" if defaults else " (it has none)"
            raise ConfigError(
                f'the loss "{loss_fn}" has no setting "{key}".{did_you_mean(key, defaults)}{known}'
            )
    settings = {**defaults, **(config or {})}
    for key, value in settings.items():
        holds, words = _RULES[key]
        if not holds(value):
            raise ConfigError(f'{key} of the loss "{loss_fn}" must be {words}; got {value}')
    return LossSpec(policy, tuple(terms), settings)


def _misnamed(policy: str, terms: list[str]) -> Iterator[str]:
    if policy in LOSS_TERMS:
        yield f'"{policy}" is a term, not a policy loss: write "ppo+{policy}"'
    elif policy not in POLICY_LOSSES:
        known = ", ".join(POLICY_LOSSES)
        yield f'no loss "{policy}".{did_you_mean(policy, POLICY_LOSSES)} (known: {known})'
    for place, term in enumerate(terms):
        if term in POLICY_LOSSES:
            yield f'"{term}" is a policy loss and there is one already ("{policy}"): leave one out'
        elif term not in LOSS_TERMS:
            known = ", ".join(LOSS_TERMS)
            yield f'no loss term "{term}".{did_you_mean(term, LOSS_TERMS)} (known: {known})'
        elif term in terms[:place]:
            yield f'the loss names the term "{term}" twice: leave one out'
