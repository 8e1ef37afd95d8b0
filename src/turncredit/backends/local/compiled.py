"""`torch.compile` for norms and MLPs: what has no attention in it, and element-wise work to fuse.

Every layer runs the same code, so one compilation (about 20 CPU seconds, with any number of tokens)
serves them all. It is used for passes of many tokens only: a decoding step is all overhead, which
the guards of compiled code make larger. What does not compile, or gives other numbers, stays as it
was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from turncredit.backends.local.policy import Policy

_MANY = 64  # tokens of a pass from which compiled code is used
_FAILURES = (RuntimeError, OSError, ImportError, AssertionError, AttributeError, TypeError)
_BOUNDS = {torch.float32: 1e-4}  # of the difference's norm, as a share of the norm
_LOOSE = 0.05  # the same bound in other formats

Forward = Callable[..., torch.Tensor]


def compile_blocks(policy: Policy) -> bool:
    """Compile what pays; whether it is in use. Says why not, as a warning."""
    blocks = _blocks(policy.model)
    if not blocks:
        return _refuse("no decoder layers of a known form")
    want = _numbers(policy)
    switches = [_Switch(block) for block in blocks]
    try:
        found = _numbers(policy)
    except _FAILURES as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    else:
        failed = next((switch.reason for switch in switches if switch.reason), "")
        reason = failed or _difference(policy, want, found)
    if not reason:
        return True
    for switch in switches:
        switch.undo()
    policy.model.zero_grad()
    return _refuse(reason)


def in_use(policy: Policy) -> bool:
    """Some module of the network has compiled code that works."""
    forwards = (getattr(module.forward, "__self__", None) for module in policy.model.modules())
    return any(isinstance(owner, _Switch) and not owner.reason for owner in forwards)


class _Switch:
    """A module whose forward is compiled code for large inputs, and its own otherwise."""

    def __init__(self, module: nn.Module) -> None:
        self.reason = ""
        self._module, self._eager = module, module.forward
        self._fused: Forward = torch.compile(module.forward, dynamic=True)
        module.forward = self.forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Whichever is right for this input."""
        if self.reason or x.numel() < _MANY * x.shape[-1]:
            return self._eager(x)
        try:
            return self._fused(x)
        except _FAILURES as error:  # an error of the computation itself comes again below
            self.reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            return self._eager(x)

    def undo(self) -> None:
        """The module as it was."""
        self._module.forward = self._eager


def _blocks(model: Any) -> list[nn.Module]:
    """Of every decoder layer what is not attention, and the norm at the end."""
    body = model.get_decoder()
    layers = list(getattr(body, "layers", []))
    inner = [
        child
        for layer in layers
        for name, child in layer.named_children()
        if "attn" not in name and "attention" not in type(child).__name__.lower()
    ]
    last = getattr(body, "norm", None)
    return [*inner, *([last] if inner and isinstance(last, nn.Module) else [])]


def _numbers(policy: Policy) -> list[torch.Tensor]:
    """States without gradients, states with, and the gradient of a made-up sum of them."""
    ids = [(7 * i + 3) % policy.vocabulary for i in range(2 * _MANY)]
    parameters = policy.mount(policy.copy_trained())
    with torch.no_grad():
        scored = policy.full([ids]).float()
    states = policy.full([ids]).float()
    # Not the squares: a norm makes their sum constant, and its gradient noise.
    (states * torch.arange(states.shape[-1], device=states.device).sin()).sum().backward()
    gradients = [p.grad.float().flatten() for p in parameters.values() if p.grad is not None]
    for parameter in parameters.values():
        parameter.grad = None
    return [scored, states.detach(), torch.cat(gradients)]


def _difference(policy: Policy, want: list[torch.Tensor], found: list[torch.Tensor]) -> str:
    bound = _BOUNDS.get(policy.model.dtype, _LOOSE)
    for a, b in zip(want, found, strict=True):
        if a.shape != b.shape or float((a - b).norm()) > bound * float(a.norm()):
            return "compiled code gives other numbers"
    return ""


def _refuse(reason: str) -> bool:
    warnings.warn(f"--compile is not in use: {reason}", stacklevel=3)
    return False
