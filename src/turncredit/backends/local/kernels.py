"""Attention that also says its log-sum-exp, forward and backward, per kind of device.

Two attentions over different keys can be joined afterwards if each gives the logarithm of the sum
of its exponentials (lse). The backward pass of either part needs only the *joined* output and lse:
p = exp(score - lse) is then the part's share of the whole softmax, which is also how rings of
devices split attention. Autograd cannot say this, so `attention.Packed` calls both passes itself.

Shapes: queries (B, H, S, d), keys and values (B, H, L, d), output (B, H, S, d), lse (B, H, S) in
float32 at least. A causal call has S = L. The heads of keys and values may be one in memory
(stride 0): their gradients still come with H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

_aten: Any = torch.ops.aten
_LSE_BLOCK = 32  # rows of lse the memory-efficient kernel works on

Aux = tuple[Any, ...]  # what a kernel's backward wants back from its forward
Forward = Callable[..., tuple[torch.Tensor, torch.Tensor, Aux]]
Backward = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One implementation.

    Attributes:
        name: for people.
        forward: (q, k, v, causal, scale) → output, lse, aux.
        backward: (grad, q, k, v, output, lse, aux, causal, scale) → gradients of q, k, v.
    """

    name: str
    forward: Forward
    backward: Backward


def candidates(device: torch.device, dtype: torch.dtype) -> list[Kernel]:
    """What may work here, fastest first; the last one always does."""
    if device.type == "cpu":
        return [FLASH_CPU, MATH]
    if device.type == "cuda":
        return [FLASH if dtype in (torch.float16, torch.bfloat16) else EFFICIENT, MATH]
    return [MATH]


def _math_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor, Aux]:
    scores = _scores(q, k, causal, scale)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse, ()


def _math_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    aux: Aux,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    share = (_scores(q, k, causal, scale) - lse[..., None]).exp()
    grad_v = share.to(v.dtype).mT @ grad
    inner = (grad * out).sum(-1, keepdim=True)
    grad_scores = (share * ((grad @ v.mT) - inner) * scale).to(q.dtype)
    return grad_scores @ k, grad_scores.mT @ q, grad_v


def _scores(q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    scores = (q @ k.mT) * scale
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def _cpu_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor, Aux]:
    out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out, lse, ()


def _cpu_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    aux: Aux,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, lse, 0.0, causal, scale=scale
    )


def _flash_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor, Aux]:
    out, lse, *aux = _aten._scaled_dot_product_flash_attention(
        q, k.contiguous(), v.contiguous(), 0.0, causal, False, scale=scale
    )
    return out, lse, tuple(aux[:6])


def _flash_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    aux: Aux,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    sizes, random = aux[:4], aux[4:]
    k, v, lse = k.contiguous(), v.contiguous(), lse.contiguous()
    return _aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, out, lse, *sizes, 0.0, causal, *random, scale=scale
    )


def _efficient_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor, Aux]:
    out, lse, *aux = _aten._scaled_dot_product_efficient_attention(
        q, k.contiguous(), v.contiguous(), None, True, 0.0, causal, scale=scale
    )
    return out, lse[..., : q.shape[2]], tuple(aux)


def _efficient_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    aux: Aux,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    k, v = k.contiguous(), v.contiguous()
    # Rows beyond the last query are given no share of anything: exp(score - inf) = 0.
    lse = pad(lse, (0, -lse.shape[-1] % _LSE_BLOCK), value=torch.inf).contiguous()
    wanted = [True, True, True, False]
    grads = _aten._scaled_dot_product_efficient_attention_backward(
        grad, q, k, v, None, out, lse, *aux, 0.0, wanted, causal, scale=scale
    )
    return grads[0], grads[1], grads[2]


MATH = Kernel("math", _math_forward, _math_backward)
FLASH_CPU = Kernel("flash (CPU)", _cpu_forward, _cpu_backward)
FLASH = Kernel("flash", _flash_forward, _flash_backward)
EFFICIENT = Kernel("memory-efficient", _efficient_forward, _efficient_backward)
