"""What a service does with samples and scores, tried out without training anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from turncredit.backends.hosted import experiments
from turncredit.backends.selfcheck import REFUSE, WARN, example_prompt
from turncredit.core.calls import SamplingParams
from turncredit.core.clients import Backend, RemoteBackend, SamplingClient
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError
from turncredit.core.types import Array, Usage

Alignment = Literal["all tokens", "without the first", "not seen"]


class Hosted(Backend, RemoteBackend, Protocol):
    """A backend on somebody else's machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What was found; see `probe.Probed` for the meaning of each."""

    backend: str
    alignment: Alignment
    sample_vs_score: float
    temperature: Literal["raw", "tempered"]
    seeded: bool
    usage: Usage

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def warnings(self) -> list[str]:
        """What somebody who evaluates should know."""
        said: list[str] = []
        if self.sample_vs_score > WARN:
            said.append(
                f"sampled and rescored log-probs differ by up to {self.sample_vs_score:.3f} nats"
            )
        if not self.seeded:
            said.append("seeds do not repeat samples: the same evaluation gives other games")
        return said


async def hear(backend: Hosted, client: SamplingClient, *, seed: int = 0) -> Heard:
    """Try the weights behind a client out.

    Raises:
        BackendError: their samples and scores contradict each other.
    """
    before, prompt = backend.usage(), example_prompt(backend.get_tokenizer())
    alignment = await alignment_of(backend, client, prompt)
    _, gap = await rescored(backend, client, prompt, seed)
    tempered = await is_tempered(backend, client, prompt, seed)
    return Heard(
        backend=backend.name,
        alignment=alignment,
        sample_vs_score=gap,
        temperature="tempered" if tempered else "raw",
        seeded=await is_seeded(backend, client, prompt, seed),
        usage=backend.usage().since(before),
    )


async def alignment_of(backend: Hosted, client: SamplingClient, prompt: Sequence[int]) -> Alignment:
    """Score five tokens. The adapter has normalised the answer; it remembers how it looked."""
    found = (await client.compute_logprobs(prompt[:5])).logprobs
    if len(found) != 5 or not np.isfinite(found[1:]).all():
        raise BackendError(f"5 tokens were scored as {np.round(found, 2).tolist()}: not one each")
    seen = getattr(backend, "observed", {}).get("prompt_logprobs")
    if backend.capabilities().suffix_scoring:
        # A service that cannot do it answers in vain, and bills it. Better once here than in all
        # calls of the first teacher: from now on it is asked for everything.
        await client.compute_logprobs(prompt[:5], last_n=2)
    return "not seen" if seen is None else "all tokens" if seen == 0 else "without the first"


async def rescored(
    backend: Hosted, client: SamplingClient, prompt: list[int], seed: int
) -> tuple[list[Datum], float]:
    """Two different samples as rows with rescored log-probs, and how far sampled ones are off."""
    params = _params(backend, seed)
    result = await client.sample(prompt, params=params, num_samples=4)
    rows: list[Datum] = []
    gaps: list[float] = []
    for sample in result.samples:
        if not sample.tokens:
            continue  # a service may leave the token that ends an answer out
        tokens = [*prompt, *sample.tokens]
        scores = (await client.compute_logprobs(tokens)).logprobs
        said, start = np.asarray(sample.logprobs), len(prompt)
        gaps.append(float(np.abs(scores[start:] - said).max()))
        _refuse_apart(scores, said, start, gaps[-1])
        rows.append(experiments.row(tokens, start, scores))
    if not rows:
        raise BackendError(
            "every sample came back without a token: nothing can be trained on. Give the base "
            "model's own tokenizer (--tokenizer), or another model"
        )
    longest = sorted(rows, key=lambda row: len(row.tokens))
    return [longest[-1], longest[0]], max(gaps)


def _refuse_apart(scores: Array, said: Array, start: int, gap: float) -> None:
    """Refuse log-probs that do not describe the same tokens.

    A shift by one may stay below the limit where a model is sure of most tokens, so it is looked
    for as soon as there is any gap.
    """
    if gap <= WARN:
        return
    text = f"sampled and rescored log-probs of the same tokens differ by up to {gap:.3g} nats"
    for offset in (-1, 1):
        moved = np.roll(scores, offset)[start : start + len(said)]
        if np.abs(moved - said).max() <= min(WARN, gap / 10):
            raise BackendError(
                f"{text}: scores are shifted by one position, and not as any known service does"
            )
    if not gap <= REFUSE:  # a NaN is refused, too
        raise BackendError(
            f"{text}: other weights, or log-probs taken after top-p; this service cannot be used"
        )


async def is_tempered(
    backend: Hosted, client: SamplingClient, prompt: list[int], seed: int
) -> bool:
    """Whether log-probs of samples change with the sampling temperature."""
    params = replace(_params(backend, seed), temperature=0.5)
    (sample,) = (await client.sample(prompt, params=params)).samples
    scores = (await client.compute_logprobs([*prompt, *sample.tokens])).logprobs[len(prompt) :]
    return bool(np.abs(scores - sample.logprobs).max(initial=0.0) > WARN)


async def is_seeded(backend: Hosted, client: SamplingClient, prompt: list[int], seed: int) -> bool:
    """Whether a seed repeats its sample, alone as in a group."""
    params = _params(backend, seed)
    group = (await client.sample(prompt, params=params, num_samples=3)).samples
    alone = await client.sample(prompt, params=replace(params, seed=seed + 2))
    return alone.samples[0].tokens == group[2].tokens


def _params(backend: Hosted, seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=16, seed=seed, stop_ids=backend.get_tokenizer().eos_ids)
