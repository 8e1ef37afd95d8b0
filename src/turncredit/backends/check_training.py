"""The checks that train: direction and ratio of an update, snapshots, resume, refusals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turncredit.backends.check import ADAM, NOT_PROMISED, Check, Subject, hold
from turncredit.core.calls import Sample
from turncredit.core.clients import AveragingClient, SamplingClient, TrainingClient
from turncredit.core.errors import TurncreditError

_BOUNDS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.24}


async def _two_kinds(subject: Subject, client: SamplingClient) -> tuple[Sample, Sample]:
    """Two different samples of one prompt."""
    group = await subject.group(client, 100, 32)
    other = next((s for s in group if s.tokens != group[0].tokens), None)
    hold(other is not None, "32 samples of one prompt are all equal")
    assert other is not None
    return group[0], other


async def _update(subject: Subject, training: TrainingClient, good: Sample, bad: Sample) -> None:
    rows = [subject.datum(good, 0.1), subject.datum(bad, -0.1)]
    await training.forward_backward(rows, loss_fn="ppo", loss_fn_config=_BOUNDS)
    await training.optim_step(ADAM)


async def _direction(subject: Subject) -> str:
    """An update makes rewarded actions likelier, punished ones unlikelier."""
    training = await subject.training("direction")
    old = await training.save_weights_and_get_sampling_client()
    good, bad = await _two_kinds(subject, old)
    await _update(subject, training, good, bad)
    new = await training.save_weights_and_get_sampling_client()
    moved = []
    for sample in (good, bad):
        change = await subject.score(new, sample) - await subject.score(old, sample)
        moved.append(float(change.sum()))
    hold(moved[0] > moved[1], f"good moved by {moved[0]:.3g} nats, bad by {moved[1]:.3g}")
    hold(new.snapshot_id != old.snapshot_id, "two weights share one snapshot id")
    return f"{moved[0]:+.3f} against {moved[1]:+.3f} nats"


async def _reference(subject: Subject) -> str:
    """Loss and log-probs of forward_backward equal the reference formula."""
    training = await subject.training("reference")
    client = await training.save_weights_and_get_sampling_client()
    good, bad = await _two_kinds(subject, client)
    await _update(subject, training, good, bad)
    rows = [subject.datum(good, 0.1), subject.datum(bad, -0.1)]
    out = await training.forward_backward(rows, loss_fn="ppo", loss_fn_config=_BOUNDS)
    await training.optim_step(ADAM)
    loss = 0.0
    for row, new in zip(rows, out.logprobs, strict=True):
        ratio = np.exp(new[row.mask] - row.logprobs[row.mask])
        weight = row.advantages[row.mask]
        loss -= np.minimum(ratio * weight, np.clip(ratio, 0.8, 1.24) * weight).sum()
    gap = abs(loss - out.metrics["loss"])
    hold(gap <= 10 * subject.tolerance, f"loss {out.metrics['loss']:.6g}, reference {loss:.6g}")
    return f"loss differs by {gap:.1e}"


async def _zero(subject: Subject) -> str:
    """Zero advantages change nothing."""
    training = await subject.training("zero")
    client = await training.save_weights_and_get_sampling_client()
    (sample,) = await subject.group(client, 3, 1)
    before = await subject.score(client, sample)
    await training.forward_backward([subject.datum(sample, 0.0)], loss_fn="ppo")
    await training.optim_step(ADAM)
    after = await subject.score(await training.save_weights_and_get_sampling_client(), sample)
    gap = np.abs(after - before).max()
    hold(bool(gap <= 1e-9 + (subject.tolerance > 0.01)), f"scores moved by {gap:.3g} nats")
    return ""


async def _frozen(subject: Subject) -> str:
    """A snapshot keeps its weights while training goes on, and training keeps its own."""
    if not subject.backend.capabilities().immutable_snapshots:
        return NOT_PROMISED
    training = await subject.training("frozen")
    old = await training.save_weights_and_get_sampling_client()
    good, bad = await _two_kinds(subject, old)
    before = await subject.score(old, good)
    await _update(subject, training, good, bad)
    new = await training.save_weights_and_get_sampling_client()
    ahead = await subject.score(new, good)
    hold(bool((await subject.score(old, good) == before).all()), "the old snapshot changed")
    out = await training.forward_backward([subject.datum(good, 0.0)], loss_fn="ppo")
    trained = out.logprobs[0][len(subject.prompt) :]
    gap = np.abs(trained - ahead).max()
    hold(bool(gap <= subject.tolerance), "the training took weights of the old snapshot it served")
    hold(bool((await subject.score(new, good) == ahead).all()), "the new snapshot changed")
    again = await subject.group(old, 100, 1)
    hold(again[0].tokens == good.tokens, "the old snapshot samples other tokens")
    return ""


async def _resume(subject: Subject) -> str:
    """A saved state continues as if nothing had happened, optimizer included."""
    if not subject.backend.capabilities().optimizer_resume:
        return NOT_PROMISED
    training = await subject.training("resume")
    client = await training.save_weights_and_get_sampling_client()
    good, bad = await _two_kinds(subject, client)
    await _update(subject, training, good, bad)
    path = await training.save_state("one")
    resumed = await subject.training("resumed", from_state=path)
    scores = []
    for each in (training, resumed):
        await _update(subject, each, bad, good)
        client = await each.save_weights_and_get_sampling_client()
        scores.append(await subject.score(client, good))
    gap = np.abs(scores[0] - scores[1]).max()
    limit = 0.0 if subject.backend.capabilities().exact_resume else subject.tolerance
    hold(bool(gap <= limit), f"scores after the next update differ by {gap:.3g} nats")
    return ""


async def _sampler_weights(subject: Subject) -> str:
    """Weights saved for the sampler score as the snapshot they were saved from."""
    training = await subject.training("sampler")
    client = await training.save_weights_and_get_sampling_client()
    good, bad = await _two_kinds(subject, client)
    await _update(subject, training, good, bad)
    now = await training.save_weights_and_get_sampling_client()
    path = await training.save_weights_for_sampler("one")
    loaded = await subject.backend.create_sampling_client(model_path=path)
    gap = np.abs(await subject.score(now, good) - await subject.score(loaded, good)).max()
    hold(bool(gap <= subject.tolerance), f"scores differ by {gap:.3g} nats")
    return ""


async def _from_weights(subject: Subject) -> str:
    """Training starts from weights saved for the sampler, and refuses two places to start from."""
    training = await subject.training("origin")
    client = await training.save_weights_and_get_sampling_client()
    good, bad = await _two_kinds(subject, client)
    await _update(subject, training, good, bad)
    now = await subject.score(await training.save_weights_and_get_sampling_client(), good)
    path = await training.save_weights_for_sampler("one")
    started = await subject.training("started", from_weights=path)
    then = await subject.score(await started.save_weights_and_get_sampling_client(), good)
    gap = np.abs(then - now).max()
    hold(bool(gap <= subject.tolerance), f"scores differ by {gap:.3g} nats")
    state = await training.save_state("one")
    try:
        await subject.training("both", from_state=state, from_weights=path)
    except TurncreditError:
        return f"max {gap:.1e}"
    hold(False, "from_state and from_weights were accepted together")
    return ""


async def _averages(subject: Subject) -> str:
    """An average of the weights follows them by its decay, and comes back with the state."""
    if not subject.backend.capabilities().averages:
        return NOT_PROMISED
    training = await subject.training("average")
    hold(isinstance(training, AveragingClient), "its training clients have no track_average()")
    first = await training.save_weights_and_get_sampling_client()
    good, bad = await _two_kinds(subject, first)

    async def averaged(decay: float) -> TrainingClient:
        """A client that made the same update from the same start."""
        client = await subject.training(f"average-{decay}")
        assert isinstance(client, AveragingClient)
        client.track_average(decay)
        await _update(subject, client, good, bad)
        return client

    old = float((await subject.score(first, good)).sum())
    await _update(subject, training, good, bad)
    live = await training.save_weights_and_get_sampling_client()
    new = float((await subject.score(live, good)).sum())
    still, moved = [await _average_of(subject, await averaged(d), good) for d in (1 - 1e-9, 0.0)]
    hold(abs(still - old) <= subject.tolerance, f"decay near 1 moves it by {still - old:.3g} nats")
    hold(abs(moved - new) <= subject.tolerance, f"decay 0 is {moved - new:.3g} nats off")
    client = await averaged(0.5)
    half = await _average_of(subject, client, good)
    hold(half not in (old, new), "decay 0.5 gives one end, not an average")
    again = await subject.training("again", from_state=await client.save_state("averaged"))
    back = await _average_of(subject, again, good)
    hold(abs(back - half) <= subject.tolerance, f"a saved average came back {back - half:.3g} off")
    return f"{old:.3f}, {half:.3f}, {new:.3f} nats"


async def _average_of(subject: Subject, training: TrainingClient, sample: Sample) -> float:
    """What the average thinks of a sample, nats."""
    assert isinstance(training, AveragingClient)
    client = await training.average_sampling_client()
    return float((await subject.score(client, sample)).sum())


async def _refusals(subject: Subject) -> str:
    """An unknown loss and an unknown loss setting are refused."""
    training = await subject.training("refusals")
    client = await training.save_weights_and_get_sampling_client()
    (sample,) = await subject.group(client, 4, 1)
    rows = [subject.datum(sample, 1.0)]
    for loss, config in (("ppoo", None), ("ppo", {"clip_lo_threshold": 0.8})):
        try:
            await training.forward_backward(rows, loss_fn=loss, loss_fn_config=config)
        except TurncreditError:
            continue
        hold(False, f"{loss} with {config} was accepted")
    return ""


TRAINING_CHECKS: Sequence[Check] = (
    _direction,
    _reference,
    _zero,
    _frozen,
    _resume,
    _sampler_weights,
    _from_weights,
    _averages,
    _refusals,
)
