"""Every loss and term of the torch backend against the NumPy reference, value and gradient."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import tiny_models
import torch

from turncredit.backends.local import CAPABILITIES, Config, create, score
from turncredit.backends.local.clients import LocalTrainingClient
from turncredit.core.datum import Datum, Distribution
from turncredit.core.errors import ConfigError
from turncredit.core.losses import LOSS_TERMS, POLICY_LOSSES
from turncredit.loop.reference import reference_loss


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> LocalTrainingClient:
    """A tiny model with all its weights trained; tests leave no gradient behind."""
    folder = tiny_models.write_model(tmp_path_factory.mktemp("models") / "llama")
    backend = create(Config(base_model=folder, lora_rank=0, threads=1))
    return asyncio.run(backend.create_training_client(seed=0, save_dir=str(folder)))


def rows(client: LocalTrainingClient, *, k: int = 0, count: int = 3) -> list[Datum]:
    """Rows with every stream, unequal numbers of action tokens, and holes where nothing is weighed.

    Old log-probs lie near the present ones, so that some ratios clip and some do not. `k` tokens
    of the vocabulary are given (0: all).
    """
    rng = np.random.default_rng(7)
    vocabulary = client._engine.policy.vocabulary
    plain = [_plain(rng, length=16) for _ in range(count)]
    new = asyncio.run(client.forward_backward(plain, loss_fn="ppo")).logprobs
    client._trainer.gradients.clear()
    out = []
    for row, new_T in zip(plain, new, strict=True):
        mask, size = row.mask, len(row.mask)
        near = np.where(mask, np.nan_to_num(new_T), 0.0)
        blind = mask & (rng.random(size) < 0.3)  # action tokens no teacher looked at
        given = _distribution(rng, size, vocabulary, k or vocabulary)
        given.logprobs.setflags(write=True)
        given.logprobs[~mask | blind] = np.nan
        out.append(
            replace(
                row,
                logprobs=near + mask * rng.normal(0, 0.3, size),
                advantages=mask * rng.normal(size=size),
                distill=np.where(mask & ~blind, rng.uniform(0.1, 1, size), 0.0),
                teacher=np.where(blind, np.nan, near + rng.normal(0, 1, size)),
                reference=near + rng.normal(0, 1, size),
                weight=mask / mask.sum(),
                distribution=given,
            )
        )
    return out


def _plain(rng: np.random.Generator, length: int) -> Datum:
    mask = np.zeros(length, bool)
    mask[5 : 5 + int(rng.integers(2, 5))] = mask[11:14] = True
    return Datum(
        tokens=rng.integers(3, 280, length),
        logprobs=-5.0 * mask,
        advantages=np.zeros(length),
        mask=mask,
    )


def _distribution(rng: np.random.Generator, size: int, vocabulary: int, k: int) -> Distribution:
    logits = rng.normal(0, 2, (size, vocabulary))
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ids = np.argsort(-logprobs, axis=1)[:, :k] if k < vocabulary else np.arange(vocabulary)[None]
    ids = np.broadcast_to(ids, (size, k)).copy()
    return Distribution(ids, np.take_along_axis(logprobs, ids, axis=1).astype(np.float32))


@contextmanager
def watched(client: LocalTrainingClient) -> Iterator[list[torch.Tensor]]:
    """The logits of action positions, with their gradients after a backward pass."""
    policy, seen = client._engine.policy, []
    head = policy.logits

    def keep(hidden: torch.Tensor) -> torch.Tensor:
        logits = head(hidden)
        logits.retain_grad()
        seen.append(logits)
        return logits

    policy.logits = keep  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        policy.logits = head  # type: ignore[method-assign]
        client._trainer.gradients.clear()


def compared(client: LocalTrainingClient, data: list[Datum], loss_fn: str, config: Any) -> Any:
    """Run a loss, and hold its value and its gradient by the logits to the reference."""
    with watched(client) as seen:
        out = asyncio.run(client.forward_backward(data, loss_fn=loss_fn, loss_fn_config=config))
        (logits,) = seen
        assert logits.grad is not None
        found_NV, logits_NV = logits.grad.double().numpy(), logits.detach().double().numpy()
    masks = np.concatenate([row.mask for row in data])
    spread = np.zeros((len(masks), logits_NV.shape[1]))
    spread[masks] = logits_NV
    logits_TV = np.split(spread, len(data))  # rows of one length
    value, slopes = reference_loss(loss_fn, config, data, out.logprobs, logits_TV)
    wanted_NV = np.concatenate(slopes)[masks]
    assert out.metrics["loss"] == pytest.approx(value, rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(found_NV, wanted_NV, atol=1e-5)
    assert np.abs(wanted_NV).max() > 1e-3
    return out


POLICY_CASES = [
    ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.24}),
    ("ppo", {"dual_clip": 1.1}),
    ("importance_sampling", None),
    ("cispo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    ("gspo", {"clip_low_threshold": 0.95, "clip_high_threshold": 1.05}),
    ("gspo", {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}),
    ("cross_entropy", None),
]
TERM_CASES = [
    ("sdar", None),
    ("sdar", {"sdar_beta": 0.0}),
    ("skillsd", None),
    ("opid", None),
    ("opid", {"opid_clip": 0.2}),
    ("jsd", None),
    ("jsd", {"jsd_beta": 0.0, "jsd_temperature": 1.1}),
    ("jsd", {"jsd_beta": 1.0}),
    ("topk", None),
    ("kl", {"kl_coefficient": 0.5, "kl_order": 1.0}),
    ("kl", {"kl_coefficient": 0.5, "kl_order": 2.0}),
    ("kl", {"kl_coefficient": 0.5}),
    ("entropy", {"entropy_coefficient": 0.5}),
]


@pytest.mark.parametrize(("policy", "config"), POLICY_CASES)
def test_policy_losses_equal_the_reference(
    client: LocalTrainingClient, policy: str, config: dict[str, float] | None
) -> None:
    data = [replace(row, distill=None) for row in rows(client)]
    out = compared(client, data, policy, config)
    if config and config.get("clip_high_threshold", 2.0) < 2.0:
        assert 0 < out.metrics["clip_fraction"] < 1
    assert (out.metrics["dual_clip_fraction"] > 0) == bool(config and "dual_clip" in config)


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize(("term", "config"), TERM_CASES)
def test_terms_equal_the_reference(
    client: LocalTrainingClient, term: str, config: dict[str, float] | None, k: int
) -> None:
    data = rows(client, k=k)
    if term in ("kl", "entropy"):
        data = [replace(row, distill=None) for row in data]
    out = compared(client, data, f"ppo+{term}", config)
    assert np.isfinite(out.metrics[term])


def test_every_loss_and_term_is_declared_and_tested() -> None:
    assert CAPABILITIES.losses == set(POLICY_LOSSES) == {policy for policy, _ in POLICY_CASES}
    assert CAPABILITIES.terms == set(LOSS_TERMS) == {term for term, _ in TERM_CASES}


def test_many_terms_together_in_chunks_and_micro_batches(
    client: LocalTrainingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the size of a chunk of logits nor that of a pass changes the gradient."""
    loss_fn, data = "gspo+sdar+kl+entropy+jsd", rows(client, k=5)
    out = compared(client, data, loss_fn, {"entropy_coefficient": 0.5})
    results = []
    for head, batch_tokens in ((2**24, 4096), (700, 4096), (700, 20)):
        monkeypatch.setattr(score, "_HEAD_ELEMENTS", head)
        monkeypatch.setattr(
            client, "_config", replace(client._config, batch_tokens=batch_tokens), raising=True
        )
        out = asyncio.run(client.forward_backward(data, loss_fn=loss_fn))
        results.append((out.metrics, dict(client._trainer.gradients)))
        client._trainer.gradients.clear()
    for metrics, gradients in results[1:]:
        assert metrics == pytest.approx(results[0][0], abs=1e-5)
        for name, gradient in results[0][1].items():
            torch.testing.assert_close(gradients[name], gradient, atol=1e-5, rtol=1e-4)


def test_gradient_of_the_weights_by_finite_differences(client: LocalTrainingClient) -> None:
    """Of terms whose gradient is that of their value (no stop-gradient in them)."""
    loss_fn, trainer = "importance_sampling+kl+entropy+topk", client._trainer
    config = {"kl_coefficient": 0.5, "entropy_coefficient": 0.5}
    data = rows(client, k=4)

    def loss() -> float:
        work = client.forward_backward(data, loss_fn=loss_fn, loss_fn_config=config)
        return asyncio.run(work).metrics["loss"]

    loss()
    name, gradient = max(trainer.gradients.items(), key=lambda pair: float(pair[1].norm()))
    trainer.gradients = {}
    step = 1e-3 * gradient / gradient.norm()
    losses = []
    for sign in (1, -2):
        trainer.weights[name].add_(step, alpha=sign)
        losses.append(loss())
    trainer.weights[name].add_(step)
    trainer.gradients.clear()
    slope = (losses[0] - losses[1]) / 2e-3
    assert slope == pytest.approx(float(gradient.norm()), rel=0.05)


def test_term_metrics_are_plain_means(client: LocalTrainingClient) -> None:
    """Over the tokens that have a weight, with neither weight nor coefficient."""
    data = rows(client)
    out = asyncio.run(client.forward_backward(data, loss_fn="ppo+opid+kl+entropy"))
    client._trainer.gradients.clear()
    pulled, kl = [], []
    for row, new_T in zip(data, out.logprobs, strict=True):
        assert row.distill is not None
        assert row.teacher is not None
        assert row.reference is not None
        used = row.mask & (row.distill != 0)
        pulled.append((-(row.teacher - row.logprobs) * new_T)[used])
        above = (new_T - row.reference)[row.mask]
        kl.append(np.minimum(np.exp(-above) - 1 + above, 10))
    assert out.metrics["opid"] == pytest.approx(np.concatenate(pulled).mean(), rel=1e-4)
    assert out.metrics["kl"] == pytest.approx(np.concatenate(kl).mean(), rel=1e-4)
    assert 0 < out.metrics["entropy"] < np.log(client._engine.policy.vocabulary)
    plain = [replace(row, distill=None) for row in data]
    alone = asyncio.run(client.forward_backward(plain, loss_fn="ppo"))
    client._trainer.gradients.clear()
    assert not set(LOSS_TERMS) & set(alone.metrics)


@pytest.mark.parametrize(
    ("loss_fn", "stream", "trains"),
    [
        ("ppo", "", False),
        ("ppo+sdar", "distill", True),
        ("ppo+jsd", "distill", True),
        ("ppo+entropy", "weight", True),
        ("ppo+kl", "weight", True),
    ],
)
def test_zero_advantages_train_only_through_terms(
    client: LocalTrainingClient, loss_fn: str, stream: str, trains: bool
) -> None:
    nothing = {"advantages": np.zeros(16), "distill": np.zeros(16), "weight": np.zeros(16)}
    full = rows(client)
    silent = [replace(row, **nothing) for row in full]
    asyncio.run(client.forward_backward(silent, loss_fn=loss_fn))
    assert not client._trainer.gradients
    if trains:
        heard = [
            replace(row, **{**nothing, stream: getattr(whole, stream)})
            for row, whole in zip(silent, full, strict=True)
        ]
        asyncio.run(client.forward_backward(heard, loss_fn=loss_fn))
        assert client._trainer.gradients
        client._trainer.gradients.clear()


def test_rows_at_rest_need_nothing(client: LocalTrainingClient) -> None:
    """A row without weights may lack the streams, and changes nothing beside the others."""
    first, second, third = rows(client, k=3)
    nothing = np.zeros(len(second.mask))
    bare = {"teacher": None, "reference": None, "distribution": None}
    resting = replace(second, advantages=nothing, distill=nothing, weight=nothing, **bare)
    found = []
    for data in ([first, third], [first, resting, third]):
        loss_fn = "ppo+sdar+jsd+kl"
        out = asyncio.run(client.forward_backward(data, loss_fn=loss_fn))
        found.append((out.metrics, dict(client._trainer.gradients)))
        client._trainer.gradients.clear()
    for name in ("loss", "sdar", "jsd", "kl"):
        assert found[1][0][name] == pytest.approx(found[0][0][name], rel=1e-5)
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, atol=1e-5, rtol=1e-4)


def test_extreme_gaps_stay_finite_and_pull_the_right_way(client: LocalTrainingClient) -> None:
    """A teacher 50 nats away on either side; old log-probs far from the new ones."""
    (row, *_) = rows(client)
    far = replace(
        row,
        advantages=np.zeros(len(row.mask)),
        distill=row.mask.astype(float),
        teacher=row.logprobs + 50.0,
        reference=row.logprobs - 50.0,
        logprobs=np.where(row.mask, row.logprobs - 100.0, 0.0),
    )
    with watched(client) as seen:
        loss_fn = "ppo+skillsd+kl"
        out = asyncio.run(client.forward_backward([far], loss_fn=loss_fn))
        grad_NV = seen[0].grad
    assert grad_NV is not None
    assert bool(torch.isfinite(grad_NV).all())
    assert np.isfinite(out.metrics["loss"])
    own = grad_NV.gather(1, torch.tensor(far.tokens[far.mask])[:, None])
    assert bool((own < 0).all())  # descent raises what the teacher wants


def test_rows_without_what_a_term_reads_are_refused(client: LocalTrainingClient) -> None:
    full = rows(client, k=2)

    def refused(data: list[Datum], loss_fn: str, message: str, config: Any = None) -> None:
        before = client._engine.policy.logits
        with pytest.raises(ConfigError, match=message):
            asyncio.run(client.forward_backward(data, loss_fn=loss_fn, loss_fn_config=config))
        assert client._engine.policy.logits == before
        assert not client._trainer.gradients

    for loss_fn, stream in (
        ("ppo+sdar", "distill"),
        ("ppo+opid", "teacher"),
        ("ppo+jsd", "distribution"),
        ("ppo+sdar+kl", "reference"),
        ("ppo+sdar+entropy", "weight"),
    ):
        second = replace(full[1], **{stream: None})
        refused([full[0], second], loss_fn, f'row 1 has no "{stream}", which the term')
    refused(full, "ppo", "name one")
    refused(full, "ppo+kl", "fold them")
    refused(full, "ppo+sdr", 'Did you mean "sdar"')
    refused(full, "ppo+sdar", 'Did you mean "sdar_beta"', {"sdar_bet": 1.0})
    blind = np.full(len(full[0].mask), np.nan)
    refused([replace(full[0], teacher=blind)], "ppo+sdar", '"teacher" is not finite')
    refused([replace(full[0], weight=blind)], "ppo+sdar+kl", '"weight" is not finite')
    given = full[0].distribution
    assert given is not None
    foreign = Distribution(given.ids + 10_000, given.logprobs)
    refused([replace(full[0], distribution=foreign)], "ppo+topk", "another model")
    beyond = replace(full[0], tokens=full[0].tokens + 10_000)
    refused([beyond], "ppo", "another tokenizer")
    wide = _distribution(np.random.default_rng(0), 16, 20, 5)
    refused([full[0], replace(full[1], distribution=wide)], "ppo+topk", "one number")


def test_training_reads_nothing_it_was_not_asked_for(client: LocalTrainingClient) -> None:
    """Streams without a term change neither value nor gradient."""
    data = [replace(row, distill=None) for row in rows(client)]
    bare = [replace(r, teacher=None, reference=None, weight=None, distribution=None) for r in data]
    found = []
    for each in (data, bare):
        out = asyncio.run(client.forward_backward(each, loss_fn="ppo"))
        found.append((out.metrics, dict(client._trainer.gradients)))
        client._trainer.gradients.clear()
    assert found[0][0] == found[1][0]
    assert all(torch.equal(g, found[1][1][name]) for name, g in found[0][1].items())


def test_a_backend_keeps_what_it_declares(tmp_path: Path) -> None:
    """The capabilities of a backend object are those known without torch."""
    folder = tiny_models.write_model(tmp_path / "m")
    found = create(Config(base_model=folder, lora_rank=0, threads=1)).capabilities()
    assert (found.losses, found.terms) == (CAPABILITIES.losses, CAPABILITIES.terms)
    assert (found.distributions, found.averages, found.max_seq_len) == (True, True, 512)
