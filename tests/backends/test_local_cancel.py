"""Calls of `local` given up at any moment: nothing is left behind, and nobody else notices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import tiny_models

from turncredit.backends.local import Config, create
from turncredit.backends.local.backend import LocalBackend
from turncredit.backends.local.clients import LocalSamplingClient
from turncredit.backends.local.engine import Engine
from turncredit.core.calls import SamplingParams
from turncredit.core.types import Group
from turncredit.envs import household
from turncredit.loop.chat import Chat
from turncredit.loop.rollout import Limits, rollout

CALLS, TICKS = 8, 120
BYTES = 2 * 2 * 2 * 8 * 4  # of a token: (k, v) x layers x heads x width x bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.write_model(tmp_path_factory.mktemp("models") / "llama")


def backend(name: str, **settings: Any) -> LocalBackend:
    settings = {"base_model": name, "lora_rank": 0, "threads": 1, "device": "cpu", **settings}
    return create(Config(**settings))


async def quiet(engine: Engine) -> None:
    """Nothing is asked of the engine any more."""
    for _ in range(10_000):
        if engine._pump is None or engine._pump.done():
            break
        await asyncio.sleep(0)
    left = [*engine._scores, *engine._waiting, *engine._active, *engine._jobs]
    assert not left
    assert not [slot for slot in engine.decoder.slots._slots if slot.busy]


async def after(ticks: int, task: asyncio.Task[Any]) -> None:
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()


def call(client: LocalSamplingClient, n: int) -> Any:
    """One of several kinds of calls, alike but for their ends."""
    prompt = [5 + i for i in range(30 + 3 * n)]
    if n % 4 == 3:
        return client.compute_logprobs(prompt, last_n=9)
    params = SamplingParams(max_tokens=25 + n, seed=n)
    return client.sample(prompt, params=params, num_samples=1 + n % 2)


def told(found: Any) -> Any:
    """What must not depend on who else is there."""
    if hasattr(found, "samples"):
        return [sample.tokens for sample in found.samples]
    return np.round(found.logprobs[-9:], 3).tolist()


@pytest.mark.parametrize(
    "settings", [{}, {"reuse_prefixes": False}, {"cache_gib": 150 * BYTES / 2**30}]
)
@pytest.mark.parametrize("seed", range(6))
def test_who_stays_gets_what_he_would_have_got(
    folder: str, settings: dict[str, Any], seed: int
) -> None:
    chance = random.Random(seed)
    ends = {n: chance.randrange(TICKS) for n in range(CALLS) if chance.random() < 0.6}

    async def work() -> int:
        client = await backend(folder, **settings).create_sampling_client()
        alone = [told(await call(client, n)) for n in range(CALLS)]
        tasks = [asyncio.create_task(call(client, n)) for n in range(CALLS)]
        await asyncio.gather(*(after(ticks, tasks[n]) for n, ticks in ends.items()))
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for n, result in enumerate(found):
            if isinstance(result, asyncio.CancelledError):
                assert n in ends
            else:
                assert told(result) == alone[n], n
        await quiet(client._engine)
        assert [told(await call(client, n)) for n in range(CALLS)] == alone
        await client.close()
        assert not client._engine.decoder.slots._slots
        return sum(isinstance(result, asyncio.CancelledError) for result in found)

    assert asyncio.run(work()), "nobody was cancelled in time"


def test_what_a_given_up_call_used_is_counted(folder: str) -> None:
    async def work() -> None:
        found = backend(folder)
        client = await found.create_sampling_client()
        params = SamplingParams(max_tokens=400)
        long = asyncio.create_task(client.sample(list(range(5, 45)), params=params))
        while not client._engine._active or len(client._engine._active[0].out) < 3:
            await asyncio.sleep(0)
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        used = found.usage()
        assert used.prefill == 40
        assert 3 <= used.sampled < 400
        assert used.requests == 1

    asyncio.run(work())


PLAYED = household.create(household.Config())
TASKS = PLAYED.tasks("train")[:2]


async def play(client: LocalSamplingClient, chat: Chat) -> list[Group]:
    limits = Limits(max_turns=4, max_trajectory_tokens=2000, max_action_tokens=40)
    return await rollout(TASKS, PLAYED, chat, client, limits, group_size=3, run_seed=1, step=1)


def tokens(groups: Sequence[Group]) -> list[list[int]]:
    return [t.tokens.tolist() for group in groups for t in group.trajectories]


def test_a_rollout_given_up_at_any_moment(folder: str) -> None:
    """Each attempt goes a little further; the next rollout is as if none had been before."""

    async def work() -> None:
        found = backend("household-tiny")
        client = await found.create_sampling_client()
        chat = Chat(found.get_tokenizer(), PLAYED, max_turns=4)
        want = tokens(await play(client, chat))
        ended = 0
        for ticks in (1, 3, 7, 20, 50, 90):
            work = asyncio.create_task(play(client, chat))
            await after(ticks, work)
            ended += isinstance((await asyncio.gather(work, return_exceptions=True))[0], list)
            await quiet(client._engine)
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert ended == 0, "it was over before it was given up"
        assert tokens(await play(client, chat)) == want

    asyncio.run(work())
