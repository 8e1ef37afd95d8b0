"""Sampling noise as a pure function of (seed, position, vocabulary entry).

No generator state exists: what a sample draws cannot depend on what else is in the batch, on the
device, or on where a run was resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

# Multipliers of the splitmix64 finaliser (Steele, Lea, Flood 2014), as signed 64-bit numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _mix(x: torch.Tensor) -> torch.Tensor:
    # `>>` on signed integers copies the sign bit; the masks make the shifts logical.
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _MIX_1
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _MIX_2
    return x ^ ((x >> 31) & (2**33 - 1))


@lru_cache(maxsize=4)
def _entries(vocabulary: int, device: torch.device) -> torch.Tensor:
    return torch.arange(1, vocabulary + 1, device=device) * _GOLDEN


def gumbel(
    seeds: Sequence[int], positions: Sequence[int], vocabulary: int, device: torch.device
) -> torch.Tensor:
    """Standard Gumbel noise, (B, V), float32: row b depends on seeds[b] and positions[b] only."""
    seed_B = torch.tensor([_signed(s) for s in seeds], device=device)
    position_B = torch.tensor(list(positions), device=device)
    key_B = _mix(_mix(seed_B + _GOLDEN) + position_B * _GOLDEN)
    bits = (_mix(key_B[:, None] + _entries(vocabulary, device)) >> 32) & 0xFFFFFFFF
    # 32 bits, centred: never 0. Small values keep full float precision, and they are the ones
    # that become large Gumbels; a value rounded to 1 gives -inf, which never wins.
    uniform = (bits.to(torch.float32) + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform))


@dataclass(frozen=True, slots=True)
class Draw:
    """How each of B rows is drawn: its seed, the index of the token, temperature and top-p."""

    seeds: list[int]
    positions: list[int]
    temperature: list[float]
    top_p: list[float]

    def row(self, b: int) -> Draw:
        """Row b alone."""
        cut = slice(b, b + 1)
        return Draw(self.seeds[cut], self.positions[cut], self.temperature[cut], self.top_p[cut])


def choose(
    logits: torch.Tensor, draw: Draw, *, tolerance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gumbel-max sampling.

    Args:
        logits: (B, V), float32.
        draw: B rows.
        tolerance: numerical noise of the logits; a choice that could flip within it is doubtful.

    Returns:
        ids (B,), and (B,) True where the choice is doubtful.
    """
    temperature = torch.tensor(draw.temperature, device=logits.device)[:, None]
    noise = gumbel(draw.seeds, draw.positions, logits.shape[1], logits.device)
    # In units of logits, so that one tolerance serves every temperature; 0 is greedy.
    scores = torch.where(temperature > 0, logits + temperature * noise, logits)
    doubtful = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    cut = [b for b, p in enumerate(draw.top_p) if p < 1 and draw.temperature[b] > 0]
    for b in cut:
        outside, near = _outside_nucleus(
            logits[b] / draw.temperature[b], draw.top_p[b], tolerance / draw.temperature[b]
        )
        scores[b, outside] = -torch.inf
        doubtful[b] = near
    best, ids = scores.topk(min(2, logits.shape[1]), dim=1)
    if best.shape[1] == 2:
        doubtful |= best[:, 0] - best[:, 1] < tolerance
    return ids[:, 0], doubtful


def _outside_nucleus(
    logits: torch.Tensor, top_p: float, tolerance: float
) -> tuple[torch.Tensor, bool]:
    """Ids outside the smallest set of mass >= `top_p`, and whether noise could change that set."""
    prob, order = logits.softmax(-1).sort(descending=True)
    before = prob.cumsum(-1) - prob
    keep = int((before < top_p).sum())
    near = bool(((before - top_p).abs() < tolerance).any())
    if keep < len(prob):
        near |= bool(prob[keep - 1] < prob[keep] * (1 + tolerance))
    return order[keep:], near
