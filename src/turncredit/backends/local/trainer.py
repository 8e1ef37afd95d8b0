"""Gradients, the optimizer, and what they report. Synchronous; knows no files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from turncredit.backends.local.losses import Loss
from turncredit.backends.local.policy import Policy, Tensors
from turncredit.backends.local.score import token_logprobs
from turncredit.core.datum import Datum
from turncredit.core.protocols import AdamParams
from turncredit.core.types import Array


@dataclass(slots=True)
class Tally:
    """Sums over the action tokens of one call."""

    tokens: int = 0
    loss: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    clipped: int = 0
    kl: float = 0.0

    def add(
        self, loss: Loss, loss_N: torch.Tensor, ratio_N: torch.Tensor, adv: torch.Tensor
    ) -> None:
        """Count the N action tokens of one pass."""
        with torch.no_grad():
            self.tokens += len(loss_N)
            self.loss += float(loss_N.sum())
            self.ratio += float(ratio_N.sum())
            self.ratio_max = max(self.ratio_max, float(ratio_N.max()))
            self.clipped += int(loss.was_clipped(ratio_N, adv).sum())
            # The k3 estimator: never negative, low variance.
            self.kl += float((ratio_N - 1 - ratio_N.log()).sum())

    def metrics(self) -> dict[str, float]:
        """Means per action token, but for `loss`, the sum that was differentiated."""
        n = max(1, self.tokens)
        return {
            "loss": self.loss,
            "ratio_mean": self.ratio / n,
            "ratio_max": self.ratio_max,
            "clip_fraction": self.clipped / n,
            "approx_kl": self.kl / n,
            "action_tokens": float(self.tokens),
        }


@dataclass(slots=True)
class Trainer:
    """The live weights, their gradients and AdamW's moments.

    `exp_avg` and `exp_avg_sq` have the names of `weights`; `steps` counts optimizer steps.
    """

    policy: Policy
    weights: Tensors
    exp_avg: Tensors = field(default_factory=dict)
    exp_avg_sq: Tensors = field(default_factory=dict)
    steps: int = 0
    gradients: Tensors = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.exp_avg:
            self.exp_avg = {n: torch.zeros_like(w) for n, w in self.weights.items()}
            self.exp_avg_sq = {n: torch.zeros_like(w) for n, w in self.weights.items()}

    def micro_batches(self, data: Sequence[Datum], batch_tokens: int) -> Iterator[list[int]]:
        """Indices of rows per pass: similar lengths together, ≤ `batch_tokens` padded tokens."""
        order = sorted(range(len(data)), key=lambda i: (len(data[i].tokens), i))
        batch: list[int] = []
        for i in order:
            if batch and (len(batch) + 1) * len(data[i].tokens) > batch_tokens:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def accumulate(self, rows: Sequence[Datum], loss: Loss, tally: Tally) -> list[Array]:
        """Add the gradient of the summed loss of `rows`; returns new log-probs, (T,) each.

        Only action positions go through the LM head, so no other logit can influence the loss.
        """
        parameters = self.policy.mount(self.weights)
        device = self.policy.device
        hidden = self.policy.full([row.tokens.tolist() for row in rows])
        where = [np.flatnonzero(row.mask) for row in rows]
        batch_N = np.concatenate([np.full(len(w), b) for b, w in enumerate(where)])
        at_N = np.concatenate(where)
        old, advantage = (
            torch.tensor(
                np.concatenate([getattr(r, name)[w] for r, w in zip(rows, where, strict=True)]),
                dtype=torch.float32,
                device=device,
            )
            for name in ("logprobs", "advantages")
        )
        targets = torch.tensor(
            np.concatenate([r.tokens[w] for r, w in zip(rows, where, strict=True)]), device=device
        )
        predicts = hidden[torch.as_tensor(batch_N), torch.as_tensor(at_N - 1)]
        new = token_logprobs(self.policy, predicts, targets)
        loss_N, ratio_N = loss(new, old, advantage)
        if bool(advantage.any()):
            loss_N.sum().backward()
            self._collect(parameters)
        tally.add(loss, loss_N, ratio_N, advantage)
        return _spread(new, rows, where)

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
        self.steps += 1
        for name, gradient in gradients.items():
            self._adamw(name, gradient, adam)
        return {"grad_norm": norm, "skipped_steps": 0.0}

    def _collect(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                held = self.gradients.get(name)
                self.gradients[name] = gradient if held is None else held.add_(gradient)

    @torch.no_grad()
    def _adamw(self, name: str, gradient: torch.Tensor, adam: AdamParams) -> None:
        """Decoupled weight decay, bias-corrected moments (Loshchilov and Hutter 2019)."""
        weight, mean, square = self.weights[name], self.exp_avg[name], self.exp_avg_sq[name]
        weight.mul_(1 - adam.learning_rate * adam.weight_decay)
        mean.lerp_(gradient, 1 - adam.beta1)
        square.mul_(adam.beta2).addcmul_(gradient, gradient, value=1 - adam.beta2)
        rate = adam.learning_rate / (1 - adam.beta1**self.steps)
        root = (square / (1 - adam.beta2**self.steps)).sqrt_().add_(adam.eps)
        weight.addcdiv_(mean, root, value=-rate)


def _spread(new: torch.Tensor, rows: Sequence[Datum], where: list[np.ndarray]) -> list[Array]:
    """New log-probs in the layout of each row, NaN outside its action tokens."""
    values = new.detach().double().cpu().numpy()
    out: list[Array] = []
    at = 0
    for row, w in zip(rows, where, strict=True):
        filled = np.full(len(row.tokens), np.nan)
        filled[w] = values[at : at + len(w)]
        at += len(w)
        out.append(filled)
    return out
