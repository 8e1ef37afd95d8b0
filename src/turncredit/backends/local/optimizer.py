"""AdamW over named tensors, in float32 or with 8-bit moments.

Decoupled weight decay, bias-corrected moments: Loshchilov and Hutter 2019, arXiv:1711.05101. The
8-bit one keeps both moments as one byte each, scaled per block of 256 numbers: Dettmers et al.
2022, arXiv:2110.02861. It saves six of eight bytes a trained parameter, so it matters when all
parameters are trained, hardly with LoRA.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from turncredit.backends.local import state
from turncredit.core.calls import AdamParams

Tensors = dict[str, torch.Tensor]


class Optimizer(Protocol):
    """Moments of named weights.

    Attributes:
        name: as in `--optimizer`.
        steps: updates made.
    """

    name: str
    steps: int

    def step(self, weights: Tensors, gradients: Tensors, adam: AdamParams) -> None:
        """Update `weights` in place where there is a gradient."""
        ...

    def files(self) -> Mapping[str, Tensors]:
        """What must be saved: a file name each."""
        ...

    def restore(self, folder: Path, steps: int) -> None:
        """Continue with files saved before.

        Raises:
            DataError: they are unreadable or of another model.
        """
        ...


def make(name: str, weights: Tensors) -> Optimizer:
    """`adamw` or `adamw8bit`, its moments zero."""
    return AdamW8bit(weights) if name == "adamw8bit" else AdamW(weights)


class AdamW:
    """Moments as large as the weights."""

    name = "adamw"

    def __init__(self, weights: Tensors) -> None:
        self.steps = 0
        self.exp_avg = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.exp_avg_sq = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    @torch.no_grad()
    def step(self, weights: Tensors, gradients: Tensors, adam: AdamParams) -> None:
        """Update `weights` in place where there is a gradient."""
        self.steps += 1
        rate = adam.learning_rate / (1 - adam.beta1**self.steps)
        for name, gradient in gradients.items():
            weight, mean, square = weights[name], self.exp_avg[name], self.exp_avg_sq[name]
            weight.mul_(1 - adam.learning_rate * adam.weight_decay)
            mean.lerp_(gradient, 1 - adam.beta1)
            square.mul_(adam.beta2).addcmul_(gradient, gradient, value=1 - adam.beta2)
            root = (square / (1 - adam.beta2**self.steps)).sqrt_().add_(adam.eps)
            weight.addcdiv_(mean, root, value=-rate)

    def files(self) -> Mapping[str, Tensors]:
        """What must be saved."""
        return {"exp_avg.safetensors": self.exp_avg, "exp_avg_sq.safetensors": self.exp_avg_sq}

    def restore(self, folder: Path, steps: int) -> None:
        """Continue with files saved before."""
        self.exp_avg = state.load_tensors(folder / "exp_avg.safetensors", self.exp_avg)
        self.exp_avg_sq = state.load_tensors(folder / "exp_avg_sq.safetensors", self.exp_avg_sq)
        self.steps = steps


class AdamW8bit:
    """bitsandbytes' AdamW; tensors under 4,096 numbers keep float32 moments."""

    name = "adamw8bit"
    _file = "adamw8bit.safetensors"

    def __init__(self, weights: Tensors) -> None:
        from bitsandbytes.optim.adamw import AdamW8bit as Inner

        self.steps = 0
        self._parameters = {n: torch.nn.Parameter(w.detach()) for n, w in weights.items()}
        self._inner: Any = Inner(list(self._parameters.values()))
        (group,) = self._inner.param_groups
        for i, parameter in enumerate(self._parameters.values()):
            self._inner.init_state(group, parameter, 0, i)

    @torch.no_grad()
    def step(self, weights: Tensors, gradients: Tensors, adam: AdamParams) -> None:
        """Update `weights` in place where there is a gradient."""
        self.steps += 1
        self._inner.param_groups[0].update(
            lr=adam.learning_rate,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.weight_decay,
        )
        for name, parameter in self._parameters.items():
            parameter.data = weights[name]
            gradient = gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.dtype)
            self._inner.state[parameter]["step"] = self.steps - 1  # it counts one more itself
        self._inner.step()
        for name, parameter in self._parameters.items():
            parameter.grad = None
            if parameter.data_ptr() != weights[name].data_ptr():  # it wanted another layout
                weights[name].copy_(parameter)

    def files(self) -> Mapping[str, Tensors]:
        """What must be saved."""
        return {self._file: self._tensors()}

    def restore(self, folder: Path, steps: int) -> None:
        """Continue with files saved before."""
        own = self._tensors()
        for key, saved in state.load_tensors(folder / self._file, own).items():
            own[key].copy_(saved)
        self.steps = steps

    def _tensors(self) -> Tensors:
        """The moments as they are, with their scales; the code books (`qmap`) are constants."""
        return {
            f"{name}|{key}": value
            for name, parameter in self._parameters.items()
            for key, value in self._inner.state[parameter].items()
            if isinstance(value, torch.Tensor) and not key.startswith("qmap")
        }
