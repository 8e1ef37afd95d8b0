"""Every loss and term of the table against the NumPy reference, value and gradient."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.backends import tabular
from turncredit.backends.selfcheck import example_prompt
from turncredit.core.calls import AdamParams
from turncredit.core.clients import DistributionClient
from turncredit.core.datum import Datum, Distribution
from turncredit.core.errors import ConfigError
from turncredit.core.losses import LOSS_TERMS, POLICY_LOSSES
from turncredit.loop.reference import reference_loss

SGD = AdamParams(learning_rate=1.0, grad_clip_norm=0.0)
ACTIONS = ("left", "right", "wait")


def opened():
    config = tabular.Config(table_actions=ACTIONS, table_optimizer="sgd")
    return tabular.create(config)


async def training_of(backend, folder):
    """A table that has been trained a little, so that no situation is untouched."""
    training = await backend.create_training_client(seed=0, save_dir=str(folder))
    await training.forward_backward(rows(backend, np.random.default_rng(5)), loss_fn="ppo")
    await training.optim_step(replace(SGD, learning_rate=0.3))
    return training


def row(backend, rng, action):
    """One turn: the call of `action` and the end, with every stream."""
    prompt = example_prompt(backend.get_tokenizer())
    tokenizer = backend.get_tokenizer()
    tokens = np.array([*prompt, tokenizer.call_ids[action], tokenizer.end_id])
    mask = np.arange(len(tokens)) >= len(prompt)
    size, vocabulary = len(tokens), len(tokenizer)
    logprobs = np.where(mask, np.where(tokens == tokenizer.end_id, -1e-9, -1.2), 0.0)
    teacher_TV = rng.normal(size=(size, vocabulary))
    teacher_TV -= np.log(np.exp(teacher_TV).sum(axis=1, keepdims=True))
    ids = np.broadcast_to(np.arange(vocabulary), teacher_TV.shape)
    return Datum(
        tokens=tokens,
        logprobs=logprobs + mask * rng.normal(0, 0.2, size),
        advantages=mask * rng.normal(size=size),
        mask=mask,
        distill=np.where(mask, rng.uniform(0.1, 1, size), np.nan),
        teacher=logprobs + rng.normal(size=size),
        reference=logprobs + rng.normal(size=size),
        weight=mask * 0.5,
        distribution=Distribution(ids, teacher_TV.astype(np.float32)),
    )


def rows(backend, rng, *, distill=False):
    data = [row(backend, rng, action) for action in (0, 1, 2) * 4]
    return data if distill else [replace(datum, distill=None) for datum in data]


def few(data, backend, k):
    """The same rows with k tokens of the distribution, the calls among them."""
    calls = backend.get_tokenizer().call_ids
    out = []
    for datum in data:
        ids = np.broadcast_to([*calls, 5, 6, 7][:k], (len(datum.tokens), k))
        logprobs = np.take_along_axis(datum.distribution.logprobs, ids, axis=1)
        out.append(replace(datum, distribution=Distribution(ids, logprobs)))
    return out


async def held_to_reference(training, data, loss_fn, config):
    """Value and gradient; the gradient is what one plain step moves."""
    backend_logits = await logits_of(training, data)
    out = await training.forward_backward(data, loss_fn=loss_fn, loss_fn_config=config)
    value, slopes = reference_loss(loss_fn, config, data, out.logprobs, backend_logits)
    state = training._state
    found = {key: gradient.copy() for key, gradient in state.gradient.items()}
    state.gradient = {}
    wanted = {}
    reader = training._shared.reader
    for datum, slope_TV in zip(data, slopes, strict=True):
        situations = reader.situations(datum.tokens, 0, len(datum.tokens))
        for position in np.flatnonzero(datum.mask):
            key = situations[position].key
            wanted[key] = wanted.get(key, 0.0) + slope_TV[position]
    assert out.metrics["loss"] == pytest.approx(value, rel=1e-10)
    assert found.keys() <= wanted.keys()
    for key, gradient in wanted.items():
        np.testing.assert_allclose(found.get(key, 0 * gradient), gradient, atol=1e-9)
    assert max(np.abs(gradient).max() for gradient in wanted.values()) > 1e-3
    return out


async def logits_of(training, data):
    client = await training.save_weights_and_get_sampling_client()
    assert isinstance(client, DistributionClient)
    found = []
    for datum in data:
        given = await client.distribution(datum.tokens, last_n=len(datum.tokens), k=-1)
        # A float32 answer is not exact enough to be compared with.
        reader, table = client._shared.reader, client._table
        situations = reader.situations(datum.tokens, 0, len(datum.tokens))
        exact = table.logprob_NV(situations)
        np.testing.assert_allclose(given.logprobs[1:], exact[1:], rtol=1e-6, atol=1e-6)
        found.append(exact)
    return found


POLICY_CASES = [
    ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    ("ppo", {"dual_clip": 1.1}),
    ("importance_sampling", None),
    ("cispo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    ("gspo", {"clip_low_threshold": 0.95, "clip_high_threshold": 1.05}),
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
    ("jsd", {"jsd_beta": 1.0, "jsd_temperature": 0.7}),
    ("topk", None),
    ("kl", {"kl_coefficient": 0.5, "kl_order": 1.0}),
    ("kl", {"kl_coefficient": 0.5, "kl_order": 2.0}),
    ("kl", {"kl_coefficient": 0.5}),
    ("entropy", {"entropy_coefficient": 0.5}),
]


@pytest.mark.parametrize(("policy", "config"), POLICY_CASES)
def test_policy_losses_equal_the_reference(tmp_path, policy, config):
    async def main():
        backend = opened()
        training = await training_of(backend, tmp_path)
        data = rows(backend, np.random.default_rng(1))
        out = await held_to_reference(training, data, policy, config)
        if config:
            assert 0 < out.metrics["clip_fraction"] < 1
        assert (out.metrics["dual_clip_fraction"] > 0) == bool(config and "dual_clip" in config)

    asyncio.run(main())


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize(("term", "config"), TERM_CASES)
def test_terms_equal_the_reference(tmp_path, term, config, k):
    async def main():
        backend = opened()
        training = await training_of(backend, tmp_path)
        data = rows(backend, np.random.default_rng(2), distill=term not in ("kl", "entropy"))
        data = few(data, backend, k) if k else data
        out = await held_to_reference(training, data, f"importance_sampling+{term}", config)
        assert np.isfinite(out.metrics[term])

    asyncio.run(main())


def test_every_loss_and_term_is_declared_and_tested():
    capabilities = opened().capabilities()
    assert capabilities.losses == set(POLICY_LOSSES) == {policy for policy, _ in POLICY_CASES}
    assert capabilities.terms == set(LOSS_TERMS) == {term for term, _ in TERM_CASES}


@given(seed=st.integers(0, 1000))
@settings(max_examples=4, deadline=None)
def test_gradients_by_finite_differences(tmp_path_factory, seed):
    """Of everything at once whose gradient is that of its value (no stop-gradient in it)."""

    async def main():
        loss_fn = "importance_sampling+kl+entropy+topk+jsd"
        config = {"kl_coefficient": 0.5, "entropy_coefficient": 0.5, "jsd_temperature": 1.3}
        backend = opened()
        training = await training_of(backend, tmp_path_factory.getbasetemp())
        data = few(rows(backend, np.random.default_rng(seed), distill=True), backend, 5)
        state = training._state

        async def loss():
            out = await training.forward_backward(data, loss_fn=loss_fn, loss_fn_config=config)
            gradient, state.gradient = state.gradient, {}
            return out.metrics["loss"], gradient

        _, gradient = await loss()
        key, values = max(gradient.items(), key=lambda pair: np.abs(pair[1]).max())
        place = state.rows[key], int(np.argmax(np.abs(values)))
        losses = []
        for shift in (1e-5, -2e-5):
            state.theta[place] += shift
            losses.append((await loss())[0])
        assert values[place[1]] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4)

    asyncio.run(main())


def test_zero_weights_leave_no_gradient(tmp_path):
    async def main():
        backend = opened()
        training = await training_of(backend, tmp_path)
        nothing = {"advantages": 0.0, "distill": 0.0, "weight": 0.0, "teacher": np.nan}
        for datum in rows(backend, np.random.default_rng(3), distill=True):
            size = len(datum.tokens)
            silent = replace(datum, **{n: np.full(size, x) for n, x in nothing.items()})
            await training.forward_backward([silent], loss_fn="ppo+sdar+jsd+kl+entropy")
            assert not training._state.gradient
            bare = replace(silent, teacher=None, reference=None, distribution=None)
            await training.forward_backward([bare], loss_fn="ppo+sdar+jsd+kl+entropy")
            assert not training._state.gradient
            heard = replace(silent, weight=datum.mask * 1.0)
            await training.forward_backward([heard], loss_fn="ppo+entropy")
            assert training._state.gradient
            training._state.gradient = {}

    asyncio.run(main())


def test_rows_without_what_a_term_reads_are_refused(tmp_path):
    async def main():
        backend = opened()
        training = await training_of(backend, tmp_path)
        good, full = rows(backend, np.random.default_rng(4), distill=True)[:2]
        for loss_fn, stream in (
            ("ppo+sdar", "distill"),
            ("ppo+opid", "teacher"),
            ("ppo+topk", "distribution"),
            ("ppo+sdar+kl", "reference"),
            ("ppo+sdar+entropy", "weight"),
        ):
            with pytest.raises(ConfigError, match=f'row 1 has no "{stream}", which the term'):
                await training.forward_backward(
                    [good, replace(full, **{stream: None})], loss_fn=loss_fn
                )
        with pytest.raises(ConfigError, match="fold them"):
            await training.forward_backward([full], loss_fn="ppo+kl")
        with pytest.raises(ConfigError, match='Did you mean "entropy"'):
            await training.forward_backward([full], loss_fn="ppo+entropi")
        assert not training._state.gradient

    asyncio.run(main())


def test_a_distribution_holds_what_the_scores_say(tmp_path):
    async def main():
        backend = opened()
        training = await training_of(backend, tmp_path)
        client = await training.save_weights_and_get_sampling_client()
        tokens = row(backend, np.random.default_rng(0), 1).tokens
        scores = (await client.compute_logprobs(tokens)).logprobs
        whole = await client.distribution(tokens, last_n=2, k=-1)
        assert np.isnan(whole.logprobs[:-2]).all()
        assert (whole.ids == np.arange(len(backend.get_tokenizer()))).all()
        np.testing.assert_allclose(np.exp(whole.logprobs[-2:]).sum(axis=1), 1, atol=1e-6)
        own = whole.logprobs[np.arange(len(tokens)), tokens]
        np.testing.assert_allclose(own[-2:], scores[-2:], rtol=1e-6)
        top = await client.distribution(tokens, last_n=2, k=3)
        assert set(top.ids[-2]) == set(backend.get_tokenizer().call_ids)
        assert (np.diff(top.logprobs[-2:]) <= 0).all()
        np.testing.assert_array_equal(
            np.take_along_axis(whole.logprobs, top.ids, axis=1)[-2:], top.logprobs[-2:]
        )
        warm = await client.distribution(tokens, last_n=2, k=2, temperature=2.0)
        # Two likeliest of three calls e^-25 above the rest: gaps halve.
        np.testing.assert_allclose(
            np.diff(warm.logprobs[-2]), np.diff(top.logprobs[-2, :2]) / 2, rtol=1e-5
        )
        for question in ({"k": 0}, {"k": 2, "temperature": 0.0}):
            with pytest.raises(ConfigError, match="use"):
                await client.distribution(tokens, last_n=2, **question)

    asyncio.run(main())
