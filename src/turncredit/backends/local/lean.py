"""A forward pass without gradients and without modules, for Llama-like families in float32.

A snapshot's LoRA matrices are added to the frozen weights once, projections that read the same
input become one matrix that holds the factors of the normalisation before it, and tokens of all
rows lie flat, so that no pad is computed. What a token looks at is the caller's business: `hidden`
hands queries, keys and values to a callback.

The rotation of positions (Su et al. 2021) turns pairs of channels. Here the two channels of a pair
lie side by side, in queries and keys alike, which leaves every dot product as it was and makes the
rotation one complex multiplication.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding, silu

from turncredit.backends.local import products

# attend(layer, q (N, Hq, d), keys and values (N, 2 Hkv, d)) -> (N, Hq * d) or (N, Hq, d)
Attend = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]

_PIECE = 512  # tokens in an MLP at a time: its inner states are the widest of a layer
_BODY = {"embed_tokens", "layers", "norm", "rotary_emb"}
_BLOCK = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_ROPES = {"default", "linear", "llama3", "yarn"}  # frequencies that do not depend on the length


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear map, (out, in), and its bias if it has one."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(N, in) → (N, out)."""
        return products.linear(x, self.weight, self.bias)

    def onto(self, base: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`base` (N, out) + the map of x (N, in)."""
        out = products.added(base, x, self.weight)
        return out if self.bias is None else out.add_(self.bias)


def normalised(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Divided by the root mean square of the last axis; torch's own takes more and slower calls."""
    square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    return x * square.div_(x.shape[-1]).add_(eps).rsqrt_()


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square normalisation over the last axis, and a factor per channel."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d) → (..., d)."""
        return normalised(x, self.eps).mul_(self.weight)


@dataclass(frozen=True, slots=True)
class Block:
    """One layer's weights, fused; `before` and `between` are what its normalisations add."""

    before: float
    qkv: Matrix
    head_norms: tuple[Norm, Norm] | None  # of queries and keys (Qwen3)
    out: Matrix
    between: float
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class Lean:
    """The weights of one snapshot in the form `hidden` wants.

    Attributes:
        heads: Hq and Hkv.
        width: channels of a head.
        scale: factor of the attention scores.
    """

    blocks: tuple[Block, ...]
    last: Norm
    embed: torch.Tensor
    frequencies: torch.Tensor
    stretch: float
    heads: tuple[int, int]
    width: int
    scale: float

    @torch.no_grad()
    def hidden(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Final hidden states of N tokens, in any order.

        Args:
            ids: (N,) int64.
            positions: (N,), the place of each token in its row.
            attend: called once a layer, in order; keys come to it rotated.
            wanted: (M,) indices of the tokens whose states are asked for; None: all.

        Returns:
            (M, d) or (N, d), after the last normalisation.
        """
        x = embedding(ids, self.embed)
        turns = self._turns(positions)
        for i, block in enumerate(self.blocks):
            mixed = attend(i, *self._projected(block, x, turns)).reshape(len(x), -1)
            if wanted is not None and i == len(self.blocks) - 1:
                x, mixed = x[wanted], mixed[wanted]  # keys are stored; nobody reads the others
            x = block.out.onto(x, mixed)
            for piece in x.split(_PIECE):
                gate, up = block.gate_up(normalised(piece, block.between)).chunk(2, dim=1)
                piece.copy_(block.down.onto(piece, silu(gate, inplace=True).mul_(up)))
        return self.last(x)

    def _turns(self, positions: torch.Tensor) -> torch.Tensor:
        """(N, 1, width / 2) complex rotations."""
        angles = positions.float()[:, None] * self.frequencies
        return torch.polar(angles.new_full((), self.stretch).expand_as(angles), angles)[:, None]

    def _projected(
        self, block: Block, x: torch.Tensor, turns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries; rotated keys and values: two views of one (N, Hq + 2 Hkv, width)."""
        queries, stored = self.heads
        qkv = block.qkv(normalised(x, block.before)).view(len(x), queries + 2 * stored, self.width)
        both = qkv[:, : queries + stored]
        if block.head_norms:
            for norm, part in zip(block.head_norms, both.split([queries, stored], 1), strict=True):
                part.copy_(norm(part))
        torch.view_as_complex(both.unflatten(-1, (-1, 2))).mul_(turns)
        return qkv[:, :queries], qkv[:, queries:]


@torch.no_grad()
def fuse(body: Any) -> Lean | None:
    """The decoder as it is mounted now; None when it is not made like a Llama.

    Structure alone does not prove equality: whoever calls this for a new family compares a pass.
    """
    if not _is_llama_like(body):
        return None
    first = body.layers[0].self_attn
    width: int = first.head_dim
    rope = body.rotary_emb
    rows = [_matrix(first.q_proj).weight.shape[0], _matrix(first.k_proj).weight.shape[0]]
    return Lean(
        blocks=tuple(_block(layer, width) for layer in body.layers),
        last=_norm(body.norm),
        embed=body.embed_tokens.weight.detach(),
        frequencies=rope.inv_freq.detach().float(),
        stretch=float(rope.attention_scaling),
        heads=(rows[0] // width, rows[1] // width),
        width=width,
        scale=float(first.scaling),
    )


def _is_llama_like(body: Any) -> bool:
    return (
        _children(body) == _BODY
        and all(_is_block(layer) for layer in body.layers)
        and _is_norm(body.norm)
        and getattr(body.config, "hidden_act", "") in ("silu", "swish")
        and getattr(body.rotary_emb, "rope_type", "") in _ROPES
        and 2 * len(body.rotary_emb.inv_freq) == body.layers[0].self_attn.head_dim
    )


def _is_block(layer: Any) -> bool:
    if _children(layer) != _BLOCK or _children(layer.mlp) != _MLP:
        return False
    if _children(layer.self_attn) - _HEAD_NORMS != _ATTENTION:
        return False
    if not all(_is_norm(part) for name, part in layer.named_modules() if name.endswith("norm")):
        return False
    parts = [*layer.self_attn.named_children(), *layer.mlp.named_children()]
    matrices = [getattr(part, "base_layer", part) for name, part in parts if "proj" in name]
    return all(type(matrix) is nn.Linear for matrix in matrices)  # not a quantized one


def _is_norm(layer: Any) -> bool:
    """It has a factor per channel (OLMo's has none) and says its epsilon."""
    return hasattr(layer, "weight") and hasattr(layer, "variance_epsilon")


def _children(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()}


def _block(layer: Any, width: int) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    norms = None
    if hasattr(attention, "q_norm"):
        q_norm, k_norm = (_norm(n) for n in (attention.q_norm, attention.k_norm))
        norms = (
            Norm(_side_by_side(q_norm.weight, width), q_norm.eps),
            Norm(_side_by_side(k_norm.weight, width), k_norm.eps),
        )
    turned = [_turned(_matrix(part), width) for part in (attention.q_proj, attention.k_proj)]
    before, between = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
    return Block(
        before=before.eps,
        qkv=_after(before, _stacked(*turned, _matrix(attention.v_proj))),
        head_norms=norms,
        out=_matrix(attention.o_proj),
        between=between.eps,
        gate_up=_after(between, _stacked(_matrix(mlp.gate_proj), _matrix(mlp.up_proj))),
        down=_matrix(mlp.down_proj),
    )


def _matrix(layer: Any) -> Matrix:
    """A linear layer, with its LoRA product added where it has one."""
    base = getattr(layer, "base_layer", layer)
    weight, bias = base.weight.detach(), base.bias
    if base is not layer:
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        weight = torch.addmm(weight, b.detach(), a.detach(), alpha=layer.scaling["default"])
    return Matrix(weight, None if bias is None else bias.detach())


def _norm(layer: Any) -> Norm:
    return Norm(layer.weight.detach(), float(layer.variance_epsilon))


def _after(norm: Norm, matrix: Matrix) -> Matrix:
    """The matrix with the factors of the normalisation that feeds it."""
    return Matrix(matrix.weight * norm.weight, matrix.bias)


def _turned(matrix: Matrix, width: int) -> Matrix:
    bias = matrix.bias
    return Matrix(
        _side_by_side(matrix.weight, width), None if bias is None else _side_by_side(bias, width)
    )


def _side_by_side(x: torch.Tensor, width: int) -> torch.Tensor:
    """Rows of each head reordered from (first halves, second halves) to pairs."""
    return x.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).reshape(x.shape).contiguous()


def _stacked(*parts: Matrix) -> Matrix:
    biases = [part.bias for part in parts if part.bias is not None]
    weight = torch.cat([part.weight for part in parts])
    if not biases:
        return Matrix(weight, None)
    whole = [
        part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias
        for part in parts
    ]
    return Matrix(weight, torch.cat(whole))
