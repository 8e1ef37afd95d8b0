"""Packs: rows laid end to end in one sequence, no padding, a shared beginning laid out once.

The linear layers of a network treat every token alike, so they may see the tokens of many rows as
one long row, and the beginning that some rows share only once. Only attention has to know who
follows whom: `Pack.parts` tells it.

    two rows  A B C d e    and    A B C f        (prefix A B C, tails d e and f)
    ids       A B C d e f
    positions 0 1 2 3 4 3
    parts     prefix → itself, causal;  d e f → prefix, all of it;  d e → itself;  f → itself
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows that begin alike.

    Attributes:
        prefix: ids they share.
        tails: per row what follows; may be empty.
    """

    prefix: Sequence[int]
    tails: Sequence[Sequence[int]]

    @property
    def size(self) -> int:
        """Tokens that are computed."""
        return len(self.prefix) + sum(map(len, self.tails))


@dataclass(frozen=True, slots=True)
class Part:
    """Queries that look at keys: each at all of them, or (causal) at those up to its own place."""

    queries: slice
    keys: slice
    causal: bool


class Pack:
    """Trees laid out flat.

    Args:
        trees: what is laid out; rows are numbered through them in order.
        stem: tokens before all rows whose keys are given from outside; keys are then counted
            from the stem's first token, queries from the first token after it.

    Attributes:
        ids: N token ids.
        positions: N, each token's place in its row.
        parts: who looks at whom. A query is in one part or two, the causal one last.
    """

    def __init__(self, trees: Iterable[Tree], stem: int = 0) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.parts: list[Part] = []
        self._stem = stem
        self._starts: list[tuple[int, int, int]] = []  # per row: prefix length, its start, tail's
        for tree in trees:
            self._add(tree)
        if stem and self.ids:
            self.parts.insert(0, Part(slice(0, len(self.ids)), slice(0, stem), causal=False))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self._starts)

    def places(self, row: int, at_T: Index) -> Index:
        """Where tokens of a row (counted after the stem) are in the pack."""
        prefix, start, tail = self._starts[row]
        return np.where(at_T < prefix, start + at_T, tail + at_T - prefix)

    def _add(self, tree: Tree) -> None:
        start, prefix = len(self.ids), len(tree.prefix)
        self._put(tree.prefix, 0)
        if prefix:
            self._causal(start)
        first = len(self.ids)
        bounds = list(accumulate(map(len, tree.tails), initial=first))
        if prefix and bounds[-1] > first:
            keys = slice(self._stem + start, self._stem + start + prefix)
            self.parts.append(Part(slice(first, bounds[-1]), keys, causal=False))
        for tail, at in zip(tree.tails, bounds, strict=False):
            self._starts.append((prefix, start, at))
            self._put(tail, prefix)
            if tail:
                self._causal(at)

    def _put(self, ids: Sequence[int], position: int) -> None:
        self.ids.extend(ids)
        position += self._stem
        self.positions.extend(range(position, position + len(ids)))

    def _causal(self, start: int) -> None:
        """What was put last looks at itself."""
        end = len(self.ids)
        keys = slice(self._stem + start, self._stem + end)
        self.parts.append(Part(slice(start, end), keys, causal=True))


class Padded:
    """The same numbering for rows padded to T tokens each, for networks that cannot take packs."""

    def __init__(self, longest: int) -> None:
        self._longest = longest

    def places(self, row: int, at_T: Index) -> Index:
        """Where tokens of a row are among B * T."""
        return row * self._longest + at_T


def forest(rows: Sequence[tuple[Hashable, Sequence[int], int]]) -> list[tuple[Tree, list[int]]]:
    """Rows grouped into trees.

    Args:
        rows: (key, ids, shared): rows of one key share their first `shared` ids; a key that
            occurs once makes a row without prefix.

    Returns:
        Trees, and which rows are in each; both in order of first appearance.
    """
    members: dict[Hashable, list[int]] = {}
    for i, (key, _, _) in enumerate(rows):
        members.setdefault(key, []).append(i)
    out: list[tuple[Tree, list[int]]] = []
    for same in members.values():
        _, ids, shared = rows[same[0]]
        shared = shared if len(same) > 1 else 0
        out.append((Tree(ids[:shared], [rows[i][1][shared:] for i in same]), same))
    return out
