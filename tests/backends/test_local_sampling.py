"""Sampling and scoring: equal log-probs on every path, ids that do not depend on the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import tiny_models
import torch

from turncredit.backends.local import Config, create, trials
from turncredit.backends.local.backend import LocalBackend
from turncredit.backends.local.noise import Draw, choose, gumbel
from turncredit.core.calls import SamplingParams
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError, ConfigError

PROMPT = list(range(5, 45))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_model(tmp_path_factory.mktemp("models") / "llama")


def backend(folder: str, **settings: Any) -> LocalBackend:
    return create(Config(base_model=folder, lora_rank=0, threads=1, **settings))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def trajectory(client: Any, member: int, turns: int = 4) -> tuple[list[int], list[float]]:
    """Turns after ever longer prompts; returns ids, and the sampled log-probs by place."""
    ids, said = [*PROMPT[: 20 + member], 7], [float("nan")] * (21 + member)
    for k in range(turns):
        params = SamplingParams(max_tokens=3 + (member + k) % 4, seed=100 * member + k)
        (sample,) = (await client.sample(ids, params=params)).samples
        observation = [9 + (member + 3 * k + i) % 200 for i in range(4 + member % 3)]
        ids = [*ids, *sample.tokens, *observation]
        said += [*sample.logprobs, *[float("nan")] * len(observation)]
    return ids, said


def test_cached_turns_equal_a_fresh_pass(folder: str) -> None:
    async def work() -> None:
        client = await backend(folder).create_sampling_client()
        assert client._engine.policy.cached
        played = await asyncio.gather(*(trajectory(client, m) for m in range(6)))
        for ids, said in played:
            scores = (await client.compute_logprobs(ids)).logprobs
            sampled = np.isfinite(said)
            assert sampled.sum() >= 12
            np.testing.assert_allclose(np.array(said)[sampled], scores[sampled], atol=1e-4)

    run(work())


@pytest.mark.parametrize("settings", [{}, {"max_batch": 3, "batch_tokens": 64}])
def test_ids_do_not_depend_on_the_batch(folder: str, settings: dict[str, int]) -> None:
    async def play(size: int) -> list[list[int]]:
        client = await backend(folder, **settings).create_sampling_client()
        out: list[list[int]] = []
        for first in range(0, 16, size):
            members = range(first, first + size)
            done = await asyncio.gather(*(trajectory(client, m, turns=2) for m in members))
            out += [ids for ids, _ in done]
        return out

    alone = run(play(1))
    assert run(play(4)) == alone
    assert run(play(16)) == alone


def test_a_small_cache_changes_nothing_but_time(folder: str) -> None:
    async def play(gib: float) -> list[list[int]]:
        client = await backend(folder, cache_gib=gib).create_sampling_client()
        return [ids for ids, _ in await asyncio.gather(*(trajectory(client, m) for m in range(8)))]

    one_row = 256 * 2 * 2 * 2 * 8 * 4 / 2**30  # positions x (k, v) x layers x heads x width x bytes
    assert run(play(2.5 * one_row)) == run(play(1.0))


def test_a_turn_computes_only_what_is_new(folder: str) -> None:
    async def work() -> None:
        client = await backend(folder).create_sampling_client()
        params = SamplingParams(max_tokens=5, seed=1)
        first = await client.sample(PROMPT, params=params, num_samples=4)
        assert first.usage.prefill == len(PROMPT) + 3  # the others copy it, but for one token
        longer = [*PROMPT, *first.samples[2].tokens, 6, 7, 8]
        second = await client.sample(longer, params=params)
        assert second.usage.prefill == 4  # the last sampled token and three new ones
        other = await backend(folder).create_sampling_client()
        again = await other.sample(longer, params=params)
        assert again.samples[0].tokens == second.samples[0].tokens

    run(work())


def test_stop_ids_length_and_temperature(folder: str) -> None:
    async def work() -> None:
        client = await backend(folder).create_sampling_client()
        free = await client.sample(PROMPT, params=SamplingParams(max_tokens=9, temperature=0.01))
        tokens = free.samples[0].tokens
        assert free.samples[0].stop_reason == "length"
        stop = SamplingParams(max_tokens=9, temperature=0.01, stop_ids=(tokens[2],))
        (ended,) = (await client.sample(PROMPT, params=stop)).samples
        assert ended.stop_reason == "stop"
        assert ended.tokens == tokens[: tokens.index(tokens[2]) + 1]

    run(work())


def test_last_n_and_alignment(folder: str) -> None:
    async def work() -> None:
        client = await backend(folder).create_sampling_client()
        whole = (await client.compute_logprobs(PROMPT)).logprobs
        tail = (await client.compute_logprobs(PROMPT, last_n=4)).logprobs
        assert len(whole) == len(tail) == len(PROMPT)
        assert np.isnan(whole[0])
        assert np.isfinite(whole[1:]).all()
        assert np.isnan(tail[:-4]).all()
        np.testing.assert_array_equal(tail[-4:], whole[-4:])
        with pytest.raises(ConfigError, match="vocabulary"):
            await client.compute_logprobs([10**6])
        await client.close()
        with pytest.raises(BackendError, match="closed"):
            await client.compute_logprobs(PROMPT)

    run(work())


def test_single_tokens_are_scored_and_nothing_else(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        client = await backend(folder).create_sampling_client()
        whole = (await client.compute_logprobs(PROMPT)).logprobs
        seen: list[int] = []
        head = client._engine.policy.logits
        monkeypatch.setattr(
            client._engine.policy, "logits", lambda h: (seen.append(len(h)), head(h))[1]
        )
        some = await client.pick_logprobs(PROMPT, at_N=[1, 4, 5])
        assert sum(seen) == 3  # no logits but theirs
        assert some.usage.prefill == len(PROMPT)
        np.testing.assert_allclose(some.logprobs[[1, 4, 5]], whole[[1, 4, 5]], atol=1e-5)
        assert np.isnan(np.delete(some.logprobs, [1, 4, 5])).all()
        for wrong in ([0, 1], [2, 2], [3, 1], [len(PROMPT)]):
            with pytest.raises(ConfigError, match="must ascend within"):
                await client.pick_logprobs(PROMPT, wrong)

    run(work())


def test_a_cancelled_call_frees_its_place(folder: str) -> None:
    async def work() -> None:
        client = await backend(folder).create_sampling_client()
        long = asyncio.create_task(client.sample(PROMPT, params=SamplingParams(max_tokens=400)))
        await asyncio.sleep(0.05)
        long.cancel()
        result = await client.sample(PROMPT, params=SamplingParams(max_tokens=2))
        assert len(result.samples[0].tokens) == 2
        assert not client._engine._active
        assert not client._engine._jobs

    run(work())


def test_families_without_any_cache_still_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then every token is a full pass, and correct."""
    monkeypatch.setattr(trials, "takes_our_cache", lambda _: False)
    monkeypatch.setattr(trials, "own_row_bytes", lambda _: None)
    folder = tiny_models.write_model(tmp_path)

    async def work() -> None:
        client = await backend(folder).create_sampling_client()
        assert not client._engine.policy.cached
        ids, said = await trajectory(client, 1, turns=2)
        scores = (await client.compute_logprobs(ids)).logprobs
        sampled = np.isfinite(said)
        np.testing.assert_allclose(np.array(said)[sampled], scores[sampled], atol=1e-4)

    run(work())


def test_gumbel_noise_is_standard_and_keyed() -> None:
    cpu = torch.device("cpu")
    noise = gumbel([1, 1, 2], [0, 1, 0], 50_000, cpu)
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.var()) - np.pi**2 / 6) < 0.03
    assert abs(float(torch.corrcoef(noise)[0, 1:].abs().max())) < 0.02
    assert torch.equal(gumbel([2**70 + 5], [3], 10, cpu), gumbel([2**70 + 5], [3], 10, cpu))


def test_choose_follows_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4000, 1)
    draw = Draw(list(range(4000)), [0] * 4000, [1.0] * 4000, [1.0] * 4000)
    ids, _ = choose(logits, draw, tolerance=0.0)
    share = torch.bincount(ids, minlength=4) / 4000
    assert torch.allclose(share, torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.03)
    nucleus = Draw(draw.seeds, draw.positions, draw.temperature, [0.7] * 4000)
    assert set(choose(logits, nucleus, tolerance=0.0)[0].tolist()) == {0, 1}
    tie = Draw([1], [0], [0.0], [1.0])
    assert choose(torch.tensor([[1.0, 1.0005]]), tie, tolerance=1e-3)[1].item()
    assert not choose(torch.tensor([[1.0, 1.5]]), tie, tolerance=1e-3)[1].item()


def test_rows_beyond_the_models_positions_are_refused(folder: str) -> None:
    async def work() -> None:
        client = await backend(folder).create_sampling_client()
        longest = client._engine.policy.positions
        with pytest.raises(ConfigError, match=f"{longest} positions"):
            await client.compute_logprobs([1] * (longest + 1))
        with pytest.raises(ConfigError, match="and 4 more"):
            await client.sample([1] * (longest - 3), params=SamplingParams(max_tokens=4))
        assert len((await client.compute_logprobs([1] * 9)).logprobs) == 9
        for more in (0, 1):
            mask = np.arange(longest + more) == longest + more - 1
            row = Datum(tokens=1 + 0 * mask, logprobs=-1.0 * mask, advantages=1.0 * mask, mask=mask)
            training = await backend(folder).create_training_client(seed=0, save_dir="")
            with pytest.raises(ConfigError, match="does not fit") if more else nullcontext():
                await training.forward_backward([row], loss_fn="ppo")

    run(work())


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"top_p": 0.0}, {"top_p": np.nan}, {"temperature": -1.0}]
)
def test_nothing_is_sampled_with_impossible_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SamplingParams(**{"max_tokens": 5, **wrong})


@pytest.mark.parametrize(
    "wrong", [{"threads": -1}, {"cache_gib": np.nan}, {"activation_gib": np.inf}]
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)


@pytest.mark.parametrize("temperature", [1e-36, 1e-38, 1e-45, 1e-300, 5e-324])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 1e-9])
def test_the_coldest_temperatures_are_greedy(temperature: float, top_p: float) -> None:
    logits = torch.tensor([[-3.0, 0.5, 9.0, 8.0]])
    draw = Draw(seeds=[1], positions=[0], temperature=[temperature], top_p=[top_p])
    assert choose(logits, draw, tolerance=0.0)[0].tolist() == [2]


@pytest.mark.parametrize("temperature", [1e30, 1e38, 1e300])
def test_the_hottest_temperatures_draw_from_all_tokens(temperature: float) -> None:
    logits = torch.tensor([[-3.0, 0.5, 9.0, 8.0]]).expand(64, 4)
    draw = Draw(list(range(64)), [0] * 64, [temperature] * 64, [1.0] * 64)
    assert set(choose(logits, draw, tolerance=0.0)[0].tolist()) == {0, 1, 2, 3}
