"""Policy-gradient losses on action tokens, as plain sums: the caller has scaled the advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from turncredit.core.errors import ConfigError, did_you_mean

_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.24}  # ratio bounds of the article
LOSSES: Mapping[str, Mapping[str, float]] = {
    "ppo": _CLIP,
    "importance_sampling": {},
    "cross_entropy": {},
}


@dataclass(frozen=True, slots=True)
class Loss:
    """A checked loss name with its ratio bounds."""

    name: str
    low: float
    high: float

    def __call__(
        self, new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and ratio of each token, all (N,).

        cross_entropy reads the advantages as weights: −weight · log-prob.
        """
        ratio = (new - old).exp()
        if self.name == "cross_entropy":
            return -advantage * new, ratio
        if self.name == "importance_sampling":
            return -advantage * ratio, ratio
        clipped = ratio.clamp(self.low, self.high)
        return -torch.minimum(ratio * advantage, clipped * advantage), ratio

    def was_clipped(self, ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        """Tokens whose gradient the clip removes, bool (N,)."""
        if self.name != "ppo":
            return torch.zeros_like(ratio, dtype=torch.bool)
        above = (advantage > 0) & (ratio > self.high)
        return above | ((advantage < 0) & (ratio < self.low))


def resolve(name: str, config: Mapping[str, float] | None) -> Loss:
    """Check a loss and its settings.

    Raises:
        ConfigError: an unknown loss or key, or bounds that do not enclose 1.
    """
    if name not in LOSSES:
        raise ConfigError(
            f'no loss "{name}".{did_you_mean(name, LOSSES)} (known: {", ".join(LOSSES)})'
        )
    defaults = LOSSES[name]
    for key in config or {}:
        if key not in defaults:
            raise ConfigError(f'loss "{name}" has no setting "{key}".{did_you_mean(key, defaults)}')
    values = {**defaults, **(config or {})}
    low = values.get("clip_low_threshold", 0.0)
    high = values.get("clip_high_threshold", float("inf"))
    if not 0 <= low <= 1 <= high:
        raise ConfigError(
            f"clip bounds [{low}, {high}] must enclose 1: they are bounds of the ratio"
        )
    return Loss(name, low, high)
