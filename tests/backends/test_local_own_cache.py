"""Families with a cache of their own: what was read is not read again, and changes nothing."""

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
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.backends.check import check_backend
from turncredit.backends.local import Config, create
from turncredit.backends.local.backend import LocalBackend
from turncredit.backends.local.policy import Policy
from turncredit.backends.local.stacking import cache_bytes, copied, joinable, joined, narrow, picked
from turncredit.core.calls import SamplingParams
from turncredit.core.errors import BackendError

PROMPT = list(range(5, 85))
BOUND = 5e-4  # nats a token: see `policy._OWN_NOISE`
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3_5": ("Qwen3_5TextConfig", DELTA),
    "Qwen3Next": ("Qwen3NextConfig", {**DELTA, **EXPERTS}),
    "Mistral": ("MistralConfig", {"sliding_window": 8}),
    "Gemma3": ("Gemma3TextConfig", {"sliding_window": 8, "sliding_window_pattern": 2}),
    "Cohere2": ("Cohere2Config", {"sliding_window": 8, "logit_scale": 1.0}),
}


def network(family: str, vocabulary: int = 300, **changes: Any) -> Any:
    torch.manual_seed(0)
    kind, own = FAMILIES[family]
    config = getattr(transformers, kind)(
        **{
            "vocab_size": vocabulary,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "initializer_range": 0.2,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            **own,
            **changes,
        }
    )
    return getattr(transformers, family + "ForCausalLM")(config).eval()


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("hybrid"), "Qwen3_5")


def write(where: Path, family: str, **changes: Any) -> str:
    words = tiny_models.tokenizer()
    network(family, len(words), **changes).save_pretrained(where)
    words.save_pretrained(where)
    return str(where)


def backend(folder: str, **changes: Any) -> LocalBackend:
    return create(Config(base_model=folder, lora_rank=2, threads=1, **changes))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def live(client: Any) -> dict[Any, Any]:
    return client._engine.decoder._own._live


async def trajectory(client: Any, member: int, turns: int = 3) -> tuple[list[int], list[float]]:
    """Turns after ever longer prompts; returns ids, and the sampled log-probs by place."""
    ids, said = [*PROMPT, 7], [float("nan")] * (len(PROMPT) + 1)
    for k in range(turns):
        params = SamplingParams(max_tokens=3 + (member + k) % 4, seed=100 * member + k)
        (sample,) = (await client.sample(ids, params=params)).samples
        observation = [9 + (member + 3 * k + i) % 200 for i in range(4 + member % 3)]
        ids = [*ids, *sample.tokens, *observation]
        said += [*sample.logprobs, *[float("nan")] * len(observation)]
    return ids, said


async def group(client: Any, size: int = 6) -> list[tuple[list[int], list[float]]]:
    return await asyncio.gather(*(trajectory(client, m) for m in range(size)))


def test_turns_equal_a_fresh_pass_and_read_each_token_once(folder: str) -> None:
    async def work() -> None:
        made = backend(folder)
        client = await made.create_sampling_client()
        assert not client._engine.policy.cached
        played = await group(client)
        usage = made.usage()
        for ids, said in played:
            scores = (await client.compute_logprobs(ids)).logprobs
            sampled = np.isfinite(said)
            np.testing.assert_allclose(np.array(said)[sampled], scores[sampled], atol=BOUND)
        # The prompt once, then what each member added, but for its last observation, and but for
        # the last token of each action where the trajectory ended with it.
        assert usage.cached
        assert usage.cached >= 5 * (len(PROMPT) + 1)
        assert usage.prefill < 2 * len(PROMPT) + 6 * 2 * 8

    run(work())


def test_ids_depend_on_nothing_but_seeds(folder: str) -> None:
    async def play(together: bool, **changes: Any) -> list[list[int]]:
        client = await backend(folder, **changes).create_sampling_client()
        if together:
            return [ids for ids, _ in await group(client)]
        return [(await trajectory(client, m))[0] for m in range(6)]

    alone = run(play(together=False))
    assert run(play(together=True)) == alone
    assert run(play(together=True, max_batch=2)) == alone
    assert run(play(together=True, reuse_prefixes=False)) == alone
    assert len({tuple(ids) for ids in alone}) == 6


@pytest.mark.slow
def test_a_hybrid_passes_the_conformance_suite(tmp_path: Path) -> None:
    gentle = write(tmp_path / "model", "Qwen3_5", initializer_range=0.08)  # steps are to be small
    results = run(check_backend(backend(gentle), tmp_path))
    assert [f"{r.name}: {r.detail}" for r in results if not r.passed] == []


def test_a_small_budget_is_kept_and_changes_no_id(hybrid: str) -> None:
    async def play(gib: float) -> tuple[list[list[int]], int]:
        client = await backend(hybrid, cache_gib=gib).create_sampling_client()
        played = asyncio.create_task(group(client))
        most = 0
        while not played.done():
            await asyncio.sleep(0)
            if own := client._engine.decoder._own:
                caches = [c for c in own._live.values() if c] + [
                    k.cache for k in own._kept.values()
                ]
                held = sum(map(cache_bytes, caches))
                most = max(most, held + (cache_bytes(own._joint) if own._joint else 0))
        return [ids for ids, _ in await played], most

    roomy, many = run(play(1.0))
    row = 6144 + 128 * 130
    tight, few = run(play(2.5 * row / 2**30))
    assert tight == roomy
    assert few <= 2.5 * row < many


def test_what_never_fits_is_refused_alone(hybrid: str) -> None:
    async def work() -> None:
        client = await backend(
            hybrid, cache_gib=(6144 + 128 * 100) / 2**30
        ).create_sampling_client()
        fits = client.sample(PROMPT, params=SamplingParams(max_tokens=20))
        large = client.sample(PROMPT, params=SamplingParams(max_tokens=21))
        found = await asyncio.gather(fits, large, return_exceptions=True)
        assert isinstance(found[1], BackendError)
        assert not isinstance(found[0], BaseException)
        assert len(found[0].samples[0].tokens) == 20
        assert "Raise --cache-gib" in str(found[1])

    run(work())


def test_a_pass_that_fails_leaves_nothing_to_go_on_from(
    hybrid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend = Policy.extend

    def torn(self: Policy, ids: Any, stored: Any, cache: Any) -> torch.Tensor:
        out = extend(self, ids, stored, cache)
        if len(ids) > 1:
            raise RuntimeError("out of memory")
        return out

    async def work() -> None:
        client = await backend(hybrid).create_sampling_client()
        calm = await group(client)
        with monkeypatch.context() as broken:
            broken.setattr(Policy, "extend", torn)
            with pytest.raises(RuntimeError, match="out of memory"):
                await group(client)
        assert not live(client)
        assert [ids for ids, _ in await group(client)] == [ids for ids, _ in calm]

    run(work())


def test_a_snapshot_that_is_closed_keeps_nothing(hybrid: str) -> None:
    async def work() -> None:
        client = await backend(hybrid).create_sampling_client()
        await trajectory(client, 0)
        assert client._engine.decoder._own._kept
        await client.close()
        assert not client._engine.decoder._own._kept

    run(work())


def test_a_cancelled_call_disturbs_no_other(hybrid: str) -> None:
    async def work() -> None:
        client = await backend(hybrid).create_sampling_client()
        alone = await trajectory(client, 0)
        params = SamplingParams(max_tokens=40, seed=9)
        other = asyncio.create_task(client.sample(PROMPT, params=params))
        again = asyncio.create_task(trajectory(client, 0))
        for _ in range(12):
            await asyncio.sleep(0)
        other.cancel()
        assert (await again)[0] == alone[0]
        assert not live(client)

    run(work())


def test_weights_that_changed_go_on_from_no_old_state(hybrid: str, tmp_path: Path) -> None:
    async def work() -> None:
        client = await backend(hybrid).create_training_client(seed=0, save_dir=str(tmp_path))
        old = await client.save_weights_and_get_sampling_client()
        await trajectory(old, 0)
        torch.manual_seed(1)
        for tensor in client._trainer.weights.values():
            tensor.data += 0.3 * torch.randn_like(tensor)
        new = await client.save_weights_and_get_sampling_client()
        ids, said = await trajectory(new, 0)
        scores = (await new.compute_logprobs(ids)).logprobs
        sampled = np.isfinite(said)
        np.testing.assert_allclose(np.array(said)[sampled], scores[sampled], atol=BOUND)

    run(work())


def test_scores_of_rows_that_begin_alike_read_it_once(folder: str) -> None:
    async def work() -> None:
        made = backend(folder)
        client = await made.create_sampling_client()
        network = client._engine.policy
        rows = [[*PROMPT, *((m + 3 * i) % 200 for i in range(20 + m))] for m in range(4)]
        calls = (client.compute_logprobs(row, last_n=len(row) - len(PROMPT)) for row in rows)
        scores = [answer.logprobs for answer in await asyncio.gather(*calls)]
        assert made.usage().cached == 3 * (len(PROMPT) - 1)
        for row, found in zip(rows, scores, strict=True):
            new = slice(len(PROMPT), None)
            want = network_scores(network, row)[len(PROMPT) - 1 :]
            np.testing.assert_allclose(found[new], want, atol=BOUND)
            alone = await client.compute_logprobs(row, last_n=len(row) - len(PROMPT))
            np.testing.assert_array_equal(found[new], alone.logprobs[new])
        whole = await client.compute_logprobs(rows[0])
        np.testing.assert_allclose(whole.logprobs[1:], network_scores(network, rows[0]), atol=BOUND)

    run(work())


@torch.no_grad()
def network_scores(network: Policy, row: list[int]) -> Any:
    logits = network.logits(network.full([row])[0, :-1]).log_softmax(-1)
    return logits.gather(-1, torch.tensor(row[1:])[:, None])[:, 0].numpy()


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(network("Qwen3_5"), lora_rank=0)


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=2, max_size=5), data=st.data())
@torch.no_grad()
def test_rows_come_and_go_and_say_what_they_say_alone(
    policy: Policy, lengths: list[int], data: st.DataObject
) -> None:
    def read(length: int, seed: int) -> Any:
        cache = policy.fresh_cache()
        policy.extend([[(3 * i + seed) % 300 for i in range(length)]], [0], cache)
        return cache

    alone = [read(length, seed) for seed, length in enumerate(lengths)]
    copies = [copied(cache) for cache in alone]
    assert joinable(copies)
    joint = joined(copies)
    for b, length in enumerate(lengths):
        assert same(picked(joint, b, length), alone[b])
    stay = data.draw(st.lists(st.sampled_from(range(len(lengths))), min_size=1, unique=True))
    narrow(joint, stay, max(lengths[b] for b in stay))
    late = data.draw(st.integers(1, 50))
    rows = [*((alone[b], lengths[b]) for b in stay), (read(late, 9), late)]
    joint = joined([joint, copied(rows[-1][0])])
    stored = [length for _, length in rows]
    for step in range(2):
        together = policy.extend([[5 + step]] * len(rows), [n + step for n in stored], joint)
        apart = [policy.extend([[5 + step]], [n + step], cache) for cache, n in rows]
        torch.testing.assert_close(together, torch.cat(apart), atol=1e-4, rtol=1e-4)


def same(one: Any, other: Any) -> bool:
    return cache_bytes(one) == cache_bytes(other) and all(
        torch.equal(value, vars(b)[name])
        for a, b in zip(one.layers, other.layers, strict=True)
        for name, value in vars(a).items()
        if isinstance(value, torch.Tensor)
    )


@torch.no_grad()
def test_windows_at_other_places_are_not_brought_together() -> None:
    policy = Policy(network("Mistral"), lora_rank=0)
    caches = [policy.fresh_cache() for _ in range(3)]
    for length, cache in zip((20, 20, 21), caches, strict=True):
        policy.extend([list(range(length))], [0], cache)
    assert joinable(caches[:2])
    assert not joinable(caches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_that_forgets_is_not_used(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend = Policy.extend

    def forgets(self: Policy, ids: Any, stored: Any, cache: Any) -> torch.Tensor:
        return extend(self, ids, stored, self.fresh_cache() if len(ids[0]) == 1 else cache)

    deep = {"num_hidden_layers": 12}
    assert Policy(network("Qwen3_5", **deep).to(dtype), lora_rank=0).row_bytes
    monkeypatch.setattr(Policy, "extend", forgets)
    assert Policy(network("Qwen3_5", **deep).to(dtype), lora_rank=0).row_bytes is None
