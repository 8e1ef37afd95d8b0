"""Do the sampler, the scorer and the trainer give one token the same log-probability?

Runs at the start of every training, on any backend, through the protocol alone. A disagreement
of more than a nat is an alignment fault; of a few hundredths, the rounding of bfloat16.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turncredit.core.calls import SamplingParams
from turncredit.core.clients import SamplingClient, TrainingClient
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError, ConfigError
from turncredit.core.protocols import Tokenizer
from turncredit.core.types import Array, Message

WARN, REFUSE = 0.05, 1.0  # nats per token
SAME = 1e-3  # up to here sampled log-probs serve as well as rescored ones
_MESSAGES = (
    {"role": "system", "content": "You are in a house."},
    {"role": "user", "content": "Where would you look for a mug?"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchReport:
    """Differences of log-probs of the same sampled tokens, in nats."""

    tokens: int
    sample_vs_score_max: float
    sample_vs_score_mean: float
    score_vs_train_max: float
    score_vs_train_mean: float
    outside_band: float = 0.0  # share of tokens with a ratio beyond [0.9, 1.1], untrained

    @property
    def prefers_rescoring(self) -> bool:
        """The student's log-probs should come from the scoring path, as the teacher's do."""
        return self.sample_vs_score_max >= SAME

    def metrics(self) -> dict[str, float]:
        """As logged: means under the plain names, maxima beside them."""
        return {
            "mismatch/sample_vs_score": self.sample_vs_score_mean,
            "mismatch/sample_vs_score_max": self.sample_vs_score_max,
            "mismatch/score_vs_train": self.score_vs_train_mean,
            "mismatch/score_vs_train_max": self.score_vs_train_max,
            "mismatch/outside_band": self.outside_band,
        }

    def judge(self, student: str = "auto") -> list[str]:
        """Warnings to show.

        Args:
            student: where the student's log-probs come from (`--student-logprobs`).

        Raises:
            BackendError: the paths do not describe the same tokens.
        """
        warnings: list[str] = []
        cure = (
            "the student's side of gaps is best rescored (--student-logprobs rescored)"
            if student == "sampled"
            else f"the student's side of gaps is rescored (--student-logprobs {student})"
        )
        pairs = (
            ("sampled and rescored", self.sample_vs_score_max, self.sample_vs_score_mean, cure),
            (
                "rescored and trained",
                self.score_vs_train_max,
                self.score_vs_train_mean,
                "ratios are not 1 before anything is trained (mismatch/outside_band)",
            ),
        )
        for names, largest, mean, remark in pairs:
            # Not (a <= b): a NaN must be refused, too.
            if not largest <= REFUSE:
                raise BackendError(
                    f"{names} log-probs of the same tokens differ by up to {largest:.3g} nats: "
                    "likely scores shifted by one position, log-probs taken after temperature or "
                    "top-p, or other weights than the snapshot's"
                )
            if largest > WARN:
                warnings.append(
                    f"{names} log-probs differ by up to {largest:.3f} nats (mean {mean:.4f}), as "
                    f"in bfloat16: {remark}"
                )
        return warnings


def example_characters() -> int:
    """How long the texts of that chat are, without its frame."""
    return sum(len(message["content"]) for message in _MESSAGES)


def example_prompt(tokenizer: Tokenizer) -> list[int]:
    """A short chat in the model's own template."""

    def written(messages: Sequence[Message]) -> list[int]:
        text = tokenizer.render(messages, tools=(), add_generation_prompt=True)
        return tokenizer.encode(text, parse_special=True)

    try:
        return written(_MESSAGES)
    except ConfigError:  # the tokenizer's own word on what is wrong
        raise
    except Exception:  # noqa: BLE001 - templates raise what they like, some at a system message
        said = "\n".join(message["content"] for message in _MESSAGES)
        return written([{"role": "user", "content": said}])


async def measure(
    training: TrainingClient,
    client: SamplingClient,
    tokenizer: Tokenizer,
    *,
    num_samples: int = 4,
    max_tokens: int = 16,
) -> MismatchReport:
    """Sample a little, score it, and let the trainer read it with zero weights.

    Nothing is trained: zero advantages give zero gradients, and no optimizer step is taken.

    Args:
        training: whose current weights `client` holds.
        client: a fresh snapshot of `training`.
        tokenizer: for the prompt and the end ids.
        num_samples: continuations of one prompt.
        max_tokens: length of each at most.
    """
    prompt = example_prompt(tokenizer)
    params = SamplingParams(max_tokens=max_tokens, seed=0, stop_ids=tokenizer.eos_ids)
    sampled = await client.sample(prompt, params=params, num_samples=num_samples)
    rows = [[*prompt, *sample.tokens] for sample in sampled.samples]
    scored = await asyncio.gather(*(client.compute_logprobs(row) for row in rows))
    start = len(prompt)
    data = [_zero_weights(row, start, s.logprobs) for row, s in zip(rows, scored, strict=True)]
    trained = await training.forward_backward(data, loss_fn="importance_sampling")
    said = np.concatenate([sample.logprobs for sample in sampled.samples])
    score = np.concatenate([s.logprobs[start:] for s in scored])
    train = np.concatenate([new[start:] for new in trained.logprobs])
    first, second = np.abs(said - score), np.abs(score - train)
    return MismatchReport(
        tokens=len(said),
        sample_vs_score_max=float(first.max()),
        sample_vs_score_mean=float(first.mean()),
        score_vs_train_max=float(second.max()),
        score_vs_train_mean=float(second.mean()),
        outside_band=float(np.mean(np.abs(np.exp(train - said) - 1) > 0.1)),
    )


def _zero_weights(tokens: list[int], start: int, logprobs: Array) -> Datum:
    mask = np.arange(len(tokens)) >= start
    return Datum(
        tokens=np.asarray(tokens),
        logprobs=np.where(mask, logprobs, 0.0),
        advantages=np.zeros(len(tokens)),
        mask=mask,
    )
