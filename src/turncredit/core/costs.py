"""What the cost of a forward pass follows from: the shape of a model, the ceilings of a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only model, as far as its arithmetic and its memory traffic go.

    Attributes:
        block_parameters: parameters of the blocks that multiply a token (of experts, those that
            one token meets); without embedding, head and adapters.
        head_parameters: hidden width times vocabulary.
        adapter_parameters: of LoRA; 0 means that all parameters are trained.
        layers: layers with full attention.
        heads: query heads of such a layer.
        kv_heads: heads of its keys and values.
        head_width: numbers of one head.
        weight_bytes: memory of all weights a token meets, the head's included.
        cache_bytes: keys and values of one token, all layers.
        state_bytes: recurrent state of one sequence (linear attention), all layers.
        rows: sequences the backend decodes together at most; None: no limit.
    """

    block_parameters: int
    head_parameters: int
    adapter_parameters: int = 0
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    weight_bytes: int
    cache_bytes: int
    state_bytes: int = 0
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a machine reaches when it does one thing only.

    Attributes:
        flops: of a large matrix product in the model's number format, per second.
        bytes: read and written by a large copy, per second.
    """

    flops: float
    bytes: float
