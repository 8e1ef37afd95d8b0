"""Which training rows go through the network together. Pure arithmetic over lengths."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from turncredit.core.datum import Datum


def trained_row(row: Datum) -> tuple[Hashable, list[int], int]:
    """A key that rows with the same prompt have in common, needed ids, ids of the prompt.

    The prompt is what precedes the first action. Ids from the last action on predict nothing that
    is trained, so no state of theirs is needed.
    """
    actions = np.flatnonzero(row.mask)
    first, last = int(actions[0]), int(actions[-1])
    return row.tokens[:first].tobytes(), row.tokens[:last].tolist(), first


def packed(rows: Sequence[tuple[Hashable, int, int]], most: int) -> list[list[int]]:
    """Rows per pass, short ones first, rows of a key together where they fit.

    Args:
        rows: (key, length, how much of it rows of this key share).
        most: tokens of a pass, shared ones counted once; a longer row has a pass of its own.
    """
    trees: dict[Hashable, list[int]] = {}
    for i in sorted(range(len(rows)), key=lambda i: (rows[i][1], i)):
        trees.setdefault(rows[i][0], []).append(i)
    batches: list[list[int]] = []
    total = most + 1
    for members in trees.values():
        whole = rows[members[0]][2] + sum(rows[i][1] - rows[i][2] for i in members)
        begun = total + whole <= most  # else the tree starts a pass, cut where that is full
        for n, i in enumerate(members):
            _, length, shared = rows[i]
            cost = length - shared if n else length
            if (n == 0 and not begun) or total + cost > most:
                batches.append([])
                total, cost = 0, length
            batches[-1].append(i)
            total += cost
    return batches


def padded(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Rows per pass, similar lengths together, so that few of `most` tokens are pads."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if not batches or (len(batches[-1]) + 1) * lengths[i] > most:
            batches.append([])
        batches[-1].append(i)
    return batches
