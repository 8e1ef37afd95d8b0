"""The genuine PyTRIO SDK, as installed, drives our protocol against a loopback service."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pytrio", reason="the extra pytrio is not installed")

from pytrio_rig import ADAM, PROMPT, rig, row, trio

from turncredit.backends import tabular
from turncredit.backends.check import check_backend
from turncredit.backends.hosted import faults
from turncredit.backends.hosted.normalise import REDUCTIONS
from turncredit.backends.hosted.probe import probe
from turncredit.backends.loopback.faults import Fault, Rule
from turncredit.backends.loopback.muscle import Quirks
from turncredit.backends.pytrio import Config
from turncredit.core.calls import SamplingParams
from turncredit.core.clients import Backend, UpdatingClient
from turncredit.core.errors import ConfigError


async def _moved(backend: Backend, folder: Path, loss: str = "ppo") -> np.ndarray:
    """Scores of a row after one update of three unequal rows."""
    data = [row(1.0, (0, 1)), row(-0.5, (1,), -0.1), row(0.25, (0, 0, 1), 0.1)]
    training = await backend.create_training_client(seed=0, save_dir=str(folder))
    await training.forward_backward(data, loss_fn=loss)
    await training.optim_step(ADAM)
    client = await training.save_weights_and_get_sampling_client()
    return (await client.compute_logprobs(data[0].tokens.tolist())).logprobs[1:]


def test_it_keeps_the_contract_to_the_last_bit_a_float_has(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.exact()
            results = await check_backend(backend, tmp_path / "states")
            assert [r.name for r in results if not r.passed] == []
            assert len(results) > 15
            # Ours is what the service billed, to the token and the request.
            billed, counted = made.service.actor.billed, backend.usage()
            for name in ("prefill", "sampled", "trained", "requests"):
                assert getattr(billed, name) == getattr(counted, name), name
            assert made.service.control.telemetry == []
            await backend.aclose()
            assert made.service.muscle.runs() == []

    asyncio.run(main())


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss", ["ppo", "cross_entropy"])
def test_one_update_moves_weights_as_ours_whatever_the_service_divides_by(
    reduction: str, loss: str, tmp_path: Path
) -> None:
    if reduction == "sequence_mean":
        pytest.skip("this protocol has no weights that such a mean could be over")

    async def main() -> None:
        own = tabular.create(tabular.Config(table_optimizer="sgd"))
        wanted = await _moved(own, tmp_path / "own", loss)
        quirks = Quirks(reduction=reduction)  # type: ignore[arg-type]
        with rig(tmp_path, quirks=quirks, optimizer="sgd", max_batch_size=2) as made:
            backend = made.backend(loss_reduction=reduction)
            found = await _moved(backend, tmp_path / "states", loss)
            assert backend.capabilities().loss_reduction == reduction
            await backend.aclose()
        np.testing.assert_allclose(found, wanted, atol=1e-5)

    asyncio.run(main())


def test_a_pass_and_its_step_go_together_and_do_what_they_do_apart(tmp_path: Path) -> None:
    slow = Rule(fault=Fault("delay", seconds=0.3), path=r"/v1/events/", times=3)
    data = [row(1.0, (0, 1)), row(-0.5, (1,)), row(0.25, (0, 0, 1))]

    async def main() -> None:
        with rig(tmp_path / "together", rules=[slow], max_batch_size=2) as made:
            training = await made.backend().create_training_client(seed=0, save_dir="")
            assert isinstance(training, UpdatingClient)
            update = asyncio.ensure_future(training.update(data, loss_fn="ppo", params=ADAM))
            applied = made.service.actor.applied
            while not any(kind == "trainer.optimize_step" for _, kind in applied):
                await asyncio.sleep(0.005)
                assert not update.done()
            out, stepped = await update
            assert np.isfinite(stepped["grad_norm"])
            client = await training.save_weights_and_get_sampling_client()
            found = (await client.compute_logprobs(data[0].tokens.tolist())).logprobs
        with rig(tmp_path / "apart", max_batch_size=2) as made:
            training = await made.backend().create_training_client(seed=0, save_dir="")
            apart = await training.forward_backward(data, loss_fn="ppo")
            await training.optim_step(ADAM)
            client = await training.save_weights_and_get_sampling_client()
            wanted = (await client.compute_logprobs(data[0].tokens.tolist())).logprobs
        assert out.metrics == apart.metrics
        np.testing.assert_array_equal(found, wanted)

    asyncio.run(main())


def test_a_reduction_that_is_not_undone_moves_weights_otherwise(tmp_path: Path) -> None:
    async def main() -> None:
        own = tabular.create(tabular.Config(table_optimizer="sgd"))
        wanted = await _moved(own, tmp_path / "own")
        with rig(tmp_path, quirks=Quirks(reduction="token_mean"), optimizer="sgd") as made:
            backend = made.backend()
            assert np.abs(await _moved(backend, tmp_path / "s") - wanted).max() > 1e-2
            backend.use_reduction("token_mean")
            found = await _moved(backend, tmp_path / "s")
            await backend.aclose()
        np.testing.assert_allclose(found, wanted, atol=1e-5)

    asyncio.run(main())


def test_scores_of_one_fewer_than_tokens_are_not_shifted(tmp_path: Path) -> None:
    async def main() -> None:
        tokens = row().tokens.tolist()
        scores = []
        for name, quirks in (("a", Quirks()), ("b", Quirks(drops_first=True))):
            with rig(tmp_path / name, quirks=quirks) as made:
                backend = made.backend()
                client = await backend.create_sampling_client()
                scores.append((await client.compute_logprobs(tokens)).logprobs)
                assert backend.observed["prompt_logprobs"] == (0 if name == "a" else -1)
                await backend.aclose()
        np.testing.assert_array_equal(scores[0], scores[1])

    asyncio.run(main())


@pytest.mark.parametrize("reduction", ["token_sum", "row_mean", "token_mean"])
def test_the_probe_finds_what_the_service_divides_by(reduction: str, tmp_path: Path) -> None:
    async def main() -> None:
        quirks = Quirks(reduction=reduction, drops_first=True)  # type: ignore[arg-type]
        with rig(tmp_path, quirks=quirks) as made:
            backend = made.backend()
            found = await probe(backend, loss_fn="ppo", folder=str(tmp_path / "probe"))
            assert (found.reduction, found.alignment) == (reduction, "without the first")
            assert (found.clip, found.snapshots, found.temperature) == ("honoured", "frozen", "raw")
            assert backend.capabilities().loss_reduction == reduction
            await backend.aclose()

    asyncio.run(main())


def test_the_probe_tells_live_snapshots_and_tempered_log_probs(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path, quirks=Quirks(live_samplers=True, tempered=True)) as made:
            backend = made.backend()
            found = await probe(backend, loss_fn="ppo", folder=str(tmp_path / "probe"))
            assert (found.snapshots, found.temperature) == ("live", "tempered")
            await backend.aclose()

    asyncio.run(main())


# ── weights by name ──────────────────────────────────────────────────────────────────────────


def test_states_outlive_session_and_server_and_continue_exactly(tmp_path: Path) -> None:
    async def update(training) -> None:
        await training.forward_backward([row(1.0), row(-1.0, (1,))], loss_fn="ppo")
        await training.optim_step(ADAM)

    async def scores(training) -> np.ndarray:
        client = await training.save_weights_and_get_sampling_client()
        return (await client.compute_logprobs(row().tokens.tolist())).logprobs[1:]

    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend()
            training = await backend.create_training_client(seed=0, save_dir="")
            await update(training)
            state = await training.save_state("step-1")
            weights = await training.save_weights_for_sampler("step-1")
            assert state.startswith("trio://")
            assert state.endswith("/training_state/step-1")
            assert weights.endswith("/sampler_weights/step-1")
            await update(training)
            wanted = await scores(training)
            await backend.aclose()
        with rig(tmp_path) as made:
            backend = made.backend()
            resumed = await backend.create_training_client(seed=9, save_dir="", from_state=state)
            await update(resumed)
            np.testing.assert_array_equal(await scores(resumed), wanted)
            alone = await backend.create_training_client(seed=9, save_dir="", from_weights=weights)
            await update(alone)
            assert np.abs(await scores(alone) - wanted).max() > 1e-5  # a new optimizer
            await backend.create_sampling_client(model_path=weights)
            with pytest.raises(ConfigError, match="sampler_weights/step-1"):
                await backend.create_sampling_client(model_path=state)
            with pytest.raises(ConfigError, match="training_state/step-1"):
                await backend.create_training_client(seed=0, save_dir="", from_state=weights)
            with pytest.raises(faults.SnapshotExpired):
                await backend.create_sampling_client(model_path=weights.replace("-1", "-2"))
            await backend.aclose()

    asyncio.run(main())


def test_named_snapshots_are_saved_and_kept(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend(snapshots="named")
            training = await backend.create_training_client(seed=0, save_dir="")
            client = await training.save_weights_and_get_sampling_client()
            (saved,) = made.service.muscle.shelf.present()
            assert saved.path
            assert saved.expires is not None
            assert saved.expires > time.time() + 24 * 3600  # noqa: TID251
            await client.compute_logprobs(PROMPT)
            await backend.aclose()

    asyncio.run(main())


def test_slow_steps_take_named_snapshots_and_old_temporary_ones_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e6]
    from turncredit.backends.pytrio import sampling, training

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr(sampling, "time", Clock)
    monkeypatch.setattr(training, "time", Clock)

    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend()
            client = await backend.create_training_client(seed=0, save_dir="")
            old = await client.save_weights_and_get_sampling_client()
            assert not made.service.muscle.shelf.present()[-1].path
            now[0] += 3 * 3600
            await old.compute_logprobs(PROMPT)
            new = await client.save_weights_and_get_sampling_client()
            assert made.service.muscle.shelf.present()[-1].path
            now[0] += 4 * 3600
            with pytest.raises(faults.SnapshotExpired, match="--snapshots named"):
                await old.compute_logprobs(PROMPT)
            await new.compute_logprobs(PROMPT)
            await backend.aclose()

    asyncio.run(main())


# ── what is refused, before it costs anything ────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("loss", "settings", "words"),
    [
        ("gspo", None, '"gspo"'),
        ("ppo+kl", None, "no loss terms"),
        ("ppo", {"dual_clip": 3.0}, "dual clip"),
        ("ppo", {"clip_lo_threshold": 0.8}, "clip_low_threshold"),
    ],
)
def test_what_the_service_lacks_is_refused_here(
    loss: str, settings: dict[str, float] | None, words: str, tmp_path: Path
) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend()
            training = await backend.create_training_client(seed=0, save_dir="")
            with pytest.raises(ConfigError, match=words):
                await training.forward_backward([row()], loss_fn=loss, loss_fn_config=settings)
            assert made.service.actor.applied == []
            assert not any("events" in path for path in made.server.faults.seen)
            await backend.aclose()

    asyncio.run(main())


def test_both_clip_bounds_are_always_sent(tmp_path: Path) -> None:
    """Services' defaults differ, and a misspelt key is silently ignored."""

    async def main() -> None:
        with rig(tmp_path) as made:
            seen = []
            muscle, plain = made.service.muscle, made.service.muscle.forward_backward

            async def watched(*args, **named):
                seen.append(named["settings"])
                return await plain(*args, **named)

            muscle.forward_backward = watched  # type: ignore[method-assign]
            backend = made.backend()
            training = await backend.create_training_client(seed=0, save_dir="")
            await training.forward_backward([row()], loss_fn="ppo")
            await backend.aclose()
            assert seen == [{"clip_low_threshold": 0.8, "clip_high_threshold": 1.24}]

    asyncio.run(main())


@pytest.mark.parametrize("settings", [{"lora_rank": 2}, {"deadline": 0.0}, {"snapshots": "never"}])
def test_settings_that_cannot_work_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Config(**settings)  # type: ignore[arg-type]


# ── the article's own calls ──────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore::UserWarning")  # 0.2.9 no longer knows `timeout`
def test_the_calls_of_the_article_work_as_written(tmp_path: Path) -> None:
    """Its training step in the SDK's blocking style, on the same loopback service."""
    with rig(tmp_path) as made:
        trio.configure(timeout=1800, base_url=made.server.url)
        trio.configure_observability(enabled=False)
        service = trio.ServiceClient(api_key="any")
        training = service.create_lora_training_client(
            base_model="table", rank=32, seed=42, train_unembed=False
        )
        sampler = training.save_weights_and_get_sampling_client()
        datum = row()
        tokens = datum.tokens.tolist()

        async def rollout():
            return await asyncio.gather(
                sampler.sample_async(
                    trio.ModelInput.from_ints(PROMPT),
                    num_samples=4,
                    sampling_params=trio.SamplingParams(max_tokens=8, seed=1, top_p=1.0),
                ),
                sampler.compute_logprobs_async(trio.ModelInput.from_ints(tokens)),
            )

        sampled, scores = asyncio.run(rollout())
        assert len(sampled.sequences) == 4
        assert all(isinstance(each.text, str) for each in sampled.sequences)
        assert scores[0] is None
        assert len(scores) == len(tokens)
        wire = trio.Datum(
            model_input=trio.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": np.asarray(tokens[1:], np.int64),
                "logprobs": np.asarray(datum.logprobs[1:], np.float32),
                "advantages": np.asarray(datum.advantages[1:], np.float32),
            },
        )
        bounds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.24}
        out = training.forward_backward([wire], loss_fn="ppo", loss_fn_config=bounds).result()
        assert np.isfinite(out.metrics["loss_sum"])
        adam = trio.AdamParams(learning_rate=4e-6, grad_clip_norm=1.0)
        assert training.optim_step(adam).result().metrics["grad_norm"] > 0
        state = training.save_state("step-1").result().path
        weights = training.save_weights_for_sampler("step-1-weights").result().path
        assert "/training_state/" in state
        service.create_sampling_client("table", model_path=weights)
        again = service.create_training_client_from_state_with_optimizer(state)
        again.optim_step(adam).result()
        assert made.service.control.telemetry == []
        service._runtime.shutdown()


def test_seeds_and_stop_ids_reach_the_service(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend()
            client = await backend.create_sampling_client()
            params = SamplingParams(max_tokens=6, seed=3, stop_ids=(1,))
            group = (await client.sample(PROMPT, params=params, num_samples=8)).samples
            own = await tabular.create(tabular.Config()).create_sampling_client()
            wanted = (await own.sample(PROMPT, params=params, num_samples=8)).samples
            assert [s.tokens for s in group] == [s.tokens for s in wanted]
            assert [s.stop_reason for s in group] == [s.stop_reason for s in wanted]
            await backend.aclose()

    asyncio.run(main())
