"""How many threads a pass gets when the user leaves it to us.

Splitting a small matrix product costs more than it saves: a decoding step of 64 rows of
household-tiny (5e7 multiply-adds) took 19 ms of wall time on one thread and 33 ms on two, a step
of 8 rows of SmolLM2-135M (1e9) was 1.13 times faster on two. Reading kept keys and values is slow
for its arithmetic and gains from a second thread earlier: 16 rows of 400 tokens (3e6 numbers) were
1.2 times faster on two, 8 rows of them were not. The rule looks at the size of the pass alone,
never at a clock, so a run repeats to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SMALL = 1e8  # multiply-adds up to which a pass runs on one thread
_READ = 24  # multiply-adds that take as long as one number read from the cache


@contextmanager
def threads_for(multiply_adds: float, numbers_read: int = 0) -> Iterator[None]:
    """Within: one thread for a small pass, torch's present number for others."""
    usual = torch.get_num_threads()
    if usual == 1 or multiply_adds + _READ * numbers_read > _SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
