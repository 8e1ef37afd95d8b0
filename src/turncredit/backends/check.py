"""The conformance suite every backend must pass, through the protocol alone.

Sampled = rescored = trained log-probs; seeds decide samples, whatever else is in flight; a positive
advantage makes an action likelier; snapshots stay frozen; a saved state continues exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turncredit.backends.selfcheck import example_prompt, measure
from turncredit.core.calls import AdamParams, Sample, SamplingParams
from turncredit.core.checks import CheckResult
from turncredit.core.clients import (
    Backend,
    DistributionClient,
    PickingClient,
    SamplingClient,
    TrainingClient,
)
from turncredit.core.datum import Datum
from turncredit.core.errors import TurncreditError
from turncredit.core.types import Array

ADAM = AdamParams(learning_rate=1e-2)
NOT_PROMISED = "not promised by this backend"
_CLOSE = 1e-3  # nats, for backends that promise exactness


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: a backend, a prompt it understands, and a folder for its states."""

    backend: Backend
    prompt: list[int]
    folder: Path
    tolerance: float

    async def training(self, name: str, **origin: str) -> TrainingClient:
        """A training client; the same seed always. `origin`: `from_state` or `from_weights`."""
        return await self.backend.create_training_client(
            seed=0, save_dir=str(self.folder / name), **origin
        )

    def params(self, seed: int = 0, *, max_tokens: int = 12) -> SamplingParams:
        """Temperature 1, ending as a turn ends."""
        stop = self.backend.get_tokenizer().eos_ids
        return SamplingParams(max_tokens=max_tokens, seed=seed, stop_ids=stop)

    async def group(self, client: SamplingClient, seed: int, size: int) -> tuple[Sample, ...]:
        """`size` samples of the prompt."""
        result = await client.sample(self.prompt, params=self.params(seed), num_samples=size)
        return result.samples

    def datum(self, sample: Sample, advantage: float) -> Datum:
        """A training row of one sample."""
        start, tokens = len(self.prompt), [*self.prompt, *sample.tokens]
        mask = np.arange(len(tokens)) >= start
        logprobs = np.zeros(len(tokens))
        logprobs[start:] = sample.logprobs
        return Datum(
            tokens=np.asarray(tokens),
            logprobs=logprobs,
            advantages=np.where(mask, advantage, 0.0),
            mask=mask,
        )

    async def score(self, client: SamplingClient, sample: Sample) -> Array:
        """Rescored log-probs (N,) of the action tokens."""
        result = await client.compute_logprobs([*self.prompt, *sample.tokens])
        return result.logprobs[len(self.prompt) :]


class Broken(Exception):
    """A promise of the contract that does not hold; the text says which."""


def hold(condition: bool, otherwise: str) -> None:
    """Fail the running check unless `condition`."""
    if not condition:
        raise Broken(otherwise)


Check = Callable[[Subject], Awaitable[str]]


async def check_backend(backend: Backend, folder: Path) -> list[CheckResult]:
    """Run every check.

    Args:
        backend: what is checked. It is trained a little.
        folder: an empty folder for its states.
    """
    from turncredit.backends.check_terms import loss_checks
    from turncredit.backends.check_training import TRAINING_CHECKS

    prompt = example_prompt(backend.get_tokenizer())
    promised = backend.capabilities()
    subject = Subject(backend, prompt, folder, _CLOSE if promised.exact_resume else 0.5)
    losses = loss_checks(promised.losses, promised.terms)
    checks: Sequence[Check] = (*_SAMPLING_CHECKS, *TRAINING_CHECKS, *losses)
    return [await _result(check, subject) for check in checks]


async def _result(check: Check, subject: Subject) -> CheckResult:
    name = (check.__doc__ or check.__name__).strip().rstrip(".")
    try:
        return CheckResult(name, True, await check(subject))
    except (Broken, TurncreditError) as error:
        return CheckResult(name, False, str(error))


async def _agreement(subject: Subject) -> str:
    """Sampled, rescored and trained log-probs agree."""
    training = await subject.training("agreement")
    client = await training.save_weights_and_get_sampling_client()
    report = await measure(training, client, subject.backend.get_tokenizer(), num_samples=8)
    largest = max(report.sample_vs_score_max, report.score_vs_train_max)
    hold(largest <= subject.tolerance, f"they differ by up to {largest:.3g} nats")
    return f"{report.tokens} tokens, max {largest:.1e}"


async def _alignment(subject: Subject) -> str:
    """One score per token, NaN for the first, last_n and stop ids as promised."""
    client = await subject.backend.create_sampling_client()
    (sample,) = await subject.group(client, 1, 1)
    tokens = [*subject.prompt, *sample.tokens]
    whole = await client.compute_logprobs(tokens)
    hold(len(whole.logprobs) == len(tokens), f"{len(whole.logprobs)} for {len(tokens)} tokens")
    hold(bool(np.isnan(whole.logprobs[0])), "the first token has a score")
    hold(bool(np.isfinite(whole.logprobs[1:]).all()), "a score is not finite")
    n = len(sample.tokens)
    tail = await client.compute_logprobs(tokens, last_n=n)
    hold(len(tail.logprobs) == len(tokens), "last_n changes the length")
    gap = np.abs(tail.logprobs[-n:] - whole.logprobs[-n:]).max()
    hold(bool(gap <= subject.tolerance), f"last_n changes scores by {gap:.3g}")
    hold(len(sample.logprobs) == n, "sampled log-probs and tokens differ in number")
    ended = sample.tokens[-1] in subject.params().stop_ids
    hold(ended == (sample.stop_reason == "stop"), "the stop token must be the last one returned")
    return f"{len(tokens)} tokens"


async def _seeds(subject: Subject) -> str:
    """Same seed, same samples; another seed, others; a group is not all equal."""
    client = await subject.backend.create_sampling_client()
    first, again, other = [await subject.group(client, seed, 16) for seed in (5, 5, 1005)]
    tokens, repeated, changed = ([s.tokens for s in group] for group in (first, again, other))
    hold(tokens == repeated, "the same seed gave other tokens")
    hold(tokens != changed, "another seed gave the same tokens")
    hold(len(set(tokens)) > 1, "all 16 members of a group are equal")
    alone = await subject.group(client, 5 + 3, 1)
    hold(alone[0].tokens == tokens[3], "member i must be the sample of seed + i")
    return f"{len(set(tokens))} distinct of 16"


async def _untempered(subject: Subject) -> str:
    """Log-probs are at temperature 1 whatever the sampling temperature."""
    client = await subject.backend.create_sampling_client()
    params = subject.params(2)
    cold = SamplingParams(
        max_tokens=params.max_tokens, seed=2, stop_ids=params.stop_ids, temperature=0.5
    )
    (sample,) = (await client.sample(subject.prompt, params=cold)).samples
    gap = np.abs(await subject.score(client, sample) - sample.logprobs).max()
    hold(bool(gap <= subject.tolerance), f"they differ from scores by {gap:.3g} nats")
    return f"max {gap:.1e}"


async def _concurrency(subject: Subject) -> str:
    """32 calls at once give what they give one by one."""
    client = await subject.backend.create_sampling_client()
    prompts = [subject.prompt[: len(subject.prompt) - i % 3] for i in range(32)]

    async def one(i: int) -> tuple[int, ...]:
        result = await client.sample(prompts[i], params=subject.params(i, max_tokens=3 + i % 9))
        return result.samples[0].tokens

    apart = [await one(i) for i in range(32)]
    together = await asyncio.gather(*(one(i) for i in range(32)))
    same = sum(a == b for a, b in zip(apart, together, strict=True))
    exact = subject.tolerance == _CLOSE
    hold(same == 32 or not exact, f"only {same} of 32 samples are the same")
    return f"{same} of 32 equal"


async def _usage(subject: Subject) -> str:
    """Tokens and requests are counted."""
    client = await subject.backend.create_sampling_client()
    before = subject.backend.usage()
    result = await client.sample(subject.prompt, params=subject.params(9), num_samples=2)
    after = subject.backend.usage()
    sampled = sum(len(sample.tokens) for sample in result.samples)
    hold(result.usage.sampled == sampled, f"said {result.usage.sampled}, sampled {sampled}")
    hold(after.sampled - before.sampled == sampled, "the backend's total misses this call")
    hold(after.requests > before.requests, "requests are not counted")
    return f"{sampled} tokens"


async def _distributions(subject: Subject) -> str:
    """Distributions sum to one, and hold the scores of the row's own tokens."""
    if not subject.backend.capabilities().distributions:
        return NOT_PROMISED
    client = await subject.backend.create_sampling_client()
    hold(isinstance(client, DistributionClient), "its sampling clients have no distribution()")
    assert isinstance(client, DistributionClient)
    (sample,) = await subject.group(client, 6, 1)
    tokens, n = np.array([*subject.prompt, *sample.tokens]), len(sample.tokens)
    scores = (await client.compute_logprobs(tokens.tolist())).logprobs[-n:]
    whole = await client.distribution(tokens.tolist(), last_n=n, k=-1)
    hold(len(whole.ids) == len(tokens), "not one line for every token")
    hold(bool(np.isnan(whole.logprobs[:-n]).all()), "lines before the last n are not NaN")
    hold(bool((whole.ids == np.arange(whole.ids.shape[1])).all()), "k < 0 is not all ids in order")
    total = float(np.abs(np.exp(whole.logprobs[-n:].astype(float)).sum(axis=1) - 1).max())
    hold(total <= 1e-3, f"a sum of probabilities is off by {total:.3g}")
    own = whole.logprobs[np.arange(len(tokens)), tokens][-n:]
    gap = float(np.abs(own - scores).max())
    hold(gap <= subject.tolerance, f"they differ from scores by {gap:.3g} nats")
    top = await client.distribution(tokens.tolist(), last_n=n, k=3)
    picked = np.take_along_axis(whole.logprobs, top.ids, axis=1)[-n:]
    best = -np.sort(-whole.logprobs[-n:], axis=1)[:, :3]
    for other in (picked, best):
        wrong = float(np.abs(top.logprobs[-n:] - other).max())
        hold(wrong <= subject.tolerance, f"k=3 is not the three likeliest ({wrong:.3g} nats)")
    warm = await client.distribution(tokens.tolist(), last_n=n, k=-1, temperature=2.0)
    halved = whole.logprobs[-n:].astype(float) / 2
    halved -= np.log(np.exp(halved).sum(axis=1, keepdims=True))
    wrong = float(np.abs(warm.logprobs[-n:] - halved).max())
    hold(wrong <= subject.tolerance, f"temperature 2 does not halve logits ({wrong:.3g} nats)")
    return f"{n} lines of {whole.ids.shape[1]}, max {gap:.1e}"


async def _picking(subject: Subject) -> str:
    """Single tokens score as they do in the whole row."""
    client = await subject.backend.create_sampling_client()
    if not isinstance(client, PickingClient):
        return NOT_PROMISED
    (sample,) = await subject.group(client, 6, 1)
    tokens = [*subject.prompt, *sample.tokens]
    at = [1, *range(3, len(tokens), 2)]
    found = (await client.pick_logprobs(tokens, at)).logprobs
    whole = (await client.compute_logprobs(tokens)).logprobs
    hold(len(found) == len(tokens), "not one entry for every token")
    hold(bool(np.isnan(np.delete(found, at)).all()), "entries nobody asked for are not NaN")
    gap = float(np.abs(found[at] - whole[at]).max())
    hold(gap <= subject.tolerance, f"they differ from those of the row by {gap:.3g} nats")
    return f"{len(at)} of {len(tokens)} tokens, max {gap:.1e}"


_SAMPLING_CHECKS: Sequence[Check] = (
    _agreement,
    _alignment,
    _seeds,
    _untempered,
    _concurrency,
    _usage,
    _distributions,
    _picking,
)
