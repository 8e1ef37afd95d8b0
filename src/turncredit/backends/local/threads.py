"""How many threads a pass gets when the user leaves it to us.

Splitting a small matrix product costs more than it saves: a decoding step of 64 rows of
household-tiny (5e7 multiply-adds) took 19 ms of wall time on one thread and 33 ms on two, a step
of 8 rows of SmolLM2-135M (1e9) was 1.13 times faster on two. The rule looks at the size of the
pass alone, never at a clock, so a run repeats to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SMALL = 1e8  # multiply-adds up to which a pass runs on one thread


@contextmanager
def threads_for(multiply_adds: float) -> Iterator[None]:
    """Within: one thread for a small pass, torch's present number for others."""
    usual = torch.get_num_threads()
    if usual == 1 or multiply_adds > _SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
