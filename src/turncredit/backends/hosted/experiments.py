"""Small training experiments on a throw-away run: how strong is the gradient of these rows?

Strength is the gradient norm where the service reports one (nothing is trained then: the learning
rate is zero). Elsewhere it is what a small plain step does to the scores of a row, which is the
gradient's square to first order; a second step goes back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from turncredit.core.calls import AdamParams
from turncredit.core.clients import SamplingClient, TrainingClient
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError
from turncredit.core.losses import POLICY_LOSSES
from turncredit.core.types import Array, Ids

# Without memory (both betas 0) and with an eps far above any gradient, AdamW's step is the
# gradient times learning_rate / eps.
_EPS = 1e3
_STILL = AdamParams(learning_rate=0.0, beta1=0.0, beta2=0.0, eps=_EPS, grad_clip_norm=0.0)
_STEP = replace(_STILL, learning_rate=1.0)
_MOVE = AdamParams(learning_rate=1e-2, grad_clip_norm=0.0)
_WANTED = 3e-3  # nats per token that a measured step moves the scores by, if noise lets it
_TRIES = 12


def row(tokens: Ids, start: int, logprobs: Array) -> Datum:
    """A row whose actions begin at `start`, weighted equally to a sum of 1."""
    mask = np.arange(len(tokens)) >= start
    return Datum(
        tokens=np.asarray(tokens),
        logprobs=np.where(mask, logprobs, 0.0),
        advantages=mask / mask.sum(),
        mask=mask,
    )


def weightless(one: Datum) -> Datum:
    """The row with all advantages zero."""
    return replace(one, advantages=np.zeros(len(one.tokens)))


def lengthened(one: Datum, more: int) -> Datum:
    """The row with `more` of its own tokens repeated behind it, as actions without weight."""
    tail = np.resize(one.tokens, more)
    nothing = np.zeros(more)
    return Datum(
        tokens=np.concatenate([one.tokens, tail]),
        logprobs=np.concatenate([one.logprobs, nothing]),
        advantages=np.concatenate([one.advantages, nothing]),
        mask=np.concatenate([one.mask, np.ones(more, bool)]),
    )


def at_ratio(one: Datum, ratio: float, *, sign: float = 1.0) -> Datum:
    """The row with old log-probs such that new ones are `ratio` times as likely."""
    old = np.where(one.mask, one.logprobs - math.log(ratio), 0.0)
    return replace(one, logprobs=old, advantages=sign * one.advantages)


class Bench:
    """One throw-away training run and the row its experiments are read on.

    Args:
        training: the run.
        client: its first snapshot.
        one: the row, with scores of that snapshot.
        policy: the loss.
        rounding: by how much two ways to one log-probability differ on this service, nats.

    Attributes:
        measured_by: what strengths are read from.
    """

    def __init__(
        self,
        training: TrainingClient,
        client: SamplingClient,
        one: Datum,
        policy: str,
        rounding: float = 0.0,
    ) -> None:
        self.training, self.client, self.policy = training, client, policy
        self._rounding = rounding
        self.measured_by: Literal["grad_norm", "scores"] = "grad_norm"
        self._row, self._step = one, _STEP

    async def calibrate(self) -> None:
        """Find out how strength can be read, and how large a step has to be.

        Raises:
            BackendError: no step changes any score.
        """
        if math.isfinite(norm := await self._norm([self._row], None)):
            if norm <= 0:
                raise BackendError("the gradient of a row with advantages is zero: nothing trains")
            return
        self.measured_by = "scores"
        noise = await self.noise()
        wanted = max(_WANTED * float(self._row.mask.sum()), 20 * noise)
        for _ in range(_TRIES):
            moved = await self._effect([self._row], None)
            if moved >= wanted:
                return
            factor = np.clip(1.5 * wanted / max(moved, 1e-9), 1.5, 50.0)
            rate = self._step.learning_rate * float(factor)
            self._step = replace(self._step, learning_rate=rate)
        raise BackendError("optimizer steps do not change any score: training has no effect")

    async def strength(
        self, rows: Sequence[Datum], settings: Mapping[str, float] | None = None
    ) -> float:
        """How strong the gradient of `rows` is, in a unit that is the same for one bench.

        Of rows whose gradients are multiples of one another, such as these experiments use.
        """
        if self.measured_by == "grad_norm":
            return await self._norm(rows, settings)
        return await self._effect(rows, settings)

    async def score(self, client: SamplingClient) -> float:
        """Log-probability of the row's actions, nats."""
        return float((await self._scores(client))[self._row.mask].sum())

    async def trained_score(self) -> float:
        """The same, as the training sees it."""
        out = await self.training.forward_backward(
            [weightless(self._row)], loss_fn=self.policy, loss_fn_config=self._wide()
        )
        return float(out.logprobs[0][self._row.mask].sum())

    async def noise(self) -> float:
        """How far two scores of the row may be apart for no reason, nats; floor for float32."""
        first, second = [await self.score(self.client) for _ in range(2)]
        rounding = self._rounding * math.sqrt(self._row.mask.sum())
        return max(abs(first - second), rounding, 1e-4)

    async def move(self) -> None:
        """An ordinary update, which changes the weights of this run."""
        await self.training.forward_backward(
            [self._row], loss_fn=self.policy, loss_fn_config=self._wide()
        )
        await self.training.optim_step(_MOVE)

    async def _norm(self, rows: Sequence[Datum], settings: Mapping[str, float] | None) -> float:
        await self.training.forward_backward(
            rows, loss_fn=self.policy, loss_fn_config=self._wide() if settings is None else settings
        )
        return float((await self.training.optim_step(_STILL)).get("grad_norm", math.nan))

    async def _effect(self, rows: Sequence[Datum], settings: Mapping[str, float] | None) -> float:
        """How far one small step along `rows` moves the score of the bench's row, nats.

        The mean of a step there and one back, in which the curvature cancels; with settings under
        test only the step there, because a window cuts on one side.
        """
        before = await self._now()
        after = await self._stepped(rows, settings, 1.0, before)
        moved = self._total(after - before)
        if settings is not None:
            return abs(moved)
        back = await self._stepped(rows, settings, -1.0, after)
        return abs(moved - self._total(back - after)) / 2

    async def _stepped(
        self, rows: Sequence[Datum], settings: Mapping[str, float] | None, sign: float, now: Array
    ) -> Array:
        """Scores of the bench's row after a step along or against `rows`."""
        drift = np.nan_to_num(now - self._row.logprobs)
        sent = [self._sent(each, sign, drift) for each in rows]
        await self.training.forward_backward(
            sent, loss_fn=self.policy, loss_fn_config=self._wide() if settings is None else settings
        )
        await self.training.optim_step(self._step)
        return await self._now()

    async def _now(self) -> Array:
        """Scores of the bench's row under the present weights."""
        client = await self.training.save_weights_and_get_sampling_client()
        scores = await self._scores(client)
        await client.close()
        return scores

    def _total(self, scores: Array) -> float:
        return float(scores[self._row.mask].sum())

    def _sent(self, each: Datum, sign: float, drift: Array) -> Datum:
        """Up or down; old log-probs follow the run, so that ratios stay what they were."""
        length = min(len(each.tokens), len(drift))
        old = each.logprobs.copy()
        if each.advantages.any():
            old[:length] += np.where(each.mask[:length], drift[:length], 0.0)
        return replace(each, advantages=sign * each.advantages, logprobs=old)

    async def _scores(self, client: SamplingClient) -> Array:
        return (await client.compute_logprobs(self._row.tokens.tolist())).logprobs

    def _wide(self) -> Mapping[str, float] | None:
        """A window that cuts nothing."""
        if "clip_high_threshold" not in POLICY_LOSSES[self.policy]:
            return None
        return {"clip_low_threshold": 0.0, "clip_high_threshold": 100.0}
