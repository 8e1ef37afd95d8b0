"""Contrast: what counts is how much more the *right* hint likes a token than wrong hints do.

Per token t of a trajectory with group-relative advantage A:

    contrast   c_t = right_t - log(mean over wrong hints j of exp(wrong_tj))
    weight     w_t = clip(exp(sign(A) c_t), 1 - bound, 1 + bound)
    advantage  A_t = A ((1 - mix) + mix w_t)

right and wrong_j are log-probs of the same tokens by the same snapshot under each hint. Any hint
makes a policy terser and surer of itself; what all hints have in common cancels here.

*Our reading*, and not that paper's method: written after the truncated public abstract of
"Contrastive Reinforced Policy Optimization via Privileged Self-Distillation". One right hint
against the log-mean of several wrong ones is the contrast of a near relative (arXiv 2606.11709);
the weight, its bound and the mix are RLSD's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from turncredit.core.needs import Needs
from turncredit.core.types import Array, Credit, Group, Trajectory
from turncredit.credit.gaps import joined, scored, split
from turncredit.credit.weights import TokenConfig, by_leaning

NEEDS_TEACHER = True
NEEDS = Needs(hint="contrast", mix="mix", bound="weight_bound", streams=("wrong0",))

_WRONG = re.compile(r"wrong\d+")


@dataclass(frozen=True)
class Config(TokenConfig):
    """Settings of the contrast: our reading after CRPO's abstract, not that paper's method."""


def contrast(trajectory: Trajectory) -> tuple[Array, ...]:
    """Contrast c of every action token, per turn (N,), nats.

    Without a wrong look (streams named wrong0, wrong1, ...) the student's own score stands in:
    then c is the plain gap.

    Raises:
        ConfigError: the trajectory has not been scored by a teacher.
    """
    judged = scored(trajectory)
    names = sorted(name for name in judged.streams if _WRONG.fullmatch(name))
    if not names:
        return judged.gap_K
    wrong_JT = np.stack([joined(judged.gap_of(name)) for name in names])
    return split(joined(judged.gap_K) - log_mean_exp(wrong_JT), judged)


def log_mean_exp(values_JT: Array) -> Array:
    """log(mean over J of exp(values)), (T,), without overflow."""
    top_T = values_JT.max(axis=0)
    return top_T + np.log(np.exp(values_JT - top_T).mean(axis=0))


def credit(group: Group, config: Config) -> Credit:
    """Token-level credit of a group scored under a right hint and wrong ones.

    Raises:
        ConfigError: a trajectory has not been scored by a teacher.
    """
    return by_leaning(group, [contrast(t) for t in group.trajectories], config)
