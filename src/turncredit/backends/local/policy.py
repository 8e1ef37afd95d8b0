"""The network: a Transformers module, its trainable tensors, and the two ways to run it.

The module itself belongs to nobody: whoever runs it first *mounts* their trainable tensors (a
training client's live ones, or a snapshot's copies). Mounting swaps pointers, so holding many
snapshots costs the trained tensors only.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel

from turncredit.backends.local import adapter, attention, products, trials
from turncredit.backends.local.arena import Arena, Shape, Stretch, Window
from turncredit.backends.local.cached import Cached, Chunk
from turncredit.backends.local.lean import Lean, fuse
from turncredit.backends.local.lighter import lighten
from turncredit.backends.local.memory import cache_shape
from turncredit.backends.local.models import longest_row
from turncredit.backends.local.packed import Layout
from turncredit.core.errors import ConfigError

Tensors = dict[str, torch.Tensor]


# The error of float32 logits against the canonical path, as its spread (largest minus smallest)
# over the vocabulary, which bounds the change of any distance. Measured over 2,500 positions, with
# modules and lean, prefills and single steps mixed: at most 4e-5 for household-tiny up to 3,000
# tokens, 8e-5 for random weights with logits up to 13, 9e-5 for SmolLM2-135M with logits up to 35.
# Twice the largest is the least that is allowed.
_NOISE = 2e-4
# The same of a family's own cache. A delta rule reads many tokens by another formula than one, and
# their difference grows with the row: 2.3e-4 for random weights after 700 tokens.
_OWN_NOISE = 1e-3
_LEAN_SETS = 2  # fused weights kept: those of a snapshot, and of one that is compared with it


class Policy:
    """One architecture with its frozen weights.

    Attributes:
        model: the causal LM (with LoRA layers inside when the rank is positive).
        device: where it is.
        vocabulary: number of ids its head scores.
        positions: tokens of its longest row.
        cached: our cache works for this family (checked numerically when loaded).
        row_bytes: what a row takes of the family's own cache, where that works and ours does not.
        size: parameters a token is multiplied with.
        noise: bound of numerical noise in the distance of two logits, float32.
        fingerprint: hash of the architecture and of the frozen weights.
    """

    def __init__(self, model: PreTrainedModel, *, lora_rank: int, lean: bool = True) -> None:
        self.model = model.eval().requires_grad_(False)
        self.device = model.device
        self._body: Any = model.get_decoder()
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ConfigError(f"{type(model).__name__} has no linear LM head")
        self._head = head
        self.vocabulary = head.weight.shape[0]
        self.positions = longest_row(model.config.get_text_config().to_dict()) or sys.maxsize
        parameters = inspect.signature(self._body.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.fingerprint = _fingerprint(model)
        self.size = sum(p.numel() for n, p in model.named_parameters() if "embed" not in n)
        tied = head.weight is model.get_input_embeddings().weight
        self.size += head.weight.numel() if tied else 0
        self._lean_sets: list[tuple[Mapping[str, torch.Tensor] | None, Lean]] = []
        self._mounted: Mapping[str, torch.Tensor] | None = None
        self._may_be_lean = False
        self.noise = _NOISE
        self.cached = trials.takes_our_cache(self)
        self.row_bytes = None if self.cached else trials.own_row_bytes(self)
        if self.row_bytes:
            self.noise = max(self.noise, _OWN_NOISE)
        self._may_be_lean = lean and self._leans()
        self.lora_rank = lora_rank
        self.peft_config = adapter.add_lora(model, lora_rank) if lora_rank else None
        if not lora_rank:
            model.requires_grad_(True)
        lighten(model)
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}

    @property
    def exact(self) -> bool:
        """Numerical noise is small enough for sampled ids not to depend on the batch."""
        return self.model.dtype == torch.float32

    def cache_shape(self) -> Shape:
        """Cache geometry of this model."""
        return cache_shape(self.model.config, self.model.dtype, self.device)

    def copy_trained(self) -> Tensors:
        """Copies of the trainable tensors as they are mounted now."""
        return {name: p.detach().clone() for name, p in self._trained.items()}

    def mount(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, nn.Parameter]:
        """Make the module compute with `tensors`; returns its trainable parameters by name."""
        if tensors is not self._mounted:
            for name, parameter in self._trained.items():
                parameter.data = tensors[name]
            self._mounted = tensors
        return self._trained

    def full(self, rows: list[list[int]]) -> torch.Tensor:
        """Hidden states (B, T, d) of whole right-padded rows, nothing cached."""
        ids = self._padded(rows)
        positions = torch.arange(ids.shape[1], device=self.device)[None]
        mask = None
        if self.model.config._attn_implementation != attention.NAME:
            lengths = torch.tensor([len(r) for r in rows], device=self.device)
            mask = positions < lengths[:, None]
        return self._body(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state

    def run(
        self, positions: torch.Tensor, layout: Layout | None, **tokens: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states (B, N, d), nothing cached; see `passes`.

        Args:
            positions: (1, N).
            layout: who looks at whom; None: each token at those before it.
            tokens: input_ids (B, N) or inputs_embeds (B, N, d).
        """
        packed: dict[str, Any] = {} if layout is None else {attention.LAYOUT: layout}
        return self._body(
            attention_mask=None, position_ids=positions, use_cache=False, **tokens, **packed
        ).last_hidden_state

    def layers(self) -> list[nn.Module]:
        """The blocks of the body, in order; none where it has no such list."""
        return list(getattr(self._body, "layers", ()))

    def lean(self, tensors: Mapping[str, torch.Tensor]) -> Lean | None:
        """The forward pass without modules, for a snapshot's tensors; None: there is none.

        Args:
            tensors: frozen ones. What was fused is kept by their identity, so a training
                client's live tensors must not come here.
        """
        if not self._may_be_lean:
            return None
        self.mount(tensors)
        return self._fused()

    @torch.no_grad()
    def step(self, chunk: Chunk, arena: Arena) -> torch.Tensor:
        """Run new tokens through the cache; hidden state (B, d) of each row's last one."""
        if self._may_be_lean:
            lean = self._fused()
            assert lean is not None
            cached = Cached(arena, chunk, lean.scale)
            return lean.hidden(cached.ids, cached.positions, cached, cached.last)
        ids = self._padded(chunk.ids)
        count = torch.tensor([len(row) for row in chunk.ids], device=self.device)
        start = torch.tensor(chunk.starts, device=self.device)
        positions = start[:, None] + torch.arange(ids.shape[1], device=self.device)
        shown = int((start + count).max())
        mask = torch.arange(shown, device=self.device) <= positions[..., None]
        # Pads beyond the arena all go to its last position, which is free by construction.
        stretch = Stretch.of(chunk.rows, self.device)
        window = Window(arena, stretch, positions.clamp(max=arena.positions - 1), shown)
        mask = stretch.spread(mask, True)
        with attention.rows_among(stretch.places):
            hidden = self._body(
                input_ids=ids,
                attention_mask=mask[:, None],
                position_ids=positions,
                use_cache=True,
                **{self._cache_name: window},
            ).last_hidden_state
        return hidden[torch.arange(len(count), device=self.device), count - 1]

    @torch.no_grad()
    def extend(self, ids: list[list[int]], stored: list[int], cache: Any) -> torch.Tensor:
        """Run as many new tokens of each row through a cache of the family's own.

        Args:
            ids: (B, N), the new tokens.
            stored: tokens of each row in the cache, whose keys are padded on the left.
            cache: as `fresh_cache` makes them; it is changed.

        Returns:
            The hidden states (B, N, d) of the new tokens.
        """
        tokens = torch.tensor(ids, device=self.device)
        start = torch.tensor(stored, device=self.device)[:, None]
        longest, count = max(stored), tokens.shape[1]
        mask = None
        if min(stored) < longest:
            mask = torch.arange(longest + count, device=self.device) >= longest - start
        return self._body(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=start + torch.arange(count, device=self.device),
            use_cache=True,
            **{self._cache_name: cache},
        ).last_hidden_state

    def fresh_cache(self) -> Any:
        """An empty cache of the family's own."""
        return DynamicCache(config=self.model.config)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., d) → (..., V) in float32 (float64 of a float64 model)."""
        if hidden.dim() == 2 and self.head_is_plain:
            logits = products.linear(hidden, self._head.weight, self._head.bias)
        else:
            logits = self._head(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    def head_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Slopes (n, d) of the logits of tokens by the state that predicts them."""
        return self._head.weight[ids]

    def through_head(self, slope: torch.Tensor) -> torch.Tensor:
        """From the slope by logits, (n, V), that by the state, (n, d)."""
        return slope.to(self._head.weight.dtype) @ self._head.weight

    @property
    def head_is_plain(self) -> bool:
        """Its weights can be read (packed ones cannot)."""
        return type(self._head) is nn.Linear

    @property
    def head_is_trained(self) -> bool:
        """A gradient by the head's weights is wanted."""
        return any(p.requires_grad for p in self._head.parameters())

    @torch.no_grad()
    def fresh_logits(self, ids: list[int]) -> torch.Tensor:
        """Next-token logits (V,) by the canonical path: one row, no cache."""
        return self.logits(self.full([ids])[0, -1])

    def _fused(self) -> Lean | None:
        """The lean form of what is mounted."""
        for tensors, lean in self._lean_sets:
            if tensors is self._mounted:
                return lean
        del self._lean_sets[: 1 - _LEAN_SETS]
        made = fuse(self._body)
        if made:
            self._lean_sets.append((self._mounted, made))
        return made

    @torch.no_grad()
    def _leans(self) -> bool:
        """The lean pass is made for this family, and says what the module says."""
        if not (self.cached and self.exact and (lean := self._fused())):
            return False
        self._may_be_lean = True
        rows = trials.some_rows(self.vocabulary, 150, 99)
        full = self.logits(self.full(rows))
        want = torch.stack([full[0, -1], full[1, 98]])
        try:
            found = [*trials.stepped(self, rows, (70, 5)), *trials.stepped(self, rows, (149, 98))]
            far, wanted = trials.at_the_end(self, lean)
        except (NotImplementedError, RuntimeError):  # a device that lacks one of its operations
            return False
        finally:
            self._lean_sets.clear()
        return trials.alike(far, wanted) and trials.same(self, torch.stack(found), want)

    def _padded(self, rows: list[list[int]]) -> torch.Tensor:
        tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
        return pad_sequence(tensors, batch_first=True).to(self.device)


def _fingerprint(model: PreTrainedModel) -> str:
    """Hash over names, shapes and a sample of every parameter."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // 64)].float().cpu().numpy()
        digest.update(sample.tobytes())
    return digest.hexdigest()[:16]
