"""One pass of the network over many rows: packed where the family allows it, else padded.

Packs are tried numerically, values and gradients, before the first one is used; a family that
disagrees (recurrent layers, windows, an attention of its own) is run on padded rows instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from turncredit.backends.local import attention, trials
from turncredit.backends.local.kernels import Kernel, candidates
from turncredit.backends.local.lean import Lean
from turncredit.backends.local.packed import Layout, Stem
from turncredit.backends.local.packs import Index, Pack, Padded, Tree, forest
from turncredit.backends.local.policy import Policy

Checkpointing = Literal["auto", "on", "off"]

# Shares of the largest number. In bfloat16 sound states are apart by 0.015 at most; of gradients,
# rounded again on their way back, single numbers by 0.09 and the norm by 0.08 (sharp attention).
# A lost gradient of the queries moves the norm by 0.2 and more.
_EXACT, _NARROW, _NARROW_GRADIENT = 1e-3, 0.05, 0.15
_MEASURED = (32, 96)  # tokens of the two passes that tell what a token's activations take


@dataclass(frozen=True, slots=True)
class States:
    """Hidden states of some rows.

    Attributes:
        hidden: (M, d).
        places: (row, positions in the row) → where their states are among the M.
    """

    hidden: torch.Tensor
    places: Callable[[int, Index], Index]


@dataclass(frozen=True, slots=True)
class _Laid:
    """A pack, and the number in it of each row it was made of."""

    pack: Pack
    number: Mapping[int, int]

    def places(self, row: int, at_T: Index) -> Index:
        """Where tokens of a row are in the pack."""
        return self.pack.places(self.number[row], at_T)


@dataclass(slots=True)
class Passes:
    """How a policy runs over whole rows.

    Attributes:
        policy: the network.
        share: rows of one key share their beginning.
        checkpointing: on: activations are computed again in the backward pass, layer by layer;
            auto: where those of a pass would take more than `activation_bytes`. Passes are not
            filled so far, hence only a row that exceeds it alone is checkpointed.
        activation_bytes: see there.
    """

    policy: Policy
    share: bool = True
    checkpointing: Checkpointing = "auto"
    activation_bytes: int = 4 * 2**30
    _kernel: Kernel | None = None
    _tried: bool = False
    _token_bytes: float | None = None

    @property
    def kernel(self) -> Kernel | None:
        """What computes attention over packs; None: this family cannot take them."""
        if not self._tried:
            self._tried = True
            self._kernel = next((k for k in self._known() if agrees(self.policy, k)), None)
            if self._kernel is None and self.policy.cached:  # else more was said at loading
                warnings.warn(
                    f"{type(self.policy.model).__name__} is scored and trained on padded rows: "
                    "its attention takes no packs, so what rows share is computed for each",
                    stacklevel=2,
                )
        return self._kernel

    @property
    def shares(self) -> bool:
        """Rows that begin alike are worth bringing together."""
        return self.share and (self.kernel is not None or self.policy.row_bytes is not None)

    def states(self, rows: Sequence[tuple[Hashable, list[int], int]]) -> States:
        """Hidden states of rows: (key, ids, how many of them rows of this key share)."""
        if self.kernel is None:
            ids = [ids for _, ids, _ in rows]
            longest = max(map(len, ids))
            with self._saving(longest * len(ids)):
                hidden = self.policy.full(ids)
            return States(hidden.flatten(0, 1), Padded(longest).places)
        laid = self._lay(rows)
        return States(self.run(laid.pack), laid.places)

    def read(
        self,
        rows: Sequence[tuple[Hashable, list[int], int]],
        at_N: Sequence[Index],
        lean: Lean | None = None,
    ) -> list[torch.Tensor]:
        """The states that are wanted of rows (see `states`), per row (n, d), by `lean` or not."""
        if self.kernel is None:
            states = self.states(rows)
            return [states.hidden[states.places(b, at)] for b, at in enumerate(at_N)]
        laid = self._lay(rows)
        places = [laid.places(b, at) for b, at in enumerate(at_N)]
        wanted = torch.as_tensor(np.concatenate(places), device=self.policy.device)
        return list(self.run(laid.pack, lean=lean, wanted=wanted).split([len(p) for p in places]))

    def run(
        self,
        pack: Pack,
        *,
        stem: Stem | None = None,
        keep: Stem | None = None,
        lean: Lean | None = None,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states of a pack with the mounted weights.

        Args:
            pack: N tokens.
            stem: keys and values that all rows of the pack go on from.
            keep: where to leave the pack's own keys and values.
            lean: the same weights without modules, where no gradient is wanted.
            wanted: (M,) which states are asked for; None: all.

        Returns:
            (M, d) or (N, d).
        """
        kernel = self.kernel
        if kernel is None:
            raise NotImplementedError("packs")
        layout = Layout.of(pack, kernel, stem=stem, keep=keep)
        if lean is not None:
            return _run_lean(lean, pack, layout, self.policy.device, wanted)
        with self._saving(len(pack)):
            hidden = run_pack(self.policy, pack, layout)
        return hidden if wanted is None else hidden[wanted]

    def _lay(self, rows: Sequence[tuple[Hashable, list[int], int]]) -> _Laid:
        if not self.share:
            rows = [(i, ids, 0) for i, (_, ids, _) in enumerate(rows)]
        trees, members = zip(*forest(rows), strict=True)
        order = [row for same in members for row in same]
        return _Laid(Pack(trees), {row: i for i, row in enumerate(order)})

    def _known(self) -> list[Kernel]:
        model = self.policy.model
        if model.config._attn_implementation != attention.NAME:
            return []
        return candidates(self.policy.device, model.dtype)

    @contextmanager
    def _saving(self, tokens: int) -> Iterator[None]:
        """Within, passes of so many tokens are checkpointed if they have to be."""
        if not torch.is_grad_enabled() or not self._wants_checkpoints(tokens):
            yield
            return
        with recomputed(self.policy):
            yield

    def room(self, most: int) -> int:
        """How many of `most` tokens a training pass may have, so as not to need checkpoints."""
        if self.checkpointing != "auto":
            return most
        return max(1, min(most, int(self.activation_bytes / self._bytes_per_token())))

    def _wants_checkpoints(self, tokens: int) -> bool:
        if self.checkpointing != "auto":
            return self.checkpointing == "on"
        return tokens * self._bytes_per_token() > self.activation_bytes

    def _bytes_per_token(self) -> float:
        if self._token_bytes is None:
            self._token_bytes = activation_bytes_per_token(self.policy)
        return self._token_bytes


def run_pack(policy: Policy, pack: Pack, layout: Layout) -> torch.Tensor:
    """Hidden states (N, d) of a pack by the module."""
    ids, positions = (
        torch.tensor(x, device=policy.device)[None] for x in (pack.ids, pack.positions)
    )
    return policy.run(positions, layout, input_ids=ids)[0]


def _run_lean(
    lean: Lean, pack: Pack, layout: Layout, device: torch.device, wanted: torch.Tensor | None
) -> torch.Tensor:
    def attend(layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        query, key, value = (x.transpose(0, 1)[None] for x in (q, *kv.chunk(2, dim=1)))
        return layout.attend(layer, query, key, value, lean.scale)[0]

    ids, positions = (torch.tensor(x, device=device) for x in (pack.ids, pack.positions))
    return lean.hidden(ids, positions, attend, wanted)


@contextmanager
def recomputed(policy: Policy) -> Iterator[None]:
    """Within, layers keep their inputs alone, and run again when the backward pass needs more."""
    layers = policy.layers()
    forwards = [layer.forward for layer in layers]
    for layer, forward in zip(layers, forwards, strict=True):
        layer.forward = partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer, forward in zip(layers, forwards, strict=True):
            layer.forward = forward


def activation_bytes_per_token(policy: Policy) -> float:
    """What the backward pass of one more token keeps, measured on two short rows."""
    small, large = (_activation_bytes(policy, n) for n in _MEASURED)
    return (large - small) / (_MEASURED[1] - _MEASURED[0])


def _activation_bytes(policy: Policy, tokens: int) -> int:
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        hidden = policy.full([_some_ids(policy, tokens)])
    del hidden  # storages live until here, so that no address is counted for two of them
    return sum(kept.values())


def agrees(policy: Policy, kernel: Kernel) -> bool:
    """Packs with this kernel give the states and gradients of separate rows."""
    prefix, *tails = (_some_ids(policy, n, seed) for seed, n in enumerate((5, 4, 3, 2)))
    p, a, b = (len(x) for x in (prefix, *tails[:2]))
    pack = Pack([Tree(prefix, tails[:2]), Tree([], [[*prefix, *tails[2]]])])
    stem, after = Stem(p), Pack([Tree([], tails[:2])], stem=p)
    try:
        rows = [Pack([Tree([], [[*prefix, *tail]])]) for tail in tails]
        with trials.measurable(policy):
            wanted = _probed(policy, rows, None, p)
            found = _probed(policy, [pack], kernel, p)
        with trials.measurable(policy), torch.no_grad():
            before = Pack([Tree([], [prefix])])
            run_pack(policy, before, Layout.of(before, kernel, keep=stem))
            later = run_pack(policy, after, Layout.of(after, kernel, stem=stem)).float()
    except torch.OutOfMemoryError:
        raise
    except trials.UNFIT:
        return False
    states, gradient = (
        torch.cat([w[0], w[1, p : p + b], w[2, : p + len(tails[2])]]) for w in wanted
    )
    gradient[:p] += wanted[1][1, :p]  # what a shared token feeds adds up
    pairs = [(found[0][0], states), (later, states[p : p + a + b])]
    if policy.exact:
        return all(_close(x, y, _EXACT) for x, y in [*pairs, (found[1][0], gradient)])
    apart = (found[1][0] - gradient).norm()
    return all(_close(x, y, _NARROW) for x, y in pairs) and bool(
        apart <= _NARROW_GRADIENT * gradient.norm()
    )


def _probed(
    policy: Policy, packs: Sequence[Pack], kernel: Kernel | None, own: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """States (B, N, d), and the gradient by its embeddings of a mix of those from `own` on.

    Without a kernel: rows of one batch, not packs; the first is the longest.
    """
    ids = pad_sequence([torch.tensor(p.ids) for p in packs], batch_first=True).to(policy.device)
    positions = torch.tensor(packs[0].positions, device=policy.device)[None]
    layout = Layout.of(packs[0], kernel) if kernel else None
    with torch.enable_grad():
        embedded = policy.model.get_input_embeddings()(ids).detach().requires_grad_()
        states = policy.run(positions, layout, inputs_embeds=embedded)
        # A token's part in the mix depends on the token alone, not on where it is laid out.
        mix = torch.cos(ids[..., None] * 0.7 + torch.arange(states.shape[-1], device=ids.device))
        real = torch.tensor([[i < len(p) for i in range(ids.shape[1])] for p in packs])
        mix = mix * ((positions >= own) & real.to(policy.device))[..., None]
        (gradient,) = torch.autograd.grad((states * mix.to(states.dtype)).sum(), embedded)
    return states.detach().float(), gradient.float()


def _close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> bool:
    """Within the tolerance, relative to the largest number."""
    return bool((found - wanted).abs().max() <= tolerance * wanted.abs().max())


def _some_ids(policy: Policy, count: int, seed: int = 0) -> list[int]:
    return [(7 * i + 31 * seed + 3) % policy.vocabulary for i in range(count)]
