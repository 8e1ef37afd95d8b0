"""Attention over a pack, differentiable: the parts of `packs.Pack`, joined by log-sum-exp.

Tensors are laid out (Hkv, G, N, d): the heads that read one key head are a batch, and that key
head is shown to them without a copy (stride 0), which costs a CPU less than repeating it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from turncredit.backends.local.kernels import Aux, Kernel
from turncredit.backends.local.packs import Pack, Part

KeysValues = tuple[torch.Tensor, torch.Tensor]


@dataclass(slots=True)
class Stem:
    """Keys and values of a beginning that several packs share, per layer (1, Hkv, P, d) each.

    Attributes:
        length: P tokens.
    """

    length: int
    layers: dict[int, KeysValues] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """What attention has to know while a pack runs.

    Attributes:
        parts: who looks at whom.
        kernel: what computes each part.
        stem: keys and values before the pack, or None.
        keep: where to leave the pack's own keys and values, or None.
    """

    parts: Sequence[Part]
    kernel: Kernel
    stem: Stem | None = None
    keep: Stem | None = None

    @classmethod
    def of(
        cls, pack: Pack, kernel: Kernel, *, stem: Stem | None = None, keep: Stem | None = None
    ) -> Layout:
        """The layout of a pack; it must have been laid out for `stem`."""
        return cls(tuple(pack.parts), kernel, stem, keep)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
    ) -> torch.Tensor:
        """Attention of one layer.

        Args:
            layer: its number.
            query: (1, Hq, N, d), rotated.
            key: (1, Hkv, N, d), rotated.
            value: (1, Hkv, N, d).
            scale: factor of the scores; None: d ** -0.5.

        Returns:
            (1, N, Hq, d), contiguous.
        """
        if self.keep is not None:
            self.keep.layers[layer] = key, value
        if self.stem is not None:
            before, values = self.stem.layers[layer]
            key, value = torch.cat([before, key], 2), torch.cat([values, value], 2)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        heads, groups = key.shape[1], query.shape[1] // key.shape[1]
        q = query[0].unflatten(0, (heads, groups))
        out = _Joined.apply(q, key[0], value[0], self.parts, self.kernel, scale)
        return out.permute(2, 0, 1, 3).flatten(1, 2)[None]


class _Joined(torch.autograd.Function):
    """(Hkv, G, N, d) queries, (Hkv, L, d) keys and values → (Hkv, G, N, d), N outermost."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        parts: Sequence[Part],
        kernel: Kernel,
        scale: float,
    ) -> torch.Tensor:
        heads, groups, length, width = q.shape
        out = q.new_zeros(length, heads, groups, width).permute(1, 2, 0, 3)
        # Attention keeps its lse in float32 whatever it reads, unless that is wider.
        lse = q.new_full(
            (heads, groups, length), -torch.inf, dtype=torch.promote_types(q.dtype, torch.float32)
        )
        aux: list[Aux] = []
        seen = 0  # queries before this one have an output
        for part in parts:
            at = part.queries
            o, s, a = kernel.forward(*_views(q, k, v, part), part.causal, scale)
            aux.append(a)
            if at.stop > seen:  # parts come in order, so these queries are all new
                out[:, :, at], lse[:, :, at], seen = o, s, at.stop
            else:
                _join(out[:, :, at], lse[:, :, at], o, s)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.parts, ctx.kernel, ctx.scale, ctx.aux = parts, kernel, scale, aux
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        q, k, v, out, lse = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for part, aux in zip(ctx.parts, ctx.aux, strict=True):
            at = part.queries
            found = ctx.kernel.backward(
                grad[:, :, at],
                *_views(q, k, v, part),
                out[:, :, at],
                lse[:, :, at],
                aux,
                part.causal,
                ctx.scale,
            )
            grad_q[:, :, at] += found[0]
            grad_k[:, part.keys] += found[1].sum(1)
            grad_v[:, part.keys] += found[2].sum(1)
        return grad_q, grad_k, grad_v, None, None, None


def _views(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, part: Part
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What one part reads, its key heads shown to all heads of their group."""
    groups = q.shape[1]
    key, value = (x[:, None, part.keys].expand(-1, groups, -1, -1) for x in (k, v))
    return q[:, :, part.queries], key, value


def _join(out: torch.Tensor, lse: torch.Tensor, more: torch.Tensor, its_lse: torch.Tensor) -> None:
    """Attention over two sets of keys from that over each, in place; joined in lse's precision."""
    share = (its_lse - lse).sigmoid()[..., None]  # of the second set
    out.copy_(torch.lerp(out.to(lse.dtype), more.to(lse.dtype), share))
    lse.copy_(torch.logaddexp(lse, its_lse))
