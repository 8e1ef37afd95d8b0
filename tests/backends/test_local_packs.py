"""Packs: shared beginnings, exact values and gradients, and memory that follows the actions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from turncredit.backends.local import Config, create, lighter, microbatches, policy, score
from turncredit.backends.local.clients import LocalTrainingClient
from turncredit.backends.local.kernels import candidates
from turncredit.backends.local.packed import Layout
from turncredit.backends.local.packs import Pack, Tree
from turncredit.backends.local.passes import Passes, agrees
from turncredit.backends.local.policy import Policy
from turncredit.backends.local.trainer import Tally, Trainer
from turncredit.core.calls import AdamParams, SamplingParams
from turncredit.core.datum import Datum
from turncredit.core.losses import parse_loss

TREES = st.lists(
    st.tuples(st.integers(0, 4), st.lists(st.integers(0, 3), min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_model(tmp_path_factory.mktemp("models") / "llama")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def trees_of(shape: list[tuple[int, list[int]]]) -> list[Tree]:
    """Trees of distinct ids."""
    ids = iter(range(1000))
    return [
        Tree([next(ids) for _ in range(prefix)], [[next(ids) for _ in range(n)] for n in tails])
        for prefix, tails in shape
    ]


def seen_by(pack: Pack, before: int = 0) -> torch.Tensor:
    """(N, stem + N) True where a query looks at a key; no pair may be in two parts."""
    seen = torch.zeros(len(pack), before + len(pack), dtype=torch.int64)
    for part in pack.parts:
        block = torch.ones_like(seen[part.queries, part.keys])
        seen[part.queries, part.keys] += block.tril() if part.causal else block
    assert (seen <= 1).all()
    return seen.bool()


@given(TREES, st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_a_token_sees_its_row_up_to_itself_and_nothing_else(
    shape: list[tuple[int, list[int]]], stem: int
) -> None:
    trees = trees_of(shape)
    pack = Pack(trees, stem)
    wanted = torch.zeros(len(pack), stem + len(pack), dtype=torch.bool)
    wanted[:, :stem] = True
    row = 0
    for tree in trees:
        for tail in tree.tails:
            ids = [*tree.prefix, *tail]
            places = pack.places(row, np.arange(len(ids)))
            assert [pack.ids[p] for p in places] == ids
            assert [pack.positions[p] for p in places] == [*range(stem, stem + len(ids))]
            for n, place in enumerate(places):
                wanted[place, stem + places[: n + 1]] = True
            row += 1
    assert pack.rows == row
    assert len(pack) == sum(tree.size for tree in trees)
    assert torch.equal(seen_by(pack, stem), wanted)


@pytest.mark.parametrize("kernel", candidates(torch.device("cpu"), torch.float64))
@given(TREES, st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_joined_attention_is_attention_under_that_mask(
    kernel: Any, shape: list[tuple[int, list[int]]], seed: int
) -> None:
    pack = Pack(trees_of(shape))
    if not len(pack):
        return
    torch.manual_seed(seed)
    sizes = [(1, heads, len(pack), 8) for heads in (4, 2, 2)]
    q, k, v = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes)
    found = Layout.of(pack, kernel).attend(0, q, k, v, 0.3)
    scores = (q @ k.repeat_interleave(2, 1).mT * 0.3).masked_fill(~seen_by(pack), -torch.inf)
    wanted = (scores.softmax(-1) @ v.repeat_interleave(2, 1)).transpose(1, 2)
    torch.testing.assert_close(found, wanted)
    weight = torch.randn_like(wanted)
    slopes = [torch.autograd.grad((x * weight).sum(), [q, k, v]) for x in (found, wanted)]
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1), st.integers(1, 40))
@settings(max_examples=80, deadline=None)
def test_micro_batches_keep_the_budget_and_trees(tails: list[tuple[int, int]], most: int) -> None:
    """Every row once; no pass above the budget but of one row; a tree is not cut without need."""
    shared = {key: 2 * key for key in range(4)}
    rows = [(key, shared[key] + tail, shared[key]) for key, tail in tails]

    def size(batch: list[int]) -> int:
        prefixes = {rows[i][0]: rows[i][2] for i in batch}
        return sum(prefixes.values()) + sum(rows[i][1] - rows[i][2] for i in batch)

    batches = microbatches.packed(rows, most)
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    assert all(size(batch) <= most or len(batch) == 1 for batch in batches)
    for key in range(4):
        tree = [i for i, row in enumerate(rows) if row[0] == key]
        used = sum(any(i in tree for i in batch) for batch in batches)
        assert used <= 1 or size(tree) > most


# ── a whole network, held to Transformers' own forward pass ──────────────────────────────────


def double(folder: str, **settings: Any) -> Trainer:
    """A float64 policy with random adapters of rank 3."""
    net = Policy(AutoModelForCausalLM.from_pretrained(folder), lora_rank=3)
    net.model.double()
    torch.manual_seed(5)
    weights = {n: torch.randn(w.shape).double() * 0.1 for n, w in net.copy_trained().items()}
    return Trainer(Passes(net, **settings), weights, optimizer=None)  # type: ignore[arg-type]


def group(rng: np.random.Generator, prompts: int = 2, members: int = 3) -> list[Datum]:
    """Rows of `members` per prompt, several turns each, of unequal lengths."""
    out = []
    for _ in range(prompts):
        prompt = rng.integers(3, 280, int(rng.integers(4, 12)))
        for _ in range(members):
            length = len(prompt) + int(rng.integers(1, 20))
            mask = np.zeros(length, bool)
            mask[len(prompt)] = True
            mask[len(prompt) :] |= rng.random(length - len(prompt)) < 0.4
            out.append(
                Datum(
                    tokens=[*prompt, *rng.integers(3, 280, length - len(prompt))],
                    logprobs=mask * rng.uniform(-6, -4, length),
                    advantages=mask * rng.normal(size=length).astype(np.float32),
                    mask=mask,
                )
            )
    return out


def reference(trainer: Trainer, rows: list[Datum]) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Log-probs of action tokens and the gradient of -sum(advantage * log-prob), row by row."""
    parameters = trainer.policy.mount(trainer.weights)
    logprobs = []
    for row in rows:
        ids = torch.tensor(np.array(row.tokens))[None]
        # A row of its own, and Transformers' attention instead of ours.
        trainer.policy.model.set_attn_implementation("sdpa")
        every = trainer.policy.model(input_ids=ids).logits[0].log_softmax(-1)
        trainer.policy.model.set_attn_implementation("turncredit")
        at = np.flatnonzero(row.mask)
        new = every[at - 1, ids[0, at]]
        (-new * torch.tensor(row.advantages[at])).sum().backward()
        logprobs.append(new.detach().numpy())
    found = {n: p.grad.clone() for n, p in parameters.items() if p.grad is not None}
    for parameter in parameters.values():
        parameter.grad = None
    return logprobs, found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"share": False},
        {"checkpointing": "on"},
        {"activation_bytes": 1},
        {"batch_tokens": 1},
        {"batch_tokens": 30},
        {"head": 700},
    ],
)
def test_values_and_gradients_are_those_of_separate_rows(
    folder: str, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    most = settings.pop("batch_tokens", 4096)
    monkeypatch.setattr(score, "_HEAD_ELEMENTS", settings.pop("head", score._HEAD_ELEMENTS))
    trainer = double(folder, **settings)
    assert trainer.passes.kernel is not None
    data = group(np.random.default_rng(3))
    wanted, slopes = reference(trainer, data)
    for batch in trainer.micro_batches(data, most):
        new = trainer.accumulate([data[i] for i in batch], parse_loss("cross_entropy", {}), Tally())
        for i, found in zip(batch, new, strict=True):
            np.testing.assert_allclose(found[data[i].mask], wanted[i], atol=1e-10)
    assert set(trainer.gradients) == set(slopes)
    for name, slope in slopes.items():
        torch.testing.assert_close(trainer.gradients[name], slope, atol=1e-10, rtol=1e-9)


def test_frozen_weights_get_no_gradient_and_keep_none(folder: str) -> None:
    trainer = double(folder)
    trainer.accumulate(group(np.random.default_rng(4)), parse_loss("cross_entropy", {}), Tally())
    frozen = [p for n, p in trainer.policy.model.named_parameters() if n not in trainer.weights]
    assert len(frozen) > 10
    assert not any(p.requires_grad or p.grad is not None for p in frozen)
    assert all(p.grad is None for p in trainer.policy.mount(trainer.weights).values())


def test_shared_tokens_are_computed_once(folder: str) -> None:
    data = group(np.random.default_rng(6), prompts=1, members=4)
    sizes = []
    for share in (True, False):
        trainer = double(folder, share=share)
        assert trainer.passes.kernel is not None  # tried, and measured, before anything is counted
        assert trainer.passes.room(4096) == 4096
        with Watch() as watch:
            trainer.accumulate(data, parse_loss("cross_entropy", {}), Tally())
        sizes.append(watch.embedded)
    prompt = int(np.flatnonzero(data[0].mask)[0])
    own = [int(np.flatnonzero(row.mask)[-1]) - prompt for row in data]
    assert sizes == [prompt + sum(own), 4 * prompt + sum(own)]


@pytest.mark.parametrize("bias", [False, True])
def test_light_layers_give_the_numbers_of_their_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bias: bool
) -> None:
    where = tiny_models.write_model(tmp_path / "m", attention_bias=bias, mlp_bias=bias)
    light = double(where)
    monkeypatch.setattr(policy, "lighten", lambda model: 0)
    plain = double(where)
    kinds = (lighter._Lora, lighter._Gated, lighter._Norm)
    forwards = [type(m.forward) for m in light.policy.model.modules()]
    assert [forwards.count(kind) for kind in kinds] == [14, 2, 5]
    data = group(np.random.default_rng(8))
    loss = parse_loss("cross_entropy", {})
    ours, theirs = (t.accumulate(data, loss, Tally()) for t in (light, plain))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)  # their norms round to float32
    for name, slope in plain.gradients.items():
        torch.testing.assert_close(light.gradients[name], slope, atol=1e-5, rtol=1e-4)


def test_a_family_with_windows_trains_on_padded_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 4}
    config = MistralConfig(vocab_size=304, initializer_range=0.2, **sizes, **heads)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    trainer = double(str(tmp_path))
    assert trainer.passes.kernel is None
    data = group(np.random.default_rng(9))
    trainer.accumulate(data, parse_loss("cross_entropy", {}), Tally())
    together = dict(trainer.gradients)
    trainer.gradients = {}
    for row in data:
        trainer.accumulate([row], parse_loss("cross_entropy", {}), Tally())
    for name, slope in trainer.gradients.items():
        torch.testing.assert_close(together[name], slope, atol=1e-10, rtol=1e-9)


def test_the_trial_notices_wrong_values_and_wrong_gradients(folder: str) -> None:
    net, right = double(folder).policy, candidates(torch.device("cpu"), torch.float64)[-1]
    assert agrees(net, right)

    def off(*args: Any) -> Any:
        out, lse, aux = right.forward(*args)
        return out, lse + 0.5 * (not args[3]), aux  # the part before the tails weighs too much

    def lame(*args: Any) -> Any:
        grad_q, grad_k, grad_v = right.backward(*args)
        return grad_q, grad_k * 1.3, grad_v

    assert not agrees(net, type(right)("off", off, right.backward))
    assert not agrees(net, type(right)("lame", right.forward, lame))


# ── the backend ──────────────────────────────────────────────────────────────────────────────


async def scored(folder: str, rows: list[list[int]], last: list[int], **settings: Any) -> Any:
    backend = create(Config(base_model=folder, lora_rank=0, threads=1, **settings))
    client = await backend.create_sampling_client()
    asked = [client.compute_logprobs(r, last_n=n) for r, n in zip(rows, last, strict=True)]
    return await asyncio.gather(*asked)


@pytest.mark.parametrize("settings", [{}, {"lean": False}, {"batch_tokens": 40}])
def test_a_group_under_one_hint_is_scored_once(folder: str, settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    hint = rng.integers(3, 280, 30).tolist()
    tails = [rng.integers(3, 280, n).tolist() for n in (9, 1, 17, 12)]
    rows = [*([*hint, *tail] for tail in tails), rng.integers(3, 280, 25).tolist()]
    last = [*(len(tail) for tail in tails), 7]
    shared = run(scored(folder, rows, last, **settings))
    alone = run(scored(folder, rows, last, share_prefixes=False))
    model = AutoModelForCausalLM.from_pretrained(folder)
    for ours, theirs, row, n in zip(shared, alone, rows, last, strict=True):
        ids = torch.tensor([row])
        with torch.no_grad():
            every = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        for answer in (ours, theirs):
            assert np.isnan(answer.logprobs[:-n]).all()
            np.testing.assert_allclose(answer.logprobs[-n:], every[-n:].numpy(), atol=2e-5)
    # The state of the hint's last token predicts what is asked, so each row computes it.
    assert [answer.usage.cached for answer in shared] == [0, 29, 29, 29, 0]
    assert [answer.usage.prefill for answer in shared] == [39, 2, 18, 13, 25]
    assert [answer.usage.cached for answer in alone] == [0] * 5


def test_sharing_changes_neither_updates_nor_what_is_sampled(folder: str, tmp_path: Path) -> None:
    async def work(**settings: Any) -> tuple[list[float], Any, np.ndarray]:
        backend = create(Config(base_model=folder, lora_rank=4, threads=1, **settings))
        client = await backend.create_training_client(seed=1, save_dir=str(tmp_path))
        assert isinstance(client, LocalTrainingClient)
        losses = []
        for seed in range(3):
            data = group(np.random.default_rng(seed))
            out = await client.forward_backward(data, loss_fn="ppo")
            losses.append(out.metrics["loss"])
            await client.optim_step(AdamParams(learning_rate=1e-2))
        snapshot = await client.save_weights_and_get_sampling_client()
        params = SamplingParams(max_tokens=12, seed=3)
        sampled = await snapshot.sample(list(range(5, 30)), params=params, num_samples=3)
        ids = [sample.tokens for sample in sampled.samples]
        return losses, ids, (await snapshot.compute_logprobs(list(range(5, 30)))).logprobs

    switched_off = {"share_prefixes": False, "checkpointing": "off"}
    ours, other = run(work()), run(work(**switched_off, batch_tokens=16))
    assert ours[0] == pytest.approx(other[0], rel=1e-4, abs=1e-5)
    assert ours[1] == other[1]
    np.testing.assert_allclose(ours[2], other[2], atol=1e-4)


# ── memory ───────────────────────────────────────────────────────────────────────────────────


def _storages(values: Any) -> list[torch.UntypedStorage]:
    leaves = torch.utils._pytree.tree_leaves(values)
    return [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, torch.Tensor)]


class Watch(TorchDispatchMode):
    """Bytes of all storages made within that are alive at once, and tokens embedded."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.embedded = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.embedding.default:
            self.embedded += args[1].numel()
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(out):
            if storage._cdata not in given:  # else it was made before, perhaps outside
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {k: v for k, v in self._alive.items() if not v[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return out


def lone_row(length: int, actions: int) -> Datum:
    rng = np.random.default_rng(length)
    mask = np.zeros(length, bool)
    mask[-actions:] = True
    return Datum(
        tokens=rng.integers(3, 280, length),
        logprobs=mask * -5.0,
        advantages=mask * 1.0,
        mask=mask,
    )


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A vocabulary that outweighs all the rest."""
    return tiny_models.write_model(tmp_path_factory.mktemp("models") / "wide", vocab_size=16_384)


@pytest.mark.parametrize("rank", [0, 3])
def test_training_memory_follows_the_actions(
    wide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Far below all logits; more actions cost states, not logits; more context as little."""
    monkeypatch.setattr(score, "_HEAD_ELEMENTS", 4 * 16_384)

    def peak(length: int, actions: int) -> int:
        backend = create(Config(base_model=wide, lora_rank=rank, checkpointing="on", threads=1))
        work = backend.create_training_client(seed=1, save_dir=str(tmp_path))
        trainer = run(work)._trainer
        assert trainer.passes.kernel is not None
        with Watch() as watch:
            trainer.accumulate([lone_row(length, actions)], parse_loss("ppo", {}), Tally())
        own = sum(w.nbytes for w in trainer.weights.values())  # at rank 0 their gradients count
        return watch.peak - (2 * own if rank == 0 else 0)

    all_logits = 400 * 16_384 * 4
    base = peak(400, 16)
    assert base < all_logits / 8
    assert peak(400, 64) - base < 48 * 16_384 * 4 / 8
    assert peak(448, 16) - base < 48 * 16_384 * 4 / 8


@pytest.mark.parametrize("lean", [True, False])
def test_scoring_memory_follows_what_is_asked(
    wide: str, monkeypatch: pytest.MonkeyPatch, lean: bool
) -> None:
    monkeypatch.setattr(score, "_HEAD_ELEMENTS", 4 * 16_384)

    def peak(length: int, asked: int) -> int:
        backend = create(Config(base_model=wide, lora_rank=0, threads=1, lean=lean))
        client = run(backend.create_sampling_client())
        run(client.compute_logprobs([5, 6, 7]))  # whatever is made once
        with Watch() as watch:
            run(client.compute_logprobs([5 + i % 200 for i in range(length)], last_n=asked))
        return watch.peak

    base = peak(400, 16)
    assert base < 400 * 16_384 * 4 / 8
    assert peak(400, 64) - base < 48 * 16_384 * 4 / 8
    assert peak(448, 16) - base < 48 * 16_384 * 4 / 8


def test_what_activations_take_decides_about_checkpoints(folder: str) -> None:
    """A pass of twice the tokens keeps twice as much; passes are filled up to the budget."""
    passes = double(folder).passes
    assert passes.room(4096) == 4096
    each = passes._token_bytes
    assert each is not None
    assert 10 * 32 * 8 < each / 2 < 40 * 32 * 8  # some tens of vectors of each of two layers
    passes.activation_bytes = int(50 * each)
    assert passes.room(4096) == 50
    assert passes._wants_checkpoints(51)
    assert not passes._wants_checkpoints(49)
    passes.checkpointing = "off"
    assert not passes._wants_checkpoints(10**9)
    assert passes.room(4096) == 4096
