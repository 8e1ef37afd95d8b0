"""Log-probabilities of given tokens by a full forward pass: the one path that all terms share.

Rows of one snapshot that begin alike (a group under one hint) are read together, and what they
share is read once. On the CPU a pass holds nothing else: the matrix units are full, there is no
padding to waste, and the numbers cannot depend on what else is in flight.

The head, the widest layer by far, sees the positions that are asked about and no other, some at a
time, so that memory grows with neither the context nor the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from turncredit.backends.local.lean import Lean
from turncredit.backends.local.packed import Stem
from turncredit.backends.local.packs import Index, Pack, Tree
from turncredit.backends.local.passes import Passes
from turncredit.backends.local.policy import Policy
from turncredit.backends.local.stacking import copied
from turncredit.backends.local.vocabulary import Probe
from turncredit.core.datum import Distribution
from turncredit.core.types import Array

# Logits held at once: 16 MiB of float32, below which the products themselves get slower.
_HEAD_ELEMENTS = 2**22

# What is read of one row: the policy, the states (n, d) that predict the tokens asked about, the
# row's ids, and where in it those n tokens are.
Reading = Callable[[Policy, torch.Tensor, list[int], Index], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What is asked of one row.

    Attributes:
        ids: the row.
        at_N: where the tokens are that are asked about, ascending; never 0.
        read: makes the answer.
    """

    ids: list[int]
    at_N: Index
    read: Reading

    @property
    def shared(self) -> int:
        """Tokens before the first state that is needed: what rows may have in common."""
        return int(self.at_N[0]) - 1 if len(self.at_N) else 0

    @property
    def needed(self) -> list[int]:
        """The ids up to the last state that is needed."""
        return self.ids[: int(self.at_N[-1])] if len(self.at_N) else self.ids[:1]

    @property
    def key(self) -> bytes | int:
        """Equal for rows that begin alike."""
        start = np.array(self.ids[: self.shared]).tobytes()
        return start or id(self)


def token_logprobs(
    policy: Policy, hidden: torch.Tensor, targets: torch.Tensor, probes: Sequence[Probe] = ()
) -> tuple[torch.Tensor, ...]:
    """Log-probability of each target, and what the probes see of the same logits.

    Args:
        policy: whose head is used.
        hidden: (N, d) states that predict.
        targets: (N,) ids.
        probes: each gives one number per position.

    Returns:
        For the log-probs and each probe (N,) float32. At most 16 MiB of logits exist at a time;
        where autograd or a probe makes copies of them, a quarter of that and some copies.
    """
    most = max(1, _HEAD_ELEMENTS // policy.vocabulary)
    few = max(1, most // 4)
    rows, chunk = (few, _numbers) if probes else (most, _logprobs)
    if hidden.requires_grad:
        # A few logits may stay for the backward pass; of more none does.
        chunk = _numbers if len(hidden) <= few else _with_slopes
        rows = few if probes or policy.head_is_trained else most
    parts: list[torch.Tensor] = []
    for i in range(0, len(hidden), rows):
        at = slice(i, i + rows)
        parts.append(chunk(policy, hidden[at], targets[at], probes, at))
    empty = hidden.new_zeros(0, 1 + len(probes), dtype=torch.float32)
    return (torch.cat(parts) if parts else empty).unbind(-1)


def _with_slopes(
    policy: Policy,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    probes: Sequence[Probe],
    at: slice,
) -> torch.Tensor:
    """`_numbers`, with no logits kept for the backward pass."""
    work = policy, hidden, targets, probes, at
    if policy.head_is_trained:
        return checkpoint(_numbers, *work, use_reentrant=False, preserve_rng_state=False)
    # Under a frozen head every number depends on its own state alone: its slope, (d,), is all
    # that the backward pass will need, and the logits that give it are here now.
    if policy.head_is_plain and not probes:
        numbers, share = _exponentials(policy, hidden.detach(), targets)
        slope = policy.head_rows(targets) - policy.through_head(share)
        return _Linear.apply(hidden, numbers, slope[:, None])
    state = hidden.detach().requires_grad_()
    numbers = _numbers(policy, state, targets, probes, at)
    slopes = [
        torch.autograd.grad(numbers[:, i].sum(), state, retain_graph=i + 1 < numbers.shape[1])[0]
        for i in range(numbers.shape[1])
    ]
    return _Linear.apply(hidden, numbers.detach(), torch.stack(slopes, dim=1))


def _logprobs(
    policy: Policy, hidden: torch.Tensor, targets: torch.Tensor, *_: object
) -> torch.Tensor:
    """`_numbers` without probes and without gradients."""
    return _exponentials(policy, hidden, targets)[0]


@torch.no_grad()
def _exponentials(
    policy: Policy, hidden: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs (n, 1) and all probabilities (n, V), in the memory of the logits."""
    logits = policy.logits(hidden)
    picked = logits.gather(-1, targets[:, None])
    top = logits.amax(-1, keepdim=True)
    total = logits.sub_(top).exp_().sum(-1, keepdim=True)
    return picked - top - total.log(), logits.div_(total)


class _Linear(torch.autograd.Function):
    """Numbers (n, m) of states (n, d) whose slopes (n, m, d) are known."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, numbers: torch.Tensor, slopes: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(slopes)
        return numbers

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (slopes,) = ctx.saved_tensors
        return (grads[0][..., None].to(slopes.dtype) * slopes).sum(1), None, None


def _numbers(
    policy: Policy,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    probes: Sequence[Probe],
    at: slice,
) -> torch.Tensor:
    """Log-probs and what the probes see, (n, 1 + probes)."""
    logits = policy.logits(hidden)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
    return torch.stack([logprobs, *(probe(logits, at) for probe in probes)], dim=-1)


def next_batch(passes: Passes, questions: Sequence[Question], batch_tokens: int) -> list[int]:
    """Which questions (of one snapshot) to answer together with the first one.

    On the CPU, and where a family's own cache holds the beginning, those that share it. Else also
    the shortest of the rest, up to `batch_tokens` in all, beginnings counted once (without packs:
    pads counted too).
    """
    keys = [question.key for question in questions]
    chosen = [i for i, key in enumerate(keys) if key == keys[0]] if passes.shares else [0]
    if passes.policy.device.type == "cpu" or (passes.shares and passes.kernel is None):
        return chosen
    rest = set(range(len(questions))).difference(chosen)
    for i in sorted(rest, key=lambda i: (len(questions[i].ids), i)):
        if _tokens(passes, [questions[j] for j in [*chosen, i]]) > batch_tokens:
            break
        chosen.append(i)
    return chosen


def _tokens(passes: Passes, questions: Sequence[Question]) -> int:
    """What a pass over them computes."""
    if passes.kernel is None:
        return len(questions) * max(len(q.needed) for q in questions)
    saved, seen = 0, set[bytes | int]()
    for question in questions:
        saved += question.shared if passes.shares and question.key in seen else 0
        seen.add(question.key)
    return sum(len(q.needed) for q in questions) - saved


@torch.no_grad()
def answer(
    passes: Passes,
    weights: Mapping[str, torch.Tensor],
    questions: Sequence[Question],
    batch_tokens: int,
) -> list[tuple[Any, int]]:
    """Answer questions with one snapshot.

    Args:
        passes: how the network is run.
        weights: the snapshot's tensors.
        questions: what `next_batch` chose.
        batch_tokens: tokens of a pass, where it can be cut between rows that share a beginning.

    Returns:
        Per question its answer, and how many of its tokens another one had computed.
    """
    policy, seen = passes.policy, set[bytes | int]()
    policy.mount(weights)
    lean = policy.lean(weights)
    shared: list[int] = []
    for question in questions:
        shared.append(question.shared if passes.shares and question.key in seen else 0)
        seen.add(question.key)
    if passes.shares and passes.kernel is None:
        states = _after_copies(policy, questions)
    elif len(seen) == 1 and any(shared) and _tokens(passes, questions) > batch_tokens:
        states = _after_stem(passes, questions, batch_tokens, lean)
    else:
        rows = [(q.key, q.needed, q.shared) for q in questions]
        states = passes.read(rows, [q.at_N - 1 for q in questions], lean)
    read = [
        q.read(policy, hidden, q.ids, q.at_N) for q, hidden in zip(questions, states, strict=True)
    ]
    return list(zip(read, shared, strict=True))


def _after_stem(
    passes: Passes, questions: Sequence[Question], batch_tokens: int, lean: Lean | None
) -> Iterator[torch.Tensor]:
    """Predicting states of rows that share a beginning: its keys and values are computed once."""
    length = questions[0].shared
    stem = Stem(length)
    beginning = Pack([Tree([], [questions[0].ids[:length]])])
    nothing = torch.zeros(0, dtype=torch.int64, device=passes.policy.device)
    passes.run(beginning, keep=stem, lean=lean, wanted=nothing)
    tails = [question.needed[length:] for question in questions]
    for first, last in _cut([len(tail) for tail in tails], batch_tokens):
        pack = Pack([Tree([], tails[first:last])], stem=length)
        some = questions[first:last]
        places = [pack.places(row, q.at_N - 1 - length) for row, q in enumerate(some)]
        wanted = torch.as_tensor(np.concatenate(places), device=passes.policy.device)
        hidden = passes.run(pack, stem=stem, lean=lean, wanted=wanted)
        yield from hidden.split([len(p) for p in places])


def _after_copies(policy: Policy, questions: Sequence[Question]) -> Iterator[torch.Tensor]:
    """The same by a family's own cache: each row goes on with a copy of it.

    A row that is read alone is cut at the same place, so that its numbers are the same.
    """
    length = questions[0].shared
    beginning = policy.fresh_cache()
    if length:
        policy.extend([questions[0].ids[:length]], [0], beginning)
    for question in questions:
        states = policy.extend([question.needed[length:]], [length], copied(beginning))
        yield states[0, torch.as_tensor(question.at_N - 1 - length, device=states.device)]


def _cut(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Ranges of items in order whose sizes sum to at most `most`, or of one item."""
    bounds, total = [0], 0
    for i, size in enumerate(sizes):
        if i > bounds[-1] and total + size > most:
            bounds.append(i)
            total = 0
        total += size
    bounds.append(len(sizes))
    return list(pairwise(bounds))


def row_logprobs(policy: Policy, hidden: torch.Tensor, ids: list[int], at_N: Index) -> Array:
    """Scores of a row, (T,) float64, NaN where nothing was asked."""
    targets = torch.tensor(np.array(ids)[at_N], device=policy.device)
    (scores,) = token_logprobs(policy, hidden, targets)
    filled = np.full(len(ids), np.nan)
    filled[at_N] = scores.double().cpu().numpy()
    return filled


def row_distribution(
    policy: Policy,
    hidden: torch.Tensor,
    ids: list[int],
    at_N: Index,
    *,
    k: int,
    temperature: float,
) -> Distribution:
    """What each of the tokens asked about was drawn from; see `DistributionClient`."""
    vocabulary = policy.vocabulary
    width = vocabulary if k < 0 else min(k, vocabulary)
    logprobs = np.full((len(ids), width), np.nan, np.float32)
    chosen = np.zeros((len(ids), width if k >= 0 else 0), np.int64)
    rows = max(1, _HEAD_ELEMENTS // vocabulary)
    for i in range(0, len(at_N), rows):
        at = at_N[i : i + rows]
        values = (policy.logits(hidden[i : i + rows]) / temperature).log_softmax(-1)
        if k >= 0:
            values, picked = values.topk(width)
            chosen[at] = picked.cpu().numpy()
        logprobs[at] = values.cpu().numpy()
    if k < 0:  # the same ids everywhere: one line, seen T times
        chosen = np.broadcast_to(np.arange(vocabulary), logprobs.shape)
    return Distribution(chosen, logprobs)
