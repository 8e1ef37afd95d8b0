"""Before anything is paid for in earnest: what does this service really do?

Documents and servers disagree, so each point that a gradient or a teacher depends on is tried out.
What can be normalised is (the reduction of losses); what cannot is refused with the reason.
Training probes use a run of their own that is thrown away: the policy is not touched. Where the
service reports gradient norms its steps have learning rate zero, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from turncredit.backends.hosted import experiments, hearing
from turncredit.backends.hosted.experiments import Bench
from turncredit.backends.hosted.hearing import Alignment, Hosted
from turncredit.backends.hosted.normalise import REDUCTIONS, Reduction, shares
from turncredit.backends.hosted.shift import shift
from turncredit.backends.selfcheck import WARN, example_prompt
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError
from turncredit.core.losses import parse_loss
from turncredit.core.types import Usage

_ALIKE = math.log(1.25)  # a measured effect this near to a predicted one is taken for it
_NONE = 0.1  # share of an effect below which there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What was found, for the run folder.

    Attributes:
        backend: its name.
        alignment: how log-probs of a prompt arrive (they are normalised anyhow).
        sample_vs_score: largest difference between sampled and rescored log-probs, nats.
        temperature: sampled log-probs are "raw", or "tempered" by the sampling temperature.
        reduction: what the service makes of per-token losses; rows are scaled for it.
        reduction_error: how far the measured effects are from it, as a factor minus 1.
        clip: the window of the ratio is "honoured", or the loss has none ("none").
        snapshots: old ones stay "frozen", follow the training ("live"), or, once used, put their
            own weights into the training ("overwriting").
        seeded: member i of a group is the sample of seed + i.
        measured_by: "grad_norm", or "scores" where the service reports no norm.
        usage: what the probe cost.
    """

    backend: str
    alignment: Alignment
    sample_vs_score: float
    temperature: Literal["raw", "tempered"]
    reduction: Reduction
    reduction_error: float
    clip: Literal["honoured", "none"]
    snapshots: Literal["frozen", "live", "overwriting"]
    seeded: bool
    measured_by: Literal["grad_norm", "scores"]
    usage: Usage

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def warnings(self) -> list[str]:
        """What the user should know; nothing of it stops a run on fresh snapshots."""
        said: list[str] = []
        if self.sample_vs_score > WARN:
            said.append(
                f"sampled and rescored log-probs differ by up to {self.sample_vs_score:.3f} nats: "
                "use --student-logprobs rescored"
            )
        if self.temperature == "tempered":
            said.append(
                "log-probs of samples are tempered: at a temperature other than 1 use "
                "--student-logprobs rescored"
            )
        if self.snapshots != "frozen":
            said.append(
                f"old snapshots are {self.snapshots}: nothing may use one after an update "
                "(a stale teacher, async_level 1, an evaluation beside the training)"
            )
        if not self.seeded:
            said.append("seeds do not repeat samples: a resumed run samples others")
        return said


async def probe(
    backend: Hosted, *, loss_fn: str, folder: str, declared: str = "auto", seed: int = 0
) -> Probed:
    """Try the service out, and set the backend's reduction to what was found.

    Args:
        backend: freshly made.
        loss_fn: the run's loss; its policy loss is measured.
        folder: for states, should the backend write any.
        declared: the reduction the user says, or "auto".
        seed: of the samples.

    Raises:
        BackendError: what is found cannot be normalised.
    """
    before = backend.usage()
    backend.use_reduction("token_sum")
    training = await backend.create_training_client(seed=seed, save_dir=folder)
    client = await training.save_weights_and_get_sampling_client()
    prompt = example_prompt(backend.get_tokenizer())
    alignment = await hearing.alignment_of(backend, client, prompt)
    rows, gap = await hearing.rescored(backend, client, prompt, seed)
    tempered = await hearing.is_tempered(backend, client, prompt, seed)
    seeded = await hearing.is_seeded(backend, client, prompt, seed)
    policy = parse_loss(loss_fn).policy
    bench = Bench(training, client, rows[0], policy, rounding=gap)
    await bench.calibrate()
    reduction, error = await _reduction(bench, rows)
    if declared not in ("auto", reduction):
        raise BackendError(
            f'loss_reduction = "{declared}", but this service was found to do "{reduction}": leave '
            "it auto, or name that one"
        )
    clip = await _clip(bench, rows[0])
    snapshots = await _snapshots(bench)
    await client.close()
    backend.use_reduction(reduction)
    return Probed(
        backend=backend.name,
        alignment=alignment,
        sample_vs_score=gap,
        temperature="tempered" if tempered else "raw",
        reduction=reduction,
        reduction_error=error,
        clip=clip,
        snapshots=snapshots,
        seeded=seeded,
        measured_by=bench.measured_by,
        usage=backend.usage().since(before),
    )


# ── training ─────────────────────────────────────────────────────────────────────────────────


async def _reduction(bench: Bench, rows: Sequence[Datum]) -> tuple[Reduction, float]:
    """The reduction whose predictions fit three measurements, and the worst misfit.

    One row twice; the row beside a long one without weight; the row with a tail without weight.
    Each strengthens or weakens the gradient of the row itself as the reduction says.
    """
    one, other = rows[0], experiments.weightless(rows[1])
    beside = experiments.lengthened(other, 3 * len(one.tokens))
    tailed = experiments.lengthened(one, len(one.tokens))
    batches = [[one, one], [one, beside], [tailed]]
    alone = await bench.strength([one])
    found = [await bench.strength(batch) / alone for batch in batches]
    misfit = {name: _misfit(name, one, batches, found) for name in REDUCTIONS}
    best = min(REDUCTIONS, key=misfit.__getitem__)
    if not misfit[best] <= _ALIKE:
        said = ", ".join(f"{value:.2f}" for value in found)
        raise BackendError(
            "the service reduces losses in a way that is not known here: one row twice, beside a "
            f"long row, and with a tail have {said} times the gradient of the row alone. Rows "
            "cannot be scaled for it; please report these numbers"
        )
    return best, math.expm1(misfit[best])


def _misfit(
    name: Reduction, one: Datum, batches: Sequence[Sequence[Datum]], found: Sequence[float]
) -> float:
    """The largest |log(measured / predicted)|."""

    def weight_of(batch: Sequence[Datum]) -> float:
        # No weights are sent while the sum is assumed, so a mean is over all targets.
        whole = [replace(row, mask=np.ones(len(row.mask), bool)) for row in map(shift, batch)]
        pairs = zip(batch, shares(whole, name), strict=True)
        return sum(share for row, share in pairs if row.advantages.any())

    alone = weight_of([one])
    predicted = [weight_of(batch) / alone for batch in batches]
    pairs = zip(found, predicted, strict=True)
    return max(abs(math.log(max(got, 1e-9) / wanted)) for got, wanted in pairs)


async def _clip(bench: Bench, row: Datum) -> Literal["honoured", "none"]:
    """Whether the ratio's window is where we say it is, above and below."""
    if bench.policy not in ("ppo", "cispo"):
        return "none"
    if bench.policy == "cispo":
        return await _cispo_cap(bench, row)
    alone = await bench.strength([row])
    window = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.24}
    inside = await bench.strength([experiments.at_ratio(row, 1.22)], window)
    above = await bench.strength([experiments.at_ratio(row, 1.3)], window)
    below = await bench.strength([experiments.at_ratio(row, 0.7, sign=-1.0)], window)
    if inside < _NONE * alone:
        raise BackendError(
            "a ratio of 1.22 was clipped though clip_high_threshold is 1.24: the service ignores "
            "the thresholds it is sent, so its updates are not those of this configuration"
        )
    for name, strength in (("above", above), ("below", below)):
        if strength > _NONE * alone:
            raise BackendError(
                f"a ratio {name} the window [0.8, 1.24] was not clipped: the service ignores the "
                "thresholds it is sent, so its updates are not those of this configuration"
            )
    return "honoured"


async def _cispo_cap(bench: Bench, row: Datum) -> Literal["honoured"]:
    """CISPO multiplies by the bounded ratio: at a cap of 1.5, ratio 3 pulls half as much."""
    far = experiments.at_ratio(row, 3.0)
    capped = await bench.strength([far], {"clip_low_threshold": 0.0, "clip_high_threshold": 1.5})
    free = await bench.strength([far], {"clip_low_threshold": 0.0, "clip_high_threshold": 5.0})
    if not abs(math.log(max(capped, 1e-9) / free / 0.5)) <= _ALIKE:
        raise BackendError(
            f"a cap of 1.5 on a ratio of 3 left {capped / free:.2f} of the gradient, not 0.50: the "
            "service ignores the thresholds it is sent"
        )
    return "honoured"


async def _snapshots(bench: Bench) -> Literal["frozen", "live", "overwriting"]:
    """An update, then the old snapshot is used: does it, and does the training, keep its own?"""
    noise = 3 * await bench.noise()
    before = await bench.score(bench.client)
    await bench.move()
    new = await bench.training.save_weights_and_get_sampling_client()
    ahead = await bench.score(new)
    moved = abs(ahead - before)
    if moved <= noise:
        raise BackendError("an optimizer step did not change any score: training has no effect")
    after = await bench.score(bench.client)
    trained = await bench.trained_score()
    await new.close()
    if abs(trained - ahead) > max(noise, 0.5 * moved):
        return "overwriting"
    return "frozen" if abs(after - before) <= max(noise, 0.1 * moved) else "live"
