"""On both backends: averages of the weights, a start from weights alone, distributions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turncredit.backends import tabular
from turncredit.backends.selfcheck import example_prompt
from turncredit.core.calls import AdamParams
from turncredit.core.clients import AveragingClient, DistributionClient
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError, ConfigError, DataError, TurncreditError

ADAM = AdamParams(learning_rate=3e-2)
Open = Callable[..., Any]


def _table(**changes: Any) -> Any:
    return tabular.create(tabular.Config(**changes))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("torch")
    import tiny_models

    return tiny_models.write_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(params=["tabular", "local-0", "local-2"])
def opened(request: pytest.FixtureRequest) -> Open:
    """Opens a backend: the table, or a tiny model trained whole or by a small adapter."""
    if request.param == "tabular":
        return _table
    from turncredit.backends import local

    folder, rank = request.getfixturevalue("model"), int(request.param[-1])
    return lambda: local.create(local.Config(base_model=folder, lora_rank=rank, threads=1))


def row(backend: Any, weight: float = 1.0) -> Datum:
    """One action token after the prompt."""
    tokenizer = backend.get_tokenizer()
    prompt = example_prompt(tokenizer)
    tokens = np.array([*prompt, tokenizer.encode("a", parse_special=False)[0]])
    mask = np.arange(len(tokens)) == len(prompt)
    return Datum(tokens=tokens, logprobs=-1.0 * mask, advantages=weight * mask, mask=mask)


async def step(training: Any, backend: Any, weight: float = 1.0) -> None:
    await training.forward_backward([row(backend, weight)], loss_fn="cross_entropy")
    await training.optim_step(ADAM)


def weights(training: Any) -> dict[str, np.ndarray]:
    """Live weights by name, on either backend."""
    if hasattr(training, "_state"):
        return {"theta": training._state.theta.copy()}
    return {n: w.numpy().copy() for n, w in training._trainer.weights.items()}


def average(training: Any) -> dict[str, np.ndarray]:
    if hasattr(training, "_state"):
        return {"theta": training._state.average.copy()}
    return {n: w.numpy().copy() for n, w in training._trainer.average.items()}


async def score(client: Any, backend: Any) -> float:
    return float((await client.compute_logprobs(row(backend).tokens)).logprobs[-1])


def equal(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


def test_the_average_follows_the_weights(opened: Open, tmp_path: Path) -> None:
    async def main() -> None:
        backend = opened()
        assert backend.capabilities().averages
        training = await backend.create_training_client(seed=0, save_dir=str(tmp_path))
        assert isinstance(training, AveragingClient)
        with pytest.raises(BackendError, match="track_average"):
            await training.average_sampling_client()
        for decay in (1.0, -0.1, float("nan")):
            with pytest.raises(ConfigError, match="decay"):
                training.track_average(decay)
        await step(training, backend)
        training.track_average(0.75)
        wanted = weights(training)
        for weight in (1.0, -0.5, 1.0):
            await step(training, backend, weight)
            wanted = {n: 0.75 * wanted[n] + 0.25 * w for n, w in weights(training).items()}
        for name, value in average(training).items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-6, atol=1e-7)
        live = await training.save_weights_and_get_sampling_client()
        mean = await training.average_sampling_client()
        assert mean.snapshot_id != live.snapshot_id
        before = await score(mean, backend)
        assert before < await score(live, backend)  # it lags behind what was rewarded
        await step(training, backend)
        assert await score(mean, backend) == before  # a frozen copy
        later = await training.average_sampling_client()
        assert before < await score(later, backend)

    asyncio.run(main())


def test_a_step_that_is_skipped_leaves_the_average(opened: Open, tmp_path: Path) -> None:
    async def main() -> None:
        backend = opened()
        training = await backend.create_training_client(seed=0, save_dir=str(tmp_path))
        training.track_average(0.5)
        before = await score(await training.average_sampling_client(), backend)
        await training.forward_backward([row(backend)], loss_fn="cross_entropy")
        gradient = getattr(training, "_state", None) or training._trainer
        held = gradient.gradient if hasattr(gradient, "gradient") else gradient.gradients
        next(iter(held.values())).reshape(-1)[0] = np.nan
        await training.optim_step(ADAM)
        assert await score(await training.average_sampling_client(), backend) == before

    asyncio.run(main())


def test_decay_zero_is_the_weights_themselves(opened: Open, tmp_path: Path) -> None:
    async def main() -> None:
        backend = opened()
        training = await backend.create_training_client(seed=0, save_dir=str(tmp_path))
        training.track_average(0.0)
        await step(training, backend)
        live = await training.save_weights_and_get_sampling_client()
        mean = await training.average_sampling_client()
        assert await score(mean, backend) == await score(live, backend)

    asyncio.run(main())


def test_a_state_brings_its_average_along_bit_for_bit(opened: Open, tmp_path: Path) -> None:
    async def main() -> None:
        backend = opened()
        training = await backend.create_training_client(seed=0, save_dir=str(tmp_path / "a"))
        training.track_average(0.9)
        for weight in (1.0, -0.3):
            await step(training, backend, weight)
        path = await training.save_state("two")
        again = opened()
        resumed = await again.create_training_client(
            seed=0, save_dir=str(tmp_path / "b"), from_state=path
        )
        resumed.track_average(0.9)  # as every start of a run does
        assert equal(average(resumed), average(training))
        for each, of in ((training, backend), (resumed, again)):
            await step(each, of, 0.7)
        assert equal(average(resumed), average(training))
        assert equal(weights(resumed), weights(training))
        means = [await c.average_sampling_client() for c in (training, resumed)]
        assert means[0].snapshot_id == means[1].snapshot_id
        plain = await backend.create_training_client(seed=0, save_dir=str(tmp_path / "c"))
        path = await plain.save_state("none")
        bare = await backend.create_training_client(
            seed=0, save_dir=str(tmp_path / "d"), from_state=path
        )
        with pytest.raises(BackendError, match="track_average"):
            await bare.average_sampling_client()

    asyncio.run(main())


def test_tracking_an_average_changes_no_training(opened: Open, tmp_path: Path) -> None:
    async def main() -> None:
        found = []
        for tracked in (False, True):
            backend = opened()
            training = await backend.create_training_client(seed=0, save_dir=str(tmp_path))
            if tracked:
                training.track_average(0.5)
            for weight in (1.0, -0.3):
                await step(training, backend, weight)
            found.append(weights(training))
        assert equal(*found)

    asyncio.run(main())


def test_a_start_from_weights_has_a_new_optimizer(opened: Open, tmp_path: Path) -> None:
    async def main() -> None:
        backend = opened()
        training = await backend.create_training_client(seed=0, save_dir=str(tmp_path / "a"))
        for weight in (1.0, -0.5):
            await step(training, backend, weight)
        path = await training.save_weights_for_sampler("two")
        state = await training.save_state("two")
        started = await backend.create_training_client(
            seed=5, save_dir=str(tmp_path / "b"), from_weights=path
        )
        assert equal(weights(started), weights(training))
        live = await training.save_weights_and_get_sampling_client()
        mine = await started.save_weights_and_get_sampling_client()
        assert await score(mine, backend) == await score(live, backend)
        # The first step of Adam moves by the learning rate, whatever came before.
        before = weights(started)
        await step(started, backend)
        moved = max(np.abs(w - before[n]).max() for n, w in weights(started).items())
        assert moved == pytest.approx(ADAM.learning_rate, rel=1e-3)
        await step(training, backend)
        assert not equal(weights(started), weights(training))
        again = opened()
        with pytest.raises(ConfigError, match="both given"):
            await again.create_training_client(
                seed=0, save_dir=str(tmp_path), from_state=state, from_weights=path
            )
        for wrong in (state, str(tmp_path / "none")):
            with pytest.raises(DataError):
                await again.create_training_client(
                    seed=0, save_dir=str(tmp_path), from_weights=wrong
                )

    asyncio.run(main())


def test_weights_of_another_model_are_refused(model: str, tmp_path: Path) -> None:
    import tiny_models

    from turncredit.backends import local

    async def main() -> None:
        async def start(folder: str, rank: int, path: str | None = None) -> Any:
            backend = local.create(local.Config(base_model=folder, lora_rank=rank, threads=1))
            return await backend.create_training_client(
                seed=0, save_dir=str(tmp_path / "x"), from_weights=path
            )

        path = await (await start(model, 4)).save_weights_for_sampler("one")
        with pytest.raises(ConfigError, match="--lora-rank 4, this run has 2"):
            await start(model, 2, path)
        other = tiny_models.write_model(tmp_path / "other", seed=9)
        with pytest.raises(ConfigError, match="--base-model"):
            await start(other, 4, path)
        # An adapter that somebody else's program wrote has no description of ours.
        (Path(path) / "state.json").unlink()
        with pytest.raises(ConfigError, match="--lora-rank 4, this run has 2"):
            await start(model, 2, path)
        assert await start(model, 4, path)

    asyncio.run(main())
    table, other = _table(), _table(habit=0.0)

    async def tables() -> None:
        training = await table.create_training_client(seed=0, save_dir=str(tmp_path))
        path = await training.save_weights_for_sampler("table")
        with pytest.raises(TurncreditError, match="same ones"):
            await other.create_training_client(seed=0, save_dir=str(tmp_path), from_weights=path)

    asyncio.run(tables())


def test_distributions_agree_with_scores(opened: Open, tmp_path: Path) -> None:
    async def main() -> None:
        backend = opened()
        assert backend.capabilities().distributions
        training = await backend.create_training_client(seed=0, save_dir=str(tmp_path))
        await step(training, backend)
        client = await training.save_weights_and_get_sampling_client()
        assert isinstance(client, DistributionClient)
        tokens, used = row(backend).tokens, backend.usage().prefill
        scores = (await client.compute_logprobs(tokens)).logprobs
        whole = await client.distribution(tokens, last_n=3, k=-1)
        assert backend.usage().prefill - used == 2 * len(tokens)
        assert whole.ids.shape == whole.logprobs.shape
        assert (whole.ids == np.arange(whole.ids.shape[1])).all()
        assert np.isnan(whole.logprobs[:-3]).all()
        np.testing.assert_allclose(np.exp(whole.logprobs[-3:]).sum(axis=1), 1, atol=1e-5)
        own = whole.logprobs[np.arange(len(tokens)), tokens]
        np.testing.assert_allclose(own[-3:], scores[-3:], atol=1e-5)
        top = await client.distribution(tokens, last_n=3, k=4)
        assert top.ids.shape == (len(tokens), 4)
        best = -np.sort(-whole.logprobs[-3:], axis=1)[:, :4]
        np.testing.assert_allclose(top.logprobs[-3:], best, atol=1e-6)
        picked = np.take_along_axis(whole.logprobs, top.ids, axis=1)
        np.testing.assert_allclose(top.logprobs[-3:], picked[-3:], atol=1e-6)
        warm = await client.distribution(tokens, last_n=1, k=-1, temperature=2.0)
        tempered = whole.logprobs[-1] / 2
        tempered -= np.log(np.exp(tempered).sum())
        np.testing.assert_allclose(warm.logprobs[-1], tempered, atol=1e-5)
        everything = await client.distribution(tokens, last_n=10_000, k=10_000)
        assert np.isnan(everything.logprobs[0]).all()
        assert np.isfinite(everything.logprobs[1:]).all()
        for question in ({"k": 0}, {"k": 1, "temperature": 0.0}):
            with pytest.raises(ConfigError, match="use"):
                await client.distribution(tokens, last_n=1, **question)
        await client.close()
        with pytest.raises(BackendError, match="closed"):
            await client.distribution(tokens, last_n=1, k=1)

    asyncio.run(main())
