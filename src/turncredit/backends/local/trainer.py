"""Gradients, the optimizer, and what they report. Synchronous; knows no files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from turncredit.backends.contract import VOCABULARY, coefficient, has_signal
from turncredit.backends.local.batch import ActionTokens
from turncredit.backends.local.losses import TOKEN_TERMS, PolicyLoss, policy_loss
from turncredit.backends.local.microbatches import packed, padded, trained_row
from turncredit.backends.local.optimizer import Optimizer
from turncredit.backends.local.passes import Passes
from turncredit.backends.local.policy import Policy, Tensors
from turncredit.backends.local.score import token_logprobs
from turncredit.core.calls import AdamParams
from turncredit.core.datum import Datum
from turncredit.core.losses import LossSpec
from turncredit.core.types import Array


@dataclass(slots=True)
class Tally:
    """Sums over the action tokens of one call.

    `terms` holds, per term, the sum of its values over the tokens that have a weight in it, and
    their number.
    """

    tokens: int = 0
    loss: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    clipped: int = 0
    floored: int = 0
    kl: float = 0.0
    terms: dict[str, tuple[float, int]] = field(default_factory=dict)

    @torch.no_grad()
    def add(self, loss_N: torch.Tensor, policy: PolicyLoss) -> None:
        """Count the N action tokens of one pass."""
        self.tokens += len(loss_N)
        self.loss += float(loss_N.sum())
        self.ratio += float(policy.ratio_N.sum())
        self.ratio_max = max(self.ratio_max, float(policy.ratio_N.max()))
        self.clipped += int(policy.clipped_N.sum())
        self.floored += int(policy.floored_N.sum())
        # The k3 estimator: never negative, low variance.
        self.kl += float((policy.ratio_N - 1 - policy.ratio_N.log()).sum())

    @torch.no_grad()
    def add_term(self, term: str, value_N: torch.Tensor, weight_N: torch.Tensor) -> None:
        """Count what a term says about the tokens that have a weight in it."""
        total, tokens = self.terms.get(term, (0.0, 0))
        used = weight_N != 0
        self.terms[term] = total + float(value_N[used].sum()), tokens + int(used.sum())

    def metrics(self) -> dict[str, float]:
        """Means per action token, but for `loss`, the sum that was differentiated.

        A term's mean has neither weight nor coefficient in it: nats of KL, entropy or divergence.
        """
        n = max(1, self.tokens)
        return {
            "loss": self.loss,
            "ratio_mean": self.ratio / n,
            "ratio_max": self.ratio_max,
            "clip_fraction": self.clipped / n,
            "dual_clip_fraction": self.floored / n,
            "approx_kl": self.kl / n,
            "action_tokens": float(self.tokens),
            **{term: total / max(1, tokens) for term, (total, tokens) in self.terms.items()},
        }


@dataclass(slots=True)
class Trainer:
    """The live weights, their gradients, their optimizer, and perhaps an average of the weights.

    `average` has the names of `weights`. It is float32 on any model: bfloat16 would lose every
    small change.
    """

    passes: Passes
    weights: Tensors
    optimizer: Optimizer
    gradients: Tensors = field(default_factory=dict)
    average: Tensors = field(default_factory=dict)
    decay: float = 0.0

    @property
    def policy(self) -> Policy:
        """The network."""
        return self.passes.policy

    @property
    def steps(self) -> int:
        """Optimizer steps made."""
        return self.optimizer.steps

    def micro_batches(self, data: Sequence[Datum], batch_tokens: int) -> list[list[int]]:
        """Indices of rows per pass of `batch_tokens` computed tokens or fewer."""
        most = self.passes.room(batch_tokens)
        rows = [trained_row(row) for row in data]
        if self.passes.kernel is None:
            return padded([len(ids) for _, ids, _ in rows], most)
        if not self.passes.share:
            rows = [(i, ids, 0) for i, (_, ids, _) in enumerate(rows)]
        return packed([(key, len(ids), shared) for key, ids, shared in rows], most)

    def accumulate(self, rows: Sequence[Datum], spec: LossSpec, tally: Tally) -> list[Array]:
        """Add the gradient of the summed loss of `rows`; returns new log-probs, (T,) each.

        Only action positions go through the LM head, so no other logit can influence the loss.
        """
        parameters = self.policy.mount(self.weights)
        tokens = ActionTokens(rows, self.policy.device)
        wanted = any(has_signal(row, spec) for row in rows)
        with torch.set_grad_enabled(wanted):
            loss_N, policy, new = self._losses(tokens, spec, tally)
            if wanted:
                loss_N.sum().backward()
                self._collect(parameters)
        tally.add(loss_N, policy)
        return tokens.spread(new)

    def _losses(
        self, tokens: ActionTokens, spec: LossSpec, tally: Tally
    ) -> tuple[torch.Tensor, PolicyLoss, torch.Tensor]:
        """Loss (N,), its policy part, and the new log-probs (N,)."""
        states = self.passes.states([trained_row(row) for row in tokens.rows])
        probed = [term for term in spec.terms if term in VOCABULARY]
        new, *seen = token_logprobs(
            self.policy,
            tokens.predicting(states),
            tokens.targets(),
            [tokens.probe(term, spec) for term in probed],
        )
        policy = policy_loss(
            spec, new, tokens.stream("logprobs"), tokens.stream("advantages"), tokens.row_N
        )
        loss_N = policy.loss_N
        values = dict(zip(probed, seen, strict=True))
        for term in spec.terms:
            value_N = values[term] if term in values else _token_term(term, new, tokens, spec)
            weight_N = tokens.weight(term)
            loss_N = loss_N + _factor(term, spec) * weight_N * value_N
            tally.add_term(term, value_N, weight_N)
        return loss_N, policy, new

    def optimize(self, adam: AdamParams) -> dict[str, float]:
        """One AdamW step; clears the gradients. A non-finite gradient changes nothing."""
        gradients, self.gradients = self.gradients, {}
        if not gradients:
            return {"grad_norm": 0.0, "skipped_steps": 1.0}
        norms = torch.stack([g.norm() for g in gradients.values()])
        norm = float(norms.norm())
        if not math.isfinite(norm):
            return {"grad_norm": norm, "skipped_steps": 1.0, "nonfinite_gradients": 1.0}
        if adam.grad_clip_norm > 0:
            scale = min(1.0, adam.grad_clip_norm / (norm + 1e-6))
            gradients = {n: g * scale for n, g in gradients.items()}
        self.optimizer.step(self.weights, gradients, adam)
        for name, average in self.average.items():
            average.mul_(self.decay).add_(self.weights[name].float(), alpha=1 - self.decay)
        return {"grad_norm": norm, "skipped_steps": 0.0}

    def track_average(self, decay: float) -> None:
        """Average the weights from now on, starting at the present ones unless there is one."""
        self.decay = decay
        if not self.average:
            self.average = {n: w.float().clone() for n, w in self.weights.items()}

    def _collect(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                held = self.gradients.get(name)
                self.gradients[name] = gradient if held is None else held.add_(gradient)


def _token_term(term: str, new: torch.Tensor, tokens: ActionTokens, spec: LossSpec) -> torch.Tensor:
    old, against = tokens.stream("logprobs"), tokens.against(term)
    return TOKEN_TERMS[term](new, old, against, spec.settings)


def _factor(term: str, spec: LossSpec) -> float:
    """What multiplies weight and value in the loss; more entropy is a lower loss."""
    return -coefficient(spec, term) if term == "entropy" else coefficient(spec, term)
