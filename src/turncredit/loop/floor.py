"""Arithmetic of a step, and the least it could have been.

Per token at position t (which attends to t tokens):

    forward   2 P + 4 layers heads width t        P: parameters of the blocks
    head      2 d V                               for tokens whose log-probs are asked for
    training  forward and the gradients of activations: twice that; with all weights trained
              their gradients too: three times; with LoRA its adapters' share, 6 each, on top

The floor reads every distinct token of a snapshot once (`loop.reads`), decodes what was sampled and
trains the rows as they are. In seconds: its arithmetic at the machine's ceiling, decoding no faster
than weights and keys and values come out of memory. Environments are not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turncredit.core.costs import Ceilings, ModelShape
from turncredit.loop.reads import Extent, Reads


def forward(shape: ModelShape, extent: Extent) -> float:
    """FLOPs of the blocks."""
    attention = 4 * shape.layers * shape.heads * shape.head_width
    return 2.0 * shape.block_parameters * extent.tokens + float(attention) * extent.positions


def head(shape: ModelShape, tokens: int) -> float:
    """FLOPs of the logits of some tokens."""
    return 2.0 * shape.head_parameters * tokens


def training(shape: ModelShape, extent: Extent, actions: int) -> float:
    """FLOPs of a forward and backward pass; `actions` tokens have a loss."""
    passes = forward(shape, extent) + head(shape, actions)
    if not shape.adapter_parameters:
        return 3 * passes
    return 2 * passes + 6.0 * shape.adapter_parameters * extent.tokens


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """FLOPs of a step by kind.

    Attributes:
        done: reading, as much as the backend says it computed.
        least: reading every distinct token once.
        decoding: of the sampled tokens.
        training: of the rows.
        decoded: the sampled tokens.
    """

    done: float
    least: float
    decoding: float
    training: float
    decoded: Extent

    @property
    def total(self) -> float:
        """What was computed."""
        return self.done + self.decoding + self.training

    @property
    def floor(self) -> float:
        """What had to be."""
        return self.least + self.decoding + self.training


def arithmetic(shape: ModelShape, parts: Sequence[tuple[Reads, Extent, int]]) -> Arithmetic:
    """What some work costs.

    Args:
        shape: of the model.
        parts: what was asked for, its distinct tokens, and how many tokens the backend computed
            of what it was given to read. Where they stood nobody says: as the distinct ones.
    """
    done = least = decoding = train = 0.0
    decoded = Extent()
    for reads, unique, computed in parts:
        scores = head(shape, reads.scored_tokens)
        again = Extent(computed, round(computed * unique.mean_position))
        done += forward(shape, again) + scores
        # Where caches outlive a stage, less was computed than is distinct in it.
        least += forward(shape, min(unique, again, key=lambda extent: extent.tokens)) + scores
        decoding += forward(shape, reads.decoded) + head(shape, reads.decoded.tokens)
        train += training(shape, reads.trained, reads.trained_actions)
        decoded += reads.decoded
    return Arithmetic(done, least, decoding, train, decoded)


def seconds(shape: ModelShape, ceilings: Ceilings, work: Arithmetic, *, together: int) -> float:
    """The floor in seconds on a machine.

    Args:
        shape: of the model.
        ceilings: of the machine.
        work: of the step.
        together: the most sequences that were in flight at once.
    """
    rows = max(1, together if shape.rows is None else min(together, shape.rows))
    traffic = work.decoded.tokens / rows * shape.weight_bytes
    traffic += 2.0 * shape.state_bytes * work.decoded.tokens
    traffic += float(shape.cache_bytes) * work.decoded.positions
    decoding = max(work.decoding / ceilings.flops, traffic / ceilings.bytes)
    return (work.least + work.training) / ceilings.flops + decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run in round numbers, before it is made: what it will read, sample and train.

    Attributes:
        trajectories: in all (N).
        group: trajectories of a task (G).
        length: tokens of a trajectory (L).
        prompt: tokens before the first action (P0).
        actions: sampled tokens of a trajectory (A).
        turns: of a trajectory (T).
        hint: tokens the teacher reads in front (S).
        looks: readings by a teacher (0: none).
        trained: share of trajectories that have a signal (f).
    """

    trajectories: int
    group: int
    length: float
    prompt: float
    actions: float
    turns: float
    hint: float = 0.0
    looks: float = 1.0
    trained: float = 1.0

    @property
    def unique(self) -> float:
        """Context tokens of the rollouts, a group's prompt once."""
        own = self.length - self.prompt - self.actions
        return self.trajectories * (own + self.prompt / self.group)

    @property
    def resent(self) -> float:
        """Context tokens of the rollouts, when every turn sends all there is so far.

        What is sent grows evenly from P0 to about L.
        """
        return self.trajectories * self.turns * (self.prompt + self.length) / 2

    @property
    def teacher_unique(self) -> float:
        """Tokens of the teacher's readings, hint and prompt once a group."""
        own = self.length - self.prompt + (self.hint + self.prompt) / self.group
        return self.looks * self.trajectories * own

    @property
    def teacher_sent(self) -> float:
        """Tokens of the teacher's readings, each one whole."""
        return self.looks * self.trajectories * (self.length + self.hint)

    @property
    def sampled(self) -> float:
        """Action tokens."""
        return self.trajectories * self.actions

    @property
    def trained_tokens(self) -> float:
        """Tokens of the training rows, one pass."""
        return self.trained * self.trajectories * self.length
