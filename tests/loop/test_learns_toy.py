"""The whole chain on the toy (rollout, teacher, credit, rows, update): AgentOPSD leads GRPO."""

import asyncio

import numpy as np
import pytest

from turncredit.backends import tabular
from turncredit.core.calls import AdamParams
from turncredit.credit import agentopsd, grpo
from turncredit.envs import toy
from turncredit.hints import toy as toy_hint
from turncredit.loop import reading, teacher
from turncredit.loop.chat import Chat
from turncredit.loop.data import build_rows, reduced
from turncredit.loop.rollout import Limits, rollout

ENV = toy.create(toy.Config(corridor_colours=1))
KEY = ENV.tasks("train")[0].payload["key_door"] - 1
LIMITS = Limits(max_turns=8, max_trajectory_tokens=2000, max_action_tokens=8)
SGD = AdamParams(learning_rate=4.0)


async def play(backend, chat, client, seed, step, tasks=4):
    chosen = ENV.tasks("train")[:tasks]
    return await rollout(chosen, ENV, chat, client, LIMITS, group_size=8, run_seed=seed, step=step)


async def p_key(method, seed, folder, updates):
    """Mean probability of the right way at the key door after some updates."""
    backend = tabular.create(tabular.Config(table_optimizer="sgd"))
    chat = Chat(backend.get_tokenizer(), ENV, max_turns=8)
    hint = toy_hint.create(toy_hint.Config())
    training = await backend.create_training_client(seed=seed, save_dir=str(folder))
    for step in range(updates):
        client = await training.save_weights_and_get_sampling_client()
        groups = await play(backend, chat, client, seed, step)
        if method.NEEDS_TEACHER:
            readings = reading.read(groups, hint, chat, max_tokens=9999)
            groups = await teacher.score(groups, readings, client, concurrency=8)
        rows = build_rows(groups, [method.credit(group, method.Config()) for group in groups])
        await training.forward_backward(reduced(rows.data), loss_fn="ppo")
        await training.optim_step(SGD)
    client = await training.save_weights_and_get_sampling_client()
    (group,) = await play(backend, chat, client, seed, step=-1, tasks=1)
    turns = [trajectory.turns[KEY] for trajectory in group.trajectories]
    right = [np.exp(t.logprob_N[0]) if t.action == "right" else -np.expm1(t.logprob_N[0])
             for t in turns]  # fmt: skip
    return float(np.mean(right))


def ahead(seeds, folder, updates):
    async def main():
        return [
            await p_key(agentopsd, s, folder, updates) - await p_key(grpo, s, folder, updates)
            for s in range(seeds)
        ]

    return np.array(asyncio.run(main()))


def test_agentopsd_leads_grpo_through_the_real_stages(tmp_path):
    assert (ahead(2, tmp_path, updates=3) > 0).all()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_agentopsd_leads_grpo_over_ten_seeds(tmp_path):
    lead = ahead(10, tmp_path, updates=6)
    assert lead.mean() > 0.02  # about 0.03, on every seed
    assert lead.mean() > 4 * lead.std(ddof=1) / 10**0.5
