"""Sampling noise as a pure function of (seed, position, vocabulary entry).

No generator state exists: what a sample draws cannot depend on what else is in the batch, on the
device, or on where a run was resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

# Temperatures float32 can divide logits by: below, only the likeliest token is left; above, none is
# likelier than another.
_COLDEST, _HOTTEST = 1e-30, 1e30
# Multipliers of the splitmix64 finaliser (Steele, Lea, Flood 2014), and what its shifts leave.
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _signed(number: int) -> int:
    """The 64-bit pattern as torch has it."""
    return (number + 2**63) % 2**64 - 2**63


def _mixed_keys(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.uint64]:
    """(B,), by NumPy: a handful of numbers costs torch more in calls than in work."""
    seed_B = np.array([s % 2**64 for s in seeds], np.uint64)
    position_B = np.array(positions, np.uint64)
    golden = np.uint64(_GOLDEN)
    return _mix_keys(_mix_keys(seed_B + golden) + position_B * golden)


def _mix_keys(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
    return x ^ (x >> np.uint64(31))


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The same for many numbers; `x` is used up."""
    # `>>` on signed integers copies the sign bit; the masks make the shifts logical.
    y = x >> 30
    x ^= y.bitwise_and_(2**34 - 1)
    x *= _signed(_MIX_1)
    y = torch.bitwise_right_shift(x, 27, out=y)
    x ^= y.bitwise_and_(2**37 - 1)
    x *= _signed(_MIX_2)
    y = torch.bitwise_right_shift(x, 31, out=y)
    x ^= y.bitwise_and_(2**33 - 1)
    return x


@lru_cache(maxsize=4)
def _entries(vocabulary: int, device: torch.device) -> torch.Tensor:
    return torch.arange(1, vocabulary + 1, device=device) * _signed(_GOLDEN)


def gumbel(
    seeds: Sequence[int], positions: Sequence[int], vocabulary: int, device: torch.device
) -> torch.Tensor:
    """Standard Gumbel noise, (B, V), float32: row b depends on seeds[b] and positions[b] only."""
    key_B = torch.from_numpy(_mixed_keys(seeds, positions).view(np.int64)).to(device)
    bits = _mix(key_B[:, None] + _entries(vocabulary, device))
    bits >>= 32
    bits &= 0xFFFFFFFF
    # 32 bits, centred: never 0. Small values keep full float precision, and they are the ones
    # that become large Gumbels; a value rounded to 1 gives -inf, which never wins.
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-32)
    return uniform.neg_().log1p_().neg_().log_().neg_()


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
    warmth = [min(t, _HOTTEST) if t > _COLDEST else 0.0 for t in draw.temperature]
    temperature = torch.tensor(warmth, device=logits.device)[:, None]
    noise = gumbel(draw.seeds, draw.positions, logits.shape[1], logits.device)
    # In units of logits, so that one tolerance serves every temperature; 0 is greedy.
    scores = noise.mul_(temperature).add_(logits)
    if not all(warmth):
        scores = torch.where(temperature > 0, scores, logits)
    doubtful = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    cut = [b for b, p in enumerate(draw.top_p) if p < 1 and warmth[b] > 0]
    for b in cut:
        outside, near = _outside_nucleus(
            logits[b] / warmth[b], draw.top_p[b], tolerance / warmth[b]
        )
        scores[b, outside] = -torch.inf
        doubtful[b] = near
    best, ids = scores.max(1)
    if tolerance > 0:
        second = scores.scatter(1, ids[:, None], -torch.inf).amax(1)
        doubtful |= best - second < tolerance
    return ids, doubtful


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
