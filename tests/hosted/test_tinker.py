"""The genuine Tinker SDK, as installed, drives our protocol against a loopback service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tinker", reason="the extra tinker is not installed")

from tinker_rig import ADAM, DATA, PARAMS, PROMPT, rig, row, sdk

from turncredit.backends import tabular
from turncredit.backends.check import check_backend
from turncredit.backends.hosted import faults
from turncredit.backends.hosted.normalise import REDUCTIONS
from turncredit.backends.loopback.faults import Fault, Rule
from turncredit.backends.loopback.muscle import Quirks
from turncredit.backends.loopback.tinker_desk import Flags
from turncredit.backends.tinker import Config
from turncredit.backends.tinker.sdk import takes
from turncredit.core.clients import Backend
from turncredit.core.errors import ConfigError

_SUFFIX = takes(sdk.SamplingClient.sample, "prompt_logprobs_last_n")


async def _moved(backend: Backend, folder: Path, loss: str = "ppo") -> np.ndarray:
    """Scores of a row after one update of three unequal rows."""
    training = await backend.create_training_client(seed=0, save_dir=str(folder))
    await training.forward_backward(DATA, loss_fn=loss)
    await training.optim_step(ADAM)
    client = await training.save_weights_and_get_sampling_client()
    return (await client.compute_logprobs(DATA[0].tokens.tolist())).logprobs[1:]


@pytest.mark.parametrize(
    "flags",
    [Flags(), Flags(chunk_rows=1, load_creates=False, poll_sessions=True)],
    ids=["plain", "chunks, loads after creation, waits together"],
)
def test_it_keeps_the_contract(flags: Flags, tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path, flags=flags) as made:
            backend = made.exact()
            results = await check_backend(backend, tmp_path / "states")
            assert [(r.name, r.detail) for r in results if not r.passed] == []
            assert len(results) > 15
            assert made.server.faults.seen["/api/v1/telemetry"] == 0
            await backend.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss", ["ppo", "cross_entropy"])
def test_one_update_moves_weights_as_ours_whatever_the_service_divides_by(
    reduction: str, loss: str, tmp_path: Path
) -> None:
    if (reduction, loss) == ("sequence_mean", "cross_entropy"):
        pytest.skip("a mean over its weights leaves nothing of them: refused, see below")

    async def main() -> None:
        own = tabular.create(tabular.Config(table_optimizer="sgd"))
        wanted = await _moved(own, tmp_path / "own", loss)
        quirks = Quirks(reduction=reduction)  # type: ignore[arg-type]
        with rig(tmp_path, quirks=quirks, optimizer="sgd") as made:
            backend = made.backend(loss_reduction=reduction)
            found = await _moved(backend, tmp_path / "states", loss)
            assert backend.capabilities().loss_reduction == reduction
            await backend.aclose()
        np.testing.assert_allclose(found, wanted, atol=1e-5)

    asyncio.run(main())


def test_a_reduction_that_is_not_undone_moves_weights_otherwise(tmp_path: Path) -> None:
    async def main() -> None:
        own = tabular.create(tabular.Config(table_optimizer="sgd"))
        wanted = await _moved(own, tmp_path / "own")
        with rig(tmp_path, quirks=Quirks(reduction="token_mean"), optimizer="sgd") as made:
            found = await _moved(made.backend(), tmp_path / "states")
        assert np.abs(found - wanted).max() > 1e-3

    asyncio.run(main())


def test_an_update_submits_its_step_before_the_pass_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Rule(fault=Fault("delay", seconds=0.3), path="retrieve_future", skip=1, times=1)
        with rig(tmp_path, rules=[slow], optimizer="sgd") as made:
            backend, own = made.backend(), tabular.create(tabular.Config(table_optimizer="sgd"))
            training = await backend.create_training_client(seed=0, save_dir="")
            update = asyncio.ensure_future(training.update(DATA, loss_fn="ppo", params=ADAM))
            while not made.server.faults.seen["/api/v1/optim_step"]:
                await asyncio.sleep(0.005)
                assert not update.done()
            out, stepped = await update
            assert np.isfinite(stepped["grad_norm"])
            assert out.metrics["action_tokens"] == sum(d.mask.sum() for d in DATA)
            client = await training.save_weights_and_get_sampling_client()
            found = (await client.compute_logprobs(DATA[0].tokens.tolist())).logprobs[1:]
            np.testing.assert_allclose(found, await _moved(own, tmp_path / "own"), atol=1e-5)

    asyncio.run(main())


@pytest.mark.parametrize("drops", [False, True], ids=["T values", "T - 1 values"])
def test_scores_are_aligned_however_they_arrive(drops: bool, tmp_path: Path) -> None:
    async def main() -> None:
        own = tabular.create(tabular.Config())
        tokens = row(1.0, (1,)).tokens.tolist()
        wanted = await (await own.create_sampling_client()).compute_logprobs(tokens)
        with rig(tmp_path, quirks=Quirks(drops_first=drops)) as made:
            backend = made.backend()
            client = await backend.create_sampling_client()
            found = (await client.compute_logprobs(tokens)).logprobs
            assert np.isnan(found[0])
            np.testing.assert_allclose(found[1:], wanted.logprobs[1:], atol=1e-6)
            assert backend.observed == {"prompt_logprobs": -1 if drops else 0}

    asyncio.run(main())


def test_a_server_without_suffix_scoring_is_asked_for_everything(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path, flags=Flags(suffix_scoring=False)) as made:
            backend, tokens = made.backend(), row().tokens.tolist()
            client = await backend.create_sampling_client()
            assert backend.capabilities().suffix_scoring == _SUFFIX
            tail = (await client.compute_logprobs(tokens, last_n=2)).logprobs
            whole = (await client.compute_logprobs(tokens)).logprobs
            assert (tail[-2:] == whole[-2:]).all()
            assert np.isnan(tail[:-2]).all()
            assert not backend.capabilities().suffix_scoring

    asyncio.run(main())


def test_a_group_is_counted_as_billed_its_prompt_once_in_full(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            client = await made.backend().create_sampling_client()
            usage = (await client.sample(PROMPT, params=PARAMS, num_samples=4)).usage
            assert usage.cached is not None
            assert usage.prefill + usage.cached == 4 * len(PROMPT)
            assert usage.cached >= 3 * len(PROMPT)

    asyncio.run(main())


def test_a_state_resumes_on_a_new_server_and_sampler_weights_evaluate(tmp_path: Path) -> None:
    async def main() -> None:
        tokens = DATA[0].tokens.tolist()
        with rig(tmp_path) as made:
            training = await made.backend().create_training_client(seed=0, save_dir="")
            await training.update(DATA, loss_fn="ppo", params=ADAM)
            state = await training.save_state("step-1")
            sampler = await training.save_weights_for_sampler("step-1")
            assert made.server.faults.seen["/api/v1/save_weights"] == 1
            await training.update(DATA[:1], loss_fn="ppo", params=ADAM)
            client = await training.save_weights_and_get_sampling_client()
            wanted = (await client.compute_logprobs(tokens)).logprobs[1:]
        assert state.startswith("tinker://")
        assert state.endswith("/weights/step-1")
        with rig(tmp_path) as made:
            backend = made.backend()
            resumed = await backend.create_training_client(seed=0, save_dir="", from_state=state)
            await resumed.update(DATA[:1], loss_fn="ppo", params=ADAM)
            client = await resumed.save_weights_and_get_sampling_client()
            found = (await client.compute_logprobs(tokens)).logprobs[1:]
            np.testing.assert_array_equal(found, wanted)
            evaluated = await backend.create_sampling_client(model_path=sampler)
            assert evaluated.snapshot_id == sampler
            with pytest.raises(ConfigError, match="/weights/step-1"):
                await backend.create_training_client(seed=0, save_dir="", from_state=sampler)
            with pytest.raises(ConfigError, match="/sampler_weights/step-1"):
                await backend.create_sampling_client(model_path=state)

    asyncio.run(main())


def test_what_the_service_cannot_compute_is_refused_before_any_call(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            training = await made.backend().create_training_client(seed=0, save_dir="")
            before = sum(made.server.faults.seen.values())
            for loss, settings in (
                ("gspo", None),
                ("ppo+kl", None),
                ("ppo", {"dual_clip": 3.0}),
                ("ppo", {"clip_lo_threshold": 0.8}),
            ):
                with pytest.raises(ConfigError):
                    await training.forward_backward(DATA, loss_fn=loss, loss_fn_config=settings)
            assert sum(made.server.faults.seen.values()) == before

    asyncio.run(main())


def test_cross_entropy_is_refused_where_the_service_divides_by_its_weights(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend(loss_reduction="sequence_mean")
            assert "cross_entropy" not in backend.capabilities().losses
            training = await backend.create_training_client(seed=0, save_dir="")
            with pytest.raises(ConfigError, match="sequence_mean"):
                await training.forward_backward(DATA, loss_fn="cross_entropy")

    asyncio.run(main())


def test_a_sampler_that_changes_under_the_teacher_is_refused() -> None:
    with pytest.raises(ConfigError, match="inflight"):
        Config(sampler_kind="inflight")


def test_expired_weights_are_named_so(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend()
            training = await backend.create_training_client(seed=0, save_dir="")
            path = await training.save_weights_for_sampler("old")
            client = await backend.create_sampling_client(model_path=path)
            for saved in made.service.muscle.shelf.present():
                made.service.muscle.shelf.expire(saved)
            with pytest.raises(faults.SnapshotExpired, match="expired"):
                await client.sample(PROMPT, params=PARAMS)
            with pytest.raises(faults.SnapshotExpired, match="expired"):
                await backend.create_sampling_client(model_path=path)

    asyncio.run(main())
