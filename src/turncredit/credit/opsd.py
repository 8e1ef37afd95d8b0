"""OPSD: learn from the self that read the reference, and from nothing else.

No outcome enters. The teacher reads the task with privileged text and scores the student's own
tokens; with the gap d = teacher - student log-prob there are three forms:

    sampled   advantage = coefficient * d, with importance sampling: the policy gradient of the
              reverse KL, from the sampled token alone (reproduction on a training service)
    jsd       coefficient * generalised Jensen-Shannon divergence over the vocabulary (or the
              teacher's likeliest tokens, renormalised), both sides divided by a temperature first:
              M = (1 - beta) S + beta T,  beta KL(T || M) + (1 - beta) KL(S || M),
              beta 0: KL(T || S), beta 1: KL(S || T) (the published code)
    gated     SDAR's term alone, with a skill bank in front of the current snapshot: what papers
              on agents call "OPSD" in their tables

In the first two, the initial policy is the teacher and a reference solution its hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from turncredit.core.errors import ConfigError
from turncredit.core.needs import Needs
from turncredit.core.settings import setting
from turncredit.core.types import Array, Credit, Group
from turncredit.credit.gaps import gaps_of
from turncredit.credit.terms import check_not_negative, everywhere, gap_means, gap_metrics

NEEDS_TEACHER = True
FORMS = ("sampled", "jsd", "gated")
_COEFFICIENT: Mapping[str, float] = {"sampled": 1.0, "jsd": 1.0, "gated": 0.01}


@dataclass(frozen=True)
class Config:
    """Settings of OPSD; the defaults are those each form was published with."""

    form: Literal["sampled", "jsd", "gated"] = setting(
        "sampled", "reverse KL of the sampled token; divergence over the vocabulary; SDAR's term"
    )
    coefficient: float | None = setting(None, "weight of the signal [1; gated: 0.01]")
    jsd_beta: float = setting(0.5, "jsd: share of the teacher in the mixture")
    jsd_temperature: float = setting(1.1, "jsd: divides the log-probs of both sides")
    vocabulary: int = setting(-1, "jsd: the teacher's likeliest tokens compared; -1: all")
    gate_beta: float = setting(5.0, "gated: how sharply the gate opens with the gap")

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ConfigError(f"form must be one of {', '.join(FORMS)}; got {self.form!r}")
        check_not_negative(coefficient=self.weight, gate_beta=self.gate_beta)
        if not 0 <= self.jsd_beta <= 1:
            raise ConfigError(f"jsd_beta must lie in [0, 1]; got {self.jsd_beta}")
        if not self.jsd_temperature > 0:
            raise ConfigError(f"jsd_temperature must be above 0; got {self.jsd_temperature}")
        if self.vocabulary != -1 and self.vocabulary < 2:
            raise ConfigError(
                f"vocabulary must be -1 (all) or at least 2 tokens; got {self.vocabulary}"
            )

    @property
    def weight(self) -> float:
        """The coefficient, or that of the form."""
        return _COEFFICIENT[self.form] if self.coefficient is None else self.coefficient


def needs(config: Config) -> Needs:
    """What a form asks for."""
    if config.form == "gated":
        return Needs(hint="skillbank", term="sdar", policy_gradient=False)
    own = Needs(
        hint="reference", snapshot="initial", loss="importance_sampling", policy_gradient=False
    )
    if config.form == "jsd":
        return replace(own, term="jsd", vocabulary=config.vocabulary)
    return replace(own, zero_on_equal=False)


NEEDS = needs(Config())


def loss_settings(config: Config) -> Mapping[str, float]:
    """What the loss of the form has to know."""
    if config.form == "gated":
        return {"sdar_beta": config.gate_beta}
    if config.form == "jsd":
        return {"jsd_beta": config.jsd_beta, "jsd_temperature": config.jsd_temperature}
    return {}


def credit(group: Group, config: Config) -> Credit:
    """The gap of every action token as its advantage, or a term's weight on every one.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    nothing = everywhere(group, 0.0)
    sampled = config.form == "sampled"
    return Credit(
        _weighted_gaps(group, config.weight) if sampled else nothing,
        distill=None if sampled else _weights(group, config),
        figures={"gap": gap_means(group)},
        metrics=gap_metrics(group),
    )


def _weighted_gaps(group: Group, weight: float) -> tuple[tuple[Array, ...], ...]:
    return tuple(
        tuple(weight * gap_N for gap_N in gaps_of(trajectory)) for trajectory in group.trajectories
    )


def _weights(group: Group, config: Config) -> tuple[tuple[Array, ...], ...]:
    weights = everywhere(group, config.weight)
    if config.form == "gated":
        return weights
    # A turn no look covered (its gaps are exactly 0) has no distribution to compare with.
    return tuple(
        tuple(
            weight_N if gap_N.any() else np.zeros(len(weight_N))
            for weight_N, gap_N in zip(weight_K, gaps_of(trajectory), strict=True)
        )
        for weight_K, trajectory in zip(weights, group.trajectories, strict=True)
    )
