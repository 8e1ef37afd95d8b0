"""How much there was to read at least: sequences that share a prefix share the work on it.

Distinct prefixes of one snapshot's sequences form a trie; each of its nodes is a token that has to
go through the network once, and no engine can do with less. Sampled tokens go through while they
are decoded, so contexts are counted without them.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from turncredit.core.types import Ids

_ROOM = 1 << 26  # bytes of sequences held before those that others extend are dropped


@dataclass(frozen=True, slots=True)
class Extent:
    """Tokens, and the sum of their positions.

    The position of a token counts what it attends to, itself included: 1 for the first.
    """

    tokens: int = 0
    positions: int = 0

    def __add__(self, other: Extent) -> Extent:
        return Extent(self.tokens + other.tokens, self.positions + other.positions)

    def __sub__(self, other: Extent) -> Extent:
        return Extent(self.tokens - other.tokens, self.positions - other.positions)

    @property
    def mean_position(self) -> float:
        """0 without tokens."""
        return self.positions / self.tokens if self.tokens else 0.0


def span(start: int, stop: int) -> Extent:
    """The tokens [start, stop) of one sequence."""
    return Extent(stop - start, (stop * (stop + 1) - start * (start + 1)) // 2)


def packed(ids: Ids) -> bytes:
    """Token ids as bytes that sort by common prefixes."""
    return array("I", ids).tobytes()


def distinct(sequences: Iterable[bytes], *, offset: int = 0) -> Extent:
    """The nodes of the trie of some `packed` sequences.

    Sorted sequences share most with their neighbour, so each adds what it does not share with the
    one before it.

    Args:
        sequences: in any order, repeated or not.
        offset: tokens all of them follow, which are not counted themselves.
    """
    found, before = Extent(), np.zeros(0, np.uint32)
    for row in sorted(set(sequences)):
        ids = np.frombuffer(row, np.uint32)
        found += span(offset + _common(before, ids), offset + len(ids))
        before = ids
    return found


@dataclass(slots=True)
class Contexts:
    """What one snapshot was given to continue, and what it said.

    Sampled tokens are kept per prompt, beside the sequences they are part of; a prompt is taken to
    end where no other answer is half-way.
    """

    _sequences: set[bytes] = field(default_factory=set)
    _answers: dict[bytes, tuple[int, set[bytes]]] = field(default_factory=dict)
    _size: int = 0
    _room: int = _ROOM

    def add(self, prompt: Ids, answers: Iterable[Ids]) -> None:
        """One prompt and its continuations."""
        head = packed(prompt)
        key = blake2b(head, digest_size=16).digest()
        _, said = self._answers.setdefault(key, (len(prompt), set()))
        for answer in answers:
            tail = packed(answer)
            said.add(tail)
            self._sequences.add(head + tail)
            self._size += len(head) + len(tail)
        if self._size > self._room:
            self._compact()

    def absorb(self, other: Contexts) -> None:
        """Take over what another one holds."""
        self._sequences |= other._sequences
        self._size += other._size
        for key, (length, said) in other._answers.items():
            self._answers.setdefault(key, (length, set()))[1].update(said)

    def extent(self) -> Extent:
        """The distinct context tokens: all nodes but the sampled ones."""
        sampled = Extent()
        for length, said in self._answers.values():
            sampled += distinct(said, offset=length)
        return distinct(self._sequences) - sampled

    def _compact(self) -> None:
        """Drop sequences that another one begins with: they add nothing to the trie."""
        self._sequences = set(_longest(sorted(self._sequences)))
        self._size = sum(map(len, self._sequences))
        self._room = max(_ROOM, 2 * self._size)


@dataclass(slots=True)
class Reads:
    """What was asked of all snapshots, in one step and for one purpose.

    Attributes:
        decoded: all sampled tokens.
        scored_tokens: tokens whose log-probs were asked for.
        trained: tokens of the training rows, every pass over them.
        trained_actions: those of them that have a loss.
    """

    contexts: defaultdict[str, Contexts] = field(default_factory=lambda: defaultdict(Contexts))
    scored: defaultdict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    decoded: Extent = Extent()
    scored_tokens: int = 0
    trained: Extent = Extent()
    trained_actions: int = 0

    def sample(self, snapshot: str, prompt: Ids, answers: Iterable[Ids]) -> None:
        """A sampling call and what it gave."""
        answers = [*answers]
        self.contexts[snapshot].add(prompt, answers)
        for answer in answers:
            self.decoded += span(len(prompt), len(prompt) + len(answer))

    def score(self, snapshot: str, tokens: Ids, asked: int) -> None:
        """A scoring call; the log-probs of so many tokens were asked for."""
        self.scored[snapshot].add(packed(tokens))
        self.scored_tokens += asked

    def train(self, length: int, actions: int) -> None:
        """A training row."""
        self.trained += span(0, length)
        self.trained_actions += actions

    def absorb(self, other: Reads) -> None:
        """Take over what another one holds."""
        for snapshot, contexts in other.contexts.items():
            self.contexts[snapshot].absorb(contexts)
        for snapshot, sequences in other.scored.items():
            self.scored[snapshot] |= sequences
        self.decoded += other.decoded
        self.scored_tokens += other.scored_tokens
        self.trained += other.trained
        self.trained_actions += other.trained_actions

    def unique(self) -> Extent:
        """What had to be read at least.

        Scores are a reading of their own: a second look at a sequence that was sampled before
        cannot use what the first one computed, or it would be no second look.
        """
        found = Extent()
        for contexts in self.contexts.values():
            found += contexts.extent()
        for sequences in self.scored.values():
            found += distinct(sequences)
        return found


def _longest(ordered: list[bytes]) -> Iterator[bytes]:
    """Sorted sequences without those that begin another: the next one is then such another."""
    for row, after in zip(ordered, [*ordered[1:], b""], strict=True):
        if not after.startswith(row):
            yield row


def _common(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    differ = a[:size] != b[:size]
    return int(differ.argmax()) if differ.any() else size
