"""The layers of a network with fewer passes over memory, forward and backward, for training.

Between two matrix products a layer of the usual families does little arithmetic but writes many
intermediate results, and keeps most of them for the backward pass. Here an adapted linear layer, a
gated MLP and a normalisation are one step each that keeps what its gradient needs and no more. The
modules, their tensors and their files stay what they are: an instance gets another `forward`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, silu

from turncredit.backends.local.trials import UNFIT


def lighten(model: nn.Module) -> int:
    """Give the modules of a known form their light forward; returns how many got one."""
    dtype = getattr(model, "dtype", torch.float32)
    return sum(_lighter(module, dtype) for module in list(model.modules()))


def _lighter(module: Any, dtype: torch.dtype) -> bool:
    if _is_plain_lora(module):
        module.forward = _Lora(module)
    elif _is_gated_mlp(module, dtype):
        module.forward = _Gated(module)
    elif _is_plain_norm(module):
        module.forward = _Norm(module)
    else:
        return False
    return True


# ── linear layers with an adapter ────────────────────────────────────────────────────────────


class _Lora:
    """base(x) + scaling B A x, the adapter in the number format of x (its masters stay float32)."""

    def __init__(self, module: Any) -> None:
        (name,) = module.active_adapters
        self._base = module.base_layer
        self._down, self._up = module.lora_A[name], module.lora_B[name]
        self._scaling = float(module.scaling[name])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, -2)
        down, up = (layer.weight.to(x.dtype) for layer in (self._down, self._up))
        if type(self._base) is nn.Linear:
            base = self._base.weight, self._base.bias
            out = _Adapted.apply(flat, *base, down, up, self._scaling)
        else:  # packed weights: only the layer itself knows how to multiply by them
            out = torch.addmm(self._base(flat), linear(flat, down), up.t(), alpha=self._scaling)
        return out.view(*x.shape[:-1], -1)


class _Adapted(torch.autograd.Function):
    """x W' + b + scaling x A' B' for x (N, in); no gradient by W and b.

    Each small product is added into the large one, which saves writing it out on its own.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        inner = linear(x, down)
        ctx.save_for_backward(x, weight, down, up, inner)
        ctx.scaling = scaling
        return linear(x, weight, bias).addmm_(inner, up.t(), alpha=scaling)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight, down, up, inner = ctx.saved_tensors
        (grad,) = grads
        by_inner = grad @ up
        if ctx.scaling != 1:
            by_inner *= ctx.scaling
        by_x = (grad @ weight).addmm_(by_inner, down) if ctx.needs_input_grad[0] else None
        by_up = grad.t() @ inner
        if ctx.scaling != 1:
            by_up *= ctx.scaling
        return by_x, None, None, by_inner.t() @ x, by_up, None


def _is_plain_lora(module: Any) -> bool:
    """PEFT's linear layer with one adapter, and nothing special about it."""
    from peft.tuners.lora import Linear

    if type(module) is not Linear or module.lora_variant or module.merged:
        return False
    names = list(module.active_adapters)
    return (
        len(names) == 1
        and isinstance(module.lora_dropout[names[0]], nn.Identity)
        and module.lora_B[names[0]].bias is None
    )


# ── gated MLPs ───────────────────────────────────────────────────────────────────────────────


class _Gated:
    """down(silu(gate(x)) up(x)), keeping the two inputs of the product alone."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        m = self._module
        return m.down_proj(_SiluTimes.apply(m.gate_proj(x), m.up_proj(x)))


class _SiluTimes(torch.autograd.Function):
    """silu(gate) * up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        gate, up = ctx.saved_tensors
        by_gate = torch.ops.aten.silu_backward(grads[0] * up, gate)
        return by_gate, silu(gate).mul_(grads[0])


@torch.no_grad()
def _is_gated_mlp(module: Any, dtype: torch.dtype) -> bool:
    """One that gives the numbers of `_Gated`: Falcon-H1 multiplies, DeepSeek-V4 clamps besides."""
    children = dict(module.named_children())
    if set(children) != {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return False
    if type(children["act_fn"]).__name__ not in ("SiLU", "SiLUActivation"):
        return False
    width, device = module.gate_proj.in_features, next(module.parameters()).device
    usual = torch.linspace(-2, 3, 2 * width, device=device).view(2, -1).to(dtype)
    x = torch.cat([usual, 100 * usual])  # what is cut off shows where it is large
    try:
        want = module(x).float()
    except UNFIT:  # it is called with more than this
        return False
    apart = (_Gated(module)(x).float() - want).norm(dim=-1)
    return bool((apart <= (1e-2 if dtype.itemsize < 4 else 1e-5) * want.norm(dim=-1)).all())


# ── normalisations ───────────────────────────────────────────────────────────────────────────


class _Norm:
    """Root mean square normalisation with frozen weights."""

    def __init__(self, module: Any) -> None:
        self._weight, self._eps = module.weight, float(module.variance_epsilon)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _Normalised.apply(x, self._weight, self._eps)


class _Normalised(torch.autograd.Function):
    """x / rms(x) * weight over the last axis, in float32 at least; no gradient by the weight.

    With r = 1 / rms and g the gradient of x r: that of x is r g - x r^3 mean(g x).
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, inverse, weight)
        return (wide * inverse).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, inverse, weight = ctx.saved_tensors
        wide = x.to(inverse.dtype)
        grad = (grads[0] * weight).to(inverse.dtype)
        share = torch.linalg.vecdot(grad, wide)[..., None].mul_(inverse.pow(3)).div_(x.shape[-1])
        return torch.addcmul(grad.mul_(inverse), wide, share, value=-1).to(x.dtype), None, None


def _is_plain_norm(module: Any) -> bool:
    """A frozen normalisation that gives the numbers of `_Norm`."""
    if not type(module).__name__.endswith("RMSNorm") or not hasattr(module, "variance_epsilon"):
        return False
    weight = module.weight
    if weight.requires_grad:
        return False
    x = torch.linspace(-2, 3, 3 * len(weight), device=weight.device).view(3, -1).to(weight.dtype)
    with torch.no_grad():
        return torch.allclose(module(x), _Norm(module)(x), rtol=1e-2 if x.itemsize < 4 else 1e-5)
