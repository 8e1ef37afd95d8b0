"""Attention for ragged rows, plugged into Transformers' attention interface.

With a layout it is that of a pack (`packed`). Without one and without a mask it is plain causal
attention over right-padded rows (a pad comes after every real token, so none looks at it). With a
mask the keys are a cache and each row has its own length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from turncredit.backends.local.memory import cuts_off

NAME = "turncredit"
LAYOUT = "turncredit_layout"  # the argument that the body hands down to attention, for a pack
_CHANGES_THE_RESULT = ("softcap", "s_aux", "position_bias", "sinks")

_places: ContextVar[torch.Tensor | None] = ContextVar("places", default=None)


@contextmanager
def rows_among(places: torch.Tensor | None) -> Iterator[None]:
    """Within: the keys and masks have more rows than the queries; query b belongs to places[b].

    Reading a stretch of the cache in place, with rows that nobody asks for, costs less than
    copying the wanted rows out of it.
    """
    token = _places.set(places)
    try:
        yield
    finally:
        _places.reset(token)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **extra: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention.

    Args:
        module: the calling layer, which knows its number.
        query: (B, Hq, T, d). Head h reads key head h // (Hq / Hkv).
        key: (B, Hkv, L, d).
        value: (B, Hkv, L, d).
        attention_mask: None (causal, L = T) or bool (B, 1, T, L), True where looking is allowed;
            within `rows_among`, it and the keys have more rows than the queries.
        scaling: factor of the scores.
        extra: what the model family passes besides.

    Returns:
        (B, T, Hq, d), and no weights.

    Raises:
        NotImplementedError: the family asks for another attention than this.
    """
    for name in _CHANGES_THE_RESULT:
        if extra.get(name) is not None:
            raise NotImplementedError(name)
    window = extra.get("sliding_window")
    if window is not None and cuts_off(window, module.config):
        raise NotImplementedError("sliding_window")
    layout = extra.get(LAYOUT)
    if layout is not None:
        return layout.attend(module.layer_idx, query, key, value, scaling), None
    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None:
        if groups > 1:
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        out = scaled_dot_product_attention(query, key, value, is_causal=length > 1, scale=scaling)
    else:
        # Folding the group into the query length reads each key once: 4-8 times faster on CPUs
        # than repeating keys or `enable_gqa`.
        folded = query.reshape(batch, key.shape[1], groups * length, width)
        if length > 1:
            attention_mask = attention_mask.repeat(1, 1, groups, 1)
        places = _places.get()
        if places is not None:
            wanted, folded = folded, folded.new_zeros(key.shape[0], *folded.shape[1:])
            folded[places] = wanted
        out = scaled_dot_product_attention(
            folded, key, value, attn_mask=attention_mask, scale=scaling
        )
        out = (out if places is None else out[places]).reshape(batch, heads, length, width)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
