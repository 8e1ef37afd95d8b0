"""Caches of Transformers taken as rows: brought together, taken apart, copied.

Nothing is known of a cache but this: it has `layers`, plain objects; their tensors begin with the
rows; keys and values also grow with the tokens; all else they hold must be the same for all rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import pad

Cache = Any
Change = Callable[[str, torch.Tensor], torch.Tensor]  # of a field's name and its tensor

_GROWING = ("keys", "values")  # (B, heads, tokens, width); other tensors have one size


def joinable(caches: Sequence[Cache]) -> bool:
    """Caches differ in tensors alone: what counts tokens or positions says the same in all."""
    layers = zip(*(cache.layers for cache in caches), strict=True)
    return all(_alike([vars(layer) for layer in same]) for same in layers)


def joined(caches: Sequence[Cache]) -> Cache:
    """One cache of all rows, keys padded on the left. The given ones are empty afterwards.

    Args:
        caches: of one row or several.
    """
    out = copy.copy(caches[0])
    out.layers = []
    stacks = [list(cache.layers) for cache in caches]
    for cache in caches:
        cache.layers = []
    for i in range(len(stacks[0])):
        out.layers.append(copy.copy(stacks[0][i]))
        _set(out.layers[i], _joined("", [vars(stack[i]) for stack in stacks]))
        for stack in stacks:  # so that one layer at a time is held twice
            stack[i] = None
    return out


def picked(cache: Cache, row: int, tokens: int) -> Cache:
    """A cache of one row out of several, which has read so many tokens."""
    return _changed(cache, _picking([row], tokens))


def narrow(cache: Cache, rows: Sequence[int], tokens: int) -> None:
    """Leave some rows in a cache, in this order; the longest has read so many tokens."""
    for i in range(len(cache.layers)):  # so that one layer at a time is held twice
        cache.layers[i] = _changed_layer(cache.layers[i], _picking(rows, tokens))


def _picking(rows: Sequence[int], tokens: int) -> Change:
    @lru_cache
    def places(device: torch.device) -> torch.Tensor:
        return torch.tensor(rows, device=device)

    def pick(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name in _GROWING:
            tensor = tensor[..., max(0, tensor.shape[-2] - tokens) :, :]
        return tensor[places(tensor.device)]

    return pick


def copied(cache: Cache) -> Cache:
    """Another cache that has read the same."""
    return _changed(cache, lambda _, tensor: tensor.clone())


def cache_bytes(cache: Cache) -> int:
    """Of all its tensors."""
    found: list[int] = []

    def count(_: str, tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor.nbytes)
        return tensor

    _changed(cache, count)
    return sum(found)


def _changed(cache: Cache, change: Change) -> Cache:
    """A cache with other tensors."""
    out = copy.copy(cache)
    out.layers = [_changed_layer(layer, change) for layer in cache.layers]
    return out


def _changed_layer(layer: Any, change: Change) -> Any:
    def field(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: field(name, inner) for key, inner in value.items()}
        return change(name, value) if _is_of_rows(value) else value

    out = copy.copy(layer)
    _set(out, {name: field(name, value) for name, value in vars(layer).items()})
    return out


def _set(layer: Any, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        setattr(layer, name, value)


def _joined(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: _joined(name or key, [value[key] for value in values]) for key in first}
    if not _is_of_rows(first):
        return first
    if name in _GROWING:
        longest = max(value.shape[-2] for value in values)
        values = [pad(value, (0, 0, longest - value.shape[-2], 0)) for value in values]
    return torch.cat(list(values))


def _alike(values: Sequence[Any]) -> bool:
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        return False
    if isinstance(first, dict):
        return all(v.keys() == first.keys() for v in values) and all(
            _alike([value[key] for value in values]) for key in first
        )
    return _is_of_rows(first) or all(bool(value == first) for value in values)


def _is_of_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0
