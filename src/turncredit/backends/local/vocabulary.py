"""Terms of the whole next-token distribution, computed where the logits are: inside the head.

A *probe* maps the logits of some positions to one number each. It runs chunk by chunk, so that no
more than a few chunks of logits ever exist; what it compares with stays in host memory until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from turncredit.core.datum import Distribution
from turncredit.core.losses import LossSpec

# (logits (n, V) of the positions `at`, `at`) -> (n,)
Probe = Callable[[torch.Tensor, slice], torch.Tensor]


def entropy(logits: torch.Tensor, at: slice) -> torch.Tensor:
    """Entropy of softmax(logits), nats, (n,)."""
    return logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Generalised Jensen-Shannon divergence from given distributions, over their tokens.

    beta = 0 is KL(teacher, student), beta = 1 KL(student, teacher). Where fewer than all tokens
    are given, both sides are renormalised over them.

    Attributes:
        given: of the row each of the N positions belongs to; None where it is not used.
        position_N: of each position, its index in that row.
        used_N: False where the term has no weight; nothing is computed there.
        beta: weight of the teacher in the mixture.
        temperature: the student's logits are divided by it (the teacher's were when it was asked).
    """

    given: Sequence[Distribution | None]
    position_N: np.ndarray
    used_N: np.ndarray
    beta: float
    temperature: float

    def __call__(self, logits: torch.Tensor, at: slice) -> torch.Tensor:
        """The divergence at the positions `at`, nats, (n,); 0 where it is not used."""
        used = self.used_N[at]
        out = logits.new_zeros(len(logits))
        pairs = zip(self.given[at], self.position_N[at], used, strict=True)
        wanted = [(d, t) for d, t, u in pairs if u and d is not None]
        if not wanted:
            return out
        ids = np.stack([d.ids[t] for d, t in wanted])
        teacher = torch.from_numpy(np.stack([d.logprobs[t] for d, t in wanted]))
        places = torch.from_numpy(used).to(logits.device)
        scaled = logits[places] / self.temperature
        # A whole vocabulary in order needs no index as large as the logits.
        if not _is_everything(ids, logits.shape[-1]):
            scaled = scaled.gather(-1, torch.from_numpy(ids).to(logits.device))
        student, teacher = scaled.log_softmax(-1), teacher.to(logits.device).log_softmax(-1)
        return out.masked_scatter(places, divergence(student, teacher, self.beta))


def divergence(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """Of log-probs (n, k): beta KL(T, M) + (1 - beta) KL(S, M), M the mixture; (n,)."""
    if beta == 0:
        return _kl(teacher, student)
    if beta == 1:
        return _kl(student, teacher)
    mixture = torch.logaddexp(student + math.log1p(-beta), teacher + math.log(beta))
    return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)


def divergence_settings(term: str, spec: LossSpec) -> tuple[float, float]:
    """The beta and temperature of a term: `topk` is KL(teacher, student) at temperature 1."""
    if term == "topk":
        return 0.0, 1.0
    return spec.settings["jsd_beta"], spec.settings["jsd_temperature"]


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p.exp() * (p - q)).sum(-1)


def _is_everything(ids: np.ndarray, vocabulary: int) -> bool:
    return ids.shape[1] == vocabulary and bool((ids == np.arange(vocabulary)).all())
