"""Trials of a policy: what is computed our way is held against the family's own forward pass.

Rounding of the narrow formats grows with depth: through the 30 layers of SmolLM2-135M in bfloat16,
two sound paths are apart by up to 0.17 of the spread of the logits, as far as some wrong ones.
Through its first two layers sound ones are equal (0.005 apart through all four of household-tiny),
and a position off by one moves them by 0.03. So narrow formats are tried on two layers. A family's
own cache is tried more roughly there: its formulas differ by more than rounding, and the tests hold
it to float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from turncredit.backends.local import attention
from turncredit.backends.local.arena import Arena
from turncredit.backends.local.cached import Chunk, attend_causally
from turncredit.backends.local.lean import Lean
from turncredit.backends.local.memory import attends_fully
from turncredit.backends.local.own_cache import RowBytes
from turncredit.backends.local.stacking import cache_bytes, joinable, joined
from turncredit.core.errors import ConfigError

if TYPE_CHECKING:  # a policy tries itself
    from turncredit.backends.local.policy import Policy

# What a family raises that cannot be run in one of our ways; torch's operations raise the fourth.
UNFIT = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
_FEW = 2  # layers, and as many more as it takes to have one of full attention
_FULL = "full_attention"
_MANY = 12  # tokens
_FAR = 1_000_000  # positions, where a model names no last one
_ALIKE = 1e-3  # logits
_NEARLY, _ROUGHLY = 0.02, 0.1  # of the spread
_LARGE = 100.0  # logits beyond those of any model


@torch.no_grad()
def takes_our_cache(policy: Policy) -> bool:
    """Try our attention and cache against the family's own forward pass, and leave them in use.

    Raises:
        ConfigError: the family changes its logits after the head (scaling, soft-capping), or
            cannot be run as a body and a head at all.
    """
    rows, model = some_rows(policy.vocabulary, 12, 9), policy.model
    with measurable(policy):
        want = _own_logits(policy, rows[0])
        original = model.config._attn_implementation or "sdpa"
        if attends_fully(model.config):
            model.set_attn_implementation(attention.NAME)
            if _agrees(policy, rows, want[-1]):
                return True
            model.set_attn_implementation(original)
    return False


def _own_logits(policy: Policy, row: list[int]) -> torch.Tensor:
    """The family's own (T, V), which our way through its parts has to give, too."""
    family, ids = type(policy.model).__name__, torch.tensor([row], device=policy.device)
    try:
        want = policy.model(input_ids=ids).logits[0].float()
        found = policy.logits(policy.full([row])[0])
    except torch.OutOfMemoryError:
        raise
    except UNFIT as error:
        raise ConfigError(f"{family} is unsupported ({type(error).__name__}: {error})") from error
    if not same(policy, found, want) or not ends_with_head(policy, ids):
        raise ConfigError(f"{family} changes its logits after the LM head: unsupported")
    return want


def _agrees(policy: Policy, rows: list[list[int]], want: torch.Tensor) -> bool:
    try:
        full = policy.logits(policy.full(rows)[0])
        near, apart = stepped(policy, rows, (5, 8))
    except torch.OutOfMemoryError:
        raise
    except UNFIT:
        return False
    return same(policy, torch.stack([full[-1], near[0], apart[0]]), want)


def same(policy: Policy, found: torch.Tensor, want: torch.Tensor) -> bool:
    """Logits agree; a model noisier than those that were measured gets a wider bound of noise."""
    if not policy.exact:
        return nearly_alike(found, want)
    if not alike(found, want):
        return False
    errors = found - want
    spread = float((errors.amax(-1) - errors.amin(-1)).max())
    policy.noise = max(policy.noise, 4 * spread)
    return True


def alike(found: torch.Tensor, want: torch.Tensor) -> bool:
    """Logits are no further apart than those of two float32 paths through any healthy model."""
    return bool((found - want).abs().max() < _ALIKE)  # false where one is no number


@contextmanager
def measurable(policy: Policy) -> Iterator[None]:
    """Few enough layers for rounding to be smaller than what a wrong pass would change."""
    body = policy.model.get_decoder()
    whole = getattr(body, "layers", None)
    if policy.exact or not isinstance(whole, nn.ModuleList):
        yield
        return
    kinds = getattr(policy.model.config.get_text_config(), "layer_types", None) or [_FULL]
    first = kinds.index(_FULL) if _FULL in kinds else 0
    body.layers = whole[: max(_FEW, first + 1)]
    try:
        yield
    finally:
        body.layers = whole


@torch.no_grad()
def ends_with_head(policy: Policy, ids: torch.Tensor) -> bool:
    """What the head gives are the family's logits, to the last bit.

    Large ones are put in its place: a soft cap at 30 changes small logits by less than they are
    rounded by, and those of a sure model by nats.
    """
    given: list[torch.Tensor] = []

    def replaced(_head: object, _input: object, logits: torch.Tensor) -> torch.Tensor:
        ramp = torch.linspace(-_LARGE, _LARGE, logits.shape[-1], device=logits.device)
        given.append(ramp.to(logits.dtype).expand_as(logits))
        return given[-1].clone()

    head: Any = policy.model.get_output_embeddings()
    hook = head.register_forward_hook(replaced)
    try:
        said = policy.model(input_ids=ids).logits
    finally:
        hook.remove()
    return all(torch.equal(logits.to(said.dtype), said) for logits in given)


def nearly_alike(found: torch.Tensor, want: torch.Tensor, bound: float = _NEARLY) -> bool:
    """Vectors (..., V) differ by little more than the rounding of a narrow format."""
    spread = (want - want.mean(-1, keepdim=True)).norm(dim=-1)
    return bool(((found - want).norm(dim=-1) < bound * spread).all())


def some_rows(vocabulary: int, *lengths: int) -> list[list[int]]:
    """Rows of ids that differ from one another within a row."""
    return [[(7 * i + 3) % vocabulary for i in range(n)] for n in lengths]


def stepped(policy: Policy, rows: list[list[int]], cut: tuple[int, int]) -> list[torch.Tensor]:
    """Last logits (2, V) of two rows run in two pieces: in rows close together, and far apart.

    Close ones are read in place, the others gathered.
    """
    arena = Arena(policy.cache_shape())
    arena.resize(10, 4 + max(len(row) for row in rows))
    starts, places = list(cut), [2, 0]
    begun = [row[:n] for row, n in zip(rows, cut, strict=True)]
    rest = [row[n:] for row, n in zip(rows, cut, strict=True)]
    policy.step(Chunk(begun, [0, 0], places), arena)
    near = policy.logits(policy.step(Chunk(rest, starts, places), arena))
    arena.copy(0, 9, cut[1])
    return [near, policy.logits(policy.step(Chunk(rest, starts, [2, 9]), arena))]


def at_the_end(policy: Policy, lean: Lean) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (T, V) of a few tokens at the model's last positions: by the lean pass, and its own.

    Ministral 3 scales queries beyond the length of its first rows, which no short row shows.
    """
    (row,) = some_rows(policy.vocabulary, _MANY)
    end = min(policy.positions, _FAR)
    ids = torch.tensor(row, device=policy.device)
    positions = torch.arange(end - _MANY, end, device=policy.device)

    def attend(_: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        query, key, value = (x.transpose(0, 1)[None] for x in (q, *kv.chunk(2, dim=1)))
        return attend_causally(query, key, value, lean.scale)[0].transpose(0, 1)

    found = policy.logits(lean.hidden(ids, positions, attend))
    want = policy.logits(policy.run(positions[None], None, input_ids=ids[None])[0])
    return found, want


@torch.no_grad()
def own_row_bytes(policy: Policy) -> RowBytes | None:
    """What a row takes of the family's own cache; None: it says something else than whole rows."""
    rows = some_rows(policy.vocabulary, 150, 99)  # delta rules work on chunks of 64
    try:
        with measurable(policy):
            want = torch.stack([policy.fresh_logits(row) for row in rows])
            found = grown(policy, rows)
            if policy.exact:
                sound = same(policy, found, want)
            else:
                sound = nearly_alike(found, want, _ROUGHLY)
        if not sound:
            return None
        sizes = []
        for row in rows:
            cache = policy.fresh_cache()
            policy.extend([row], [0], cache)
            sizes.append(cache_bytes(cache))
    except torch.OutOfMemoryError:
        raise
    except UNFIT:
        return None
    per_token = (sizes[0] - sizes[1]) / (len(rows[0]) - len(rows[1]))
    return RowBytes(sizes[0] - per_token * len(rows[0]), per_token)


def grown(policy: Policy, rows: list[list[int]]) -> torch.Tensor:
    """Last logits (2, V) of two rows run in pieces, together at the end where that can be done."""
    caches = [policy.fresh_cache() for _ in rows]
    for row, cache in zip(rows, caches, strict=True):
        policy.extend([row[:70]], [0], cache)
        policy.extend([row[70:-1]], [70], cache)
    last, stored = [row[-1:] for row in rows], [len(row) - 1 for row in rows]
    if joinable(caches):
        states = policy.extend(last, stored, joined(caches))
    else:
        apart = zip(last, stored, caches, strict=True)
        states = torch.cat([policy.extend([x], [n], cache) for x, n, cache in apart])
    return policy.logits(states[:, -1])
