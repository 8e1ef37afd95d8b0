"""The checks of losses: what a backend declares must have the value and the gradient it stands for.

A gradient is not seen through the protocol, but its effect is: two training clients that start
alike must end alike when one follows a loss and the other plain policy-gradient rows with the same
slopes, worked out here by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from turncredit.backends.check import Check, Subject, hold
from turncredit.backends.check_formulas import POLICIES, TERMS, Case, divergence
from turncredit.backends.contract import STREAMS
from turncredit.core.calls import AdamParams
from turncredit.core.clients import DistributionClient, TrainingClient
from turncredit.core.datum import Datum, Distribution
from turncredit.core.errors import TurncreditError
from turncredit.core.types import Array, Tokens

# One small plain step on any optimizer: with so large an eps AdamW divides by nearly 1, and the
# clipped gradient is at most 0.01 long.
_PROBE = AdamParams(learning_rate=0.1, eps=1.0, grad_clip_norm=0.01)


def loss_checks(losses: frozenset[str], terms: frozenset[str]) -> list[Check]:
    """A check for each declared policy loss and term that is known here."""
    rows = _Rows()
    checks = [_policy_check(n, case, rows) for n, case in POLICIES.items() if n in losses]
    checks += [_term_check(n, case, rows) for n, case in TERMS.items() if n in terms]
    checks += [_ids_check(n, rows) for n in ("jsd", "topk") if n in terms]
    checks += [_entropy_check(rows)] if "entropy" in terms else []
    return [*checks, _missing_check(rows)] if terms else checks


# ── probes ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Effect:
    """What one small step did: loss before, gradient norm, and scores of the rows' actions."""

    loss: float
    norm: float
    moved_N: Array


class _Rows:
    """Rows of two unlike samples, scored by the weights every training client starts with.

    Old log-probs, teacher and initial policy lie some tenths of a nat around them. Made once.
    """

    def __init__(self) -> None:
        self._made: list[Datum] = []

    async def __call__(self, subject: Subject) -> list[Datum]:
        if not self._made:
            self._made = await _made_rows(subject)
        return self._made


async def _made_rows(subject: Subject) -> list[Datum]:
    training = await subject.training("terms")
    client = await training.save_weights_and_get_sampling_client()
    group = await subject.group(client, 100, 32)
    other = next((s for s in group if s.tokens != group[0].tokens), None)
    hold(other is not None, "32 samples of one prompt are all equal")
    assert other is not None
    out = []
    for n, sample in enumerate((group[0], other)):
        row = subject.datum(sample, 0.0)
        new_T = (await client.compute_logprobs(row.tokens.tolist())).logprobs
        new_T = np.where(row.mask, new_T, 0.0)
        wave = np.cos(np.arange(len(row.tokens)) + n) * row.mask
        out.append(
            replace(
                row,
                logprobs=new_T + 0.1 * wave,
                advantages=0.3 * wave,
                distill=row.mask * 0.2,
                weight=row.mask * 0.2,
                teacher=new_T - 0.6 * wave,
                reference=new_T + 0.5 * wave,
            )
        )
    return out


async def _effect(
    subject: Subject,
    rows: Sequence[Datum],
    loss_fn: str,
    settings: Mapping[str, float],
    watched: Sequence[Datum],
) -> tuple[_Effect, tuple[Array, ...]]:
    """Follow a loss for one small step from the common start; also the log-probs it reported."""
    training = await subject.training("probe")
    out = await training.forward_backward(rows, loss_fn=loss_fn, loss_fn_config=settings)
    before = await _scores(training, watched)
    stepped = await training.optim_step(_PROBE)
    moved = await _scores(training, watched) - before
    return _Effect(out.metrics["loss"], stepped["grad_norm"], moved), out.logprobs


async def _scores(training: TrainingClient, rows: Sequence[Datum]) -> Array:
    client = await training.save_weights_and_get_sampling_client()
    scores = [
        (await client.compute_logprobs(row.tokens.tolist())).logprobs[row.mask] for row in rows
    ]
    await client.close()
    return np.concatenate(scores)


def _plain(row: Datum, slope_N: Array, new_T: Array) -> Datum:
    """A row whose ppo gradient is `slope_N`: at ratio 1 the slope is minus the advantage."""
    advantages = np.zeros(len(row.tokens))
    advantages[row.mask] = -slope_N
    return Datum(
        tokens=row.tokens,
        logprobs=np.where(row.mask, new_T, 0.0),
        advantages=advantages,
        mask=row.mask,
    )


def _compare(subject: Subject, found: _Effect, wanted: _Effect, value: float) -> str:
    """Loss, gradient and effect of a loss are those of its formula."""
    loose = subject.tolerance > 0.01
    gap = abs(found.loss - value)
    near = gap <= 10 * subject.tolerance * (0.05 + abs(value))
    hold(near, f"loss {found.loss:.6g}, not {value:.6g}")
    hold(found.norm > 0, "it has no gradient: nothing is trained")
    apart = abs(found.norm - wanted.norm) / wanted.norm
    near = apart <= (0.2 if loose else 0.01)
    hold(near, f"gradient norm {found.norm:.6g}, not {wanted.norm:.6g}")
    if loose:  # a step this small is lost in the rounding
        return f"gradient norm differs by {apart:.1e}"
    largest = np.abs(wanted.moved_N).max()
    wrong = float(np.abs(found.moved_N - wanted.moved_N).max() / max(largest, 1e-12))
    hold(wrong <= 0.05, f"a step moves log-probs by other amounts ({wrong:.0%} of the largest)")
    return f"gradient differs by {max(apart, wrong):.1e}"


async def _against_formula(
    subject: Subject, loss_fn: str, case: Case, rows: Sequence[Datum], weight: str, other: str
) -> str:
    found, new = await _effect(subject, rows, loss_fn, case.settings, rows)
    value, plain = 0.0, []
    for row, new_T in zip(rows, new, strict=True):
        columns = (new_T, row.logprobs, getattr(row, other))
        value_N, slope_N = case.formula(*(column[row.mask] for column in columns))
        weight_N = getattr(row, weight)[row.mask] if weight else np.ones(len(value_N))
        value += float((weight_N * value_N).sum())
        plain.append(_plain(row, weight_N * slope_N, new_T))
    wanted, _ = await _effect(subject, plain, "ppo", {}, rows)
    return _compare(subject, found, wanted, value)


def _policy_check(name: str, case: Case, made: _Rows) -> Check:
    async def check(subject: Subject) -> str:
        rows = [replace(row, distill=None) for row in await made(subject)]
        return await _against_formula(subject, name, case, rows, "", "advantages")

    check.__doc__ = f"The loss {name} has the value and the gradient of its formula."
    return check


def _term_check(name: str, case: Case, made: _Rows) -> Check:
    async def check(subject: Subject) -> str:
        weight, other = STREAMS[name]
        return await _against_formula(
            subject, f"ppo+{name}", case, _silent(await made(subject), name), weight, other
        )

    check.__doc__ = f"The term {name} has the value and the gradient of its formula."
    return check


def _silent(rows: Sequence[Datum], term: str) -> list[Datum]:
    """Rows in which the term alone speaks."""
    drop = {} if STREAMS[term][0] == "distill" else {"distill": None}
    return [replace(row, advantages=np.zeros(len(row.tokens)), **drop) for row in rows]


# ── terms over the vocabulary ────────────────────────────────────────────────────────────────


def _ids_check(name: str, made: _Rows) -> Check:
    """Over three given tokens the gradient is one of three sampled tokens."""

    async def check(subject: Subject) -> str:
        row = _silent(await made(subject), name)[0]
        last = int(np.flatnonzero(row.mask)[-1])
        ids_k = _three_ids(int(row.tokens[last]))
        teacher_k = np.log([0.5, 0.3, 0.1])
        shape = (len(row.tokens), 3)
        logprobs = np.full(shape, np.nan, np.float32)
        logprobs[last] = teacher_k
        one = np.arange(len(row.tokens)) == last
        given = Distribution(np.broadcast_to(ids_k, shape).copy(), logprobs)
        rows = [replace(row, distill=0.5 * one, distribution=given)]
        variants = [_ending(row, last, int(i)) for i in ids_k]
        scores_k = await _scores(await subject.training("ids"), variants)
        beta = 0.3 if name == "jsd" else 0.0
        value, slope_k = divergence(scores_k, teacher_k, beta)
        settings = {"jsd_beta": beta, "jsd_temperature": 1.0} if name == "jsd" else {}
        found, _ = await _effect(subject, rows, f"ppo+{name}", settings, variants)
        plain = [
            _plain(variant, np.array([0.5 * slope]), np.full(len(variant.tokens), score))
            for variant, slope, score in zip(variants, slope_k, scores_k, strict=True)
        ]
        wanted, _ = await _effect(subject, plain, "ppo", {}, variants)
        return _compare(subject, found, wanted, 0.5 * value)

    check.__doc__ = f"The term {name} has the value and the gradient of its formula."
    return check


def _three_ids(own: int) -> Tokens:
    """The row's own token and two others."""
    return np.array([own, *[i for i in (3, 4, 5) if i != own][:2]])


def _ending(row: Datum, last: int, token: int) -> Datum:
    """The row up to `last`, with another token there, which alone is an action."""
    tokens = np.append(row.tokens[:last], token)
    mask = np.arange(last + 1) == last
    return Datum(tokens=tokens, logprobs=np.zeros(last + 1), advantages=0.0 * mask, mask=mask)


def _entropy_check(made: _Rows) -> Check:
    """Its slope moves the whole distribution: a step is held to what the gradient promises."""

    async def check(subject: Subject) -> str:
        """The term entropy is minimised negated, and a step raises it as its gradient says."""
        rows = _silent(await made(subject), "entropy")
        training = await subject.training("entropy")
        value = await _entropy_of(training, rows)
        loss, norm = await _entropy_step(training, rows)
        wrong = 0.0 if value is None else abs(loss + value)
        hold(wrong <= 10 * subject.tolerance * (1 - loss), f"loss {loss:.6g}, not {value} negated")
        hold(norm > 0, "it has no gradient: nothing is trained")
        if subject.tolerance > 0.01:  # a step this small is lost in the rounding
            return f"entropy {-loss:.3g}"
        fell = loss - (await _entropy_step(training, rows))[0]
        wanted = _PROBE.learning_rate * norm * min(norm, _PROBE.grad_clip_norm)
        hold(
            abs(fell - wanted) <= 0.2 * wanted + 1e-6,
            f"a step lowers the loss by {fell:.3g}, not {wanted:.3g}",
        )
        return f"a step lowers the loss by {fell:.1e}"

    return check


async def _entropy_step(training: TrainingClient, rows: Sequence[Datum]) -> tuple[float, float]:
    """Loss before a small step, and the norm of its gradient."""
    settings = {"entropy_coefficient": 1.0}
    out = await training.forward_backward(rows, loss_fn="ppo+entropy", loss_fn_config=settings)
    return out.metrics["loss"], (await training.optim_step(_PROBE))["grad_norm"]


async def _entropy_of(training: TrainingClient, rows: Sequence[Datum]) -> float | None:
    """The weighted sum of entropies, where distributions are to be had."""
    client = await training.save_weights_and_get_sampling_client()
    if not isinstance(client, DistributionClient):
        return None
    total = 0.0
    for row in rows:
        assert row.weight is not None
        n = int(row.mask.sum())
        found = await client.distribution(row.tokens.tolist(), last_n=n, k=-1)
        logprobs_NV = found.logprobs[-n:].astype(np.float64)
        entropy_N = -(np.exp(logprobs_NV) * logprobs_NV).sum(axis=1)
        total += float((row.weight[-n:] * entropy_N).sum())
    return total


def _missing_check(made: _Rows) -> Check:
    async def check(subject: Subject) -> str:
        """A term is refused where a row lacks what it reads, and so is an unknown term."""
        declared = sorted(subject.backend.capabilities().terms & STREAMS.keys())
        training = await subject.training("missing")
        rows = await made(subject)
        cases = [
            (f"ppo+{term}", replace(_silent(rows, term)[0], **{stream: None}))
            for term in declared
            for stream in STREAMS[term]
            if stream
        ]
        for loss_fn, row in [*cases, ("ppo+sdarr", rows[0])]:
            try:
                await training.forward_backward([row], loss_fn=loss_fn)
            except TurncreditError:
                continue
            hold(False, f"{loss_fn} was accepted")
        return f"{len(cases)} cases"

    return check
