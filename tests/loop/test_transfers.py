"""A winner's action in another's place: the right tokens, under the other branch's prompt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fakes import wait
from turncredit.backends import tabular
from turncredit.core.types import Group
from turncredit.credit.ucob import Place, Transfer
from turncredit.envs import toy
from turncredit.hints import toy as toy_hint
from turncredit.loop.chat import Chat
from turncredit.loop.hinted import HintedEnvironment
from turncredit.loop.rollout import Limits, rollout
from turncredit.loop.transfers import transfer_rows

ENV = toy.create(toy.Config(corridor_colours=1))
HINTED = HintedEnvironment(ENV, toy_hint.create(toy_hint.Config()), "toy_key")
BACKEND = tabular.create(tabular.Config())
CHAT = Chat(BACKEND.get_tokenizer(), ENV, max_turns=8)
LIMITS = Limits(max_turns=8, max_trajectory_tokens=3000, max_action_tokens=8)


async def mixed(client) -> Group:
    """Member 0 without, member 1 with the hint in its prompt."""
    tasks = ENV.tasks("train")[:1]
    (plain,), (under,) = [
        await rollout(
            tasks, world, CHAT, client, LIMITS, group_size=1, run_seed=3, step=1, first_member=n
        )
        for n, world in enumerate((ENV, HINTED))
    ]  # fmt: skip
    (told,) = under.trajectories
    marked = replace(told, student_hint_hash=HINTED.digest(tasks[0]))
    return replace(plain, trajectories=(*plain.trajectories, marked))


def transfer(winner: int, turn: int, target: int, place: int, *, to_hinted: bool) -> Transfer:
    return Transfer(
        winner=Place(winner, turn, 1.0, bool(winner)),
        target=Place(target, place, 0.0, bool(target)),
        to_hinted=to_hinted,
        weight=2.0,
    )


@pytest.mark.parametrize(
    ("winner", "target", "to_hinted"), [(0, 1, True), (1, 0, False), (0, 0, True), (1, 1, False)]
)
def test_the_row_is_the_targets_context_and_the_winners_action(winner, target, to_hinted):
    async def go():
        client = await BACKEND.create_sampling_client()
        group = await mixed(client)
        pair = transfer(winner, 2, target, 4, to_hinted=to_hinted)
        (row,) = await transfer_rows(
            [group], [[pair]], CHAT, HINTED, client, k=-1, coefficient=0.1, gate_beta=5.0
        )
        scored = await client.compute_logprobs(row.tokens.tolist())
        return group, row, scored.logprobs

    group, row, there_T = wait(go())
    won, placed = group.trajectories[winner], group.trajectories[target]
    action = won.action_tokens(2)
    count = len(action)
    assert row.mask.sum() == count
    assert row.mask[-count:].all()
    assert np.array_equal(row.tokens[-count:], action)
    # The context: the target's own ids after a prompt with or without the hint.
    branch = group.trajectories[int(to_hinted)]
    history = placed.tokens[placed.prompt_length : placed.turns[4].start]
    prompt = branch.tokens[: branch.prompt_length]
    assert np.array_equal(row.tokens[:-count], np.concatenate([prompt, history]))
    here_N = won.turns[2].logprob_N
    gate_N = 1 / (1 + np.exp(-5.0 * (here_N - there_T[-count:])))
    assert row.distill[-count:] == pytest.approx(0.1 * 2.0 * gate_N)
    assert row.logprobs[-count:] == pytest.approx(there_T[-count:])
    assert not row.advantages.any()
    # The reference is the winner's own context: its distribution holds its own log-probs.
    given = row.distribution
    own = given.logprobs[-count:][np.arange(count), action]
    assert own == pytest.approx(here_N, abs=1e-5)
