"""Rows that teach one turn what another did better in the same place.

A method finds the pairs (`transfers(group, config)`); here the winner's action is written into the
target's context, under the prompt of the branch the winner was not in, and scored there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from turncredit.core.clients import DistributionClient, SamplingClient
from turncredit.core.datum import Datum, Distribution
from turncredit.core.errors import BackendError
from turncredit.core.looks import FRONT
from turncredit.core.types import Array, Group, Ids, Observation, Trajectory
from turncredit.loop.chat import Chat
from turncredit.loop.concurrency import bounded
from turncredit.loop.hinted import HintedEnvironment


async def transfer_rows(
    groups: Sequence[Group],
    transfers: Sequence[Sequence[Any]],
    chat: Chat,
    hinted: HintedEnvironment,
    client: SamplingClient,
    *,
    k: int,
    coefficient: float,
    gate_beta: float,
    concurrency: int = 16,
) -> list[Datum]:
    """One row a transfer, its winner's action as the only trained tokens.

    Args:
        groups: as sampled, members with and without the hint among them.
        transfers: per group what its turns can learn (`winner`, `target`: member and turn;
            `to_hinted`; `weight`).
        chat: the form of the conversations.
        hinted: gives the text hinted members saw.
        client: the snapshot that sampled.
        k: likeliest tokens of the winner's own context that the target is to follow.
        coefficient: weight of all transfers.
        gate_beta: of the gate.
        concurrency: requests in flight.

    Returns:
        Unreduced rows; the gate sigmoid(beta (winner's - target's log-prob)) is in `distill`.
    """
    plan = [(group, pair) for group, pairs in zip(groups, transfers, strict=True) for pair in pairs]
    calls = [
        partial(
            _row,
            group,
            pair,
            _context(group.trajectories[pair.target.member], pair, chat, hinted),
            client,
            k=k,
            coefficient=coefficient,
            gate_beta=gate_beta,
        )
        for group, pair in plan
    ]
    return await bounded(calls, concurrency)


async def _row(
    group: Group,
    pair: Any,
    context: Ids,
    client: SamplingClient,
    *,
    k: int,
    coefficient: float,
    gate_beta: float,
) -> Datum:
    if not isinstance(client, DistributionClient):
        raise BackendError("this backend gives no distributions over the vocabulary")
    winner, turn = group.trajectories[pair.winner.member], pair.winner.turn
    action = winner.action_tokens(turn)
    tokens = np.concatenate([np.asarray(context, np.int64), action])
    count, size = len(action), len(tokens)
    own = winner.tokens[: winner.turns[turn].stop].tolist()
    reference = await client.distribution(own, last_n=count, k=k)
    scored = await client.compute_logprobs(tokens.tolist(), last_n=count)
    there_N, here_N = scored.logprobs[-count:], winner.turns[turn].logprob_N
    gate_N = 1 / (1 + np.exp(-np.clip(gate_beta * (here_N - there_N), -500, 500)))
    return Datum(
        tokens=tokens,
        logprobs=_at_end(size, there_N),
        advantages=np.zeros(size),
        mask=_at_end(size, np.ones(count)) > 0,
        distill=_at_end(size, coefficient * pair.weight * gate_N),
        teacher=_at_end(size, here_N),
        distribution=_moved(reference, count, size),
    )


def _context(target: Trajectory, pair: Any, chat: Chat, hinted: HintedEnvironment) -> Ids:
    """The target's ids before its action, under the prompt with or without the hint."""
    end, to_hinted = target.turns[pair.target.turn].start, pair.to_hinted
    if bool(target.student_hint_hash) == to_hinted:
        return target.tokens[:end].tolist()
    front = FRONT.format(hinted.text(target.task).strip())
    text = target.opening.text
    opening: Observation = replace(
        target.opening, text=front + text if to_hinted else text.removeprefix(front)
    )
    prompt = chat.prompt(target.task, opening)
    return [*prompt, *target.tokens[target.prompt_length : end].tolist()]


def _at_end(size: int, values: Array) -> Array:
    out = np.zeros(size)
    out[size - len(values) :] = values
    return out


def _moved(given: Distribution, count: int, size: int) -> Distribution:
    """The last `count` positions of `given` as those of a row of `size` tokens."""
    width = given.ids.shape[1]
    ids = np.zeros((size, width), np.int64)
    logprobs = np.full((size, width), np.nan, np.float32)
    ids[-count:], logprobs[-count:] = given.ids[-count:], given.logprobs[-count:]
    return Distribution(ids, logprobs)
