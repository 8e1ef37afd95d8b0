"""What goes wrong on the way to Tinker, and what it must never do to an update or a bill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker", reason="the extra tinker is not installed")

from tinker_rig import ADAM, DATA, PARAMS, PROMPT, rig, sdk

from turncredit.backends.hosted import faults
from turncredit.backends.loopback.faults import Fault, Rule
from turncredit.backends.loopback.tinker_desk import Flags
from turncredit.backends.tinker.errors import translated
from turncredit.core.errors import BackendError, ConfigError, TurncreditError

_PASS, _STEP = r"/forward_backward$", r"/optim_step$"
_SAMPLE, _FETCH = r"/asample$", r"/retrieve_future$"


async def _step(backend: Any) -> tuple[list, np.ndarray]:
    """A small update as the loop makes it: samples, and scores afterwards."""
    training = await backend.create_training_client(seed=0, save_dir="")
    client = await training.save_weights_and_get_sampling_client()
    calls = [client.sample(PROMPT, params=PARAMS, num_samples=2) for _ in range(4)]
    sampled = [s.tokens for result in await asyncio.gather(*calls) for s in result.samples]
    await training.forward_backward(DATA, loss_fn="ppo")
    await training.optim_step(ADAM)
    new = await training.save_weights_and_get_sampling_client()
    return sampled, (await new.compute_logprobs(DATA[0].tokens.tolist())).logprobs[1:]


async def _until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        (_SAMPLE, Fault("status", status=503)),
        (_SAMPLE, Fault("status", status=429)),
        (_SAMPLE, Fault("drop")),
        (_SAMPLE, Fault("lose_reply")),
        (_SAMPLE, Fault("duplicate")),
        (_SAMPLE, Fault("delay", seconds=0.1)),
        (_PASS, Fault("status", status=503)),
        (_PASS, Fault("drop")),
        (_PASS, Fault("lose_reply")),
        (_PASS, Fault("duplicate")),
        (_STEP, Fault("status", status=502)),
        (_STEP, Fault("lose_reply")),
        (_STEP, Fault("duplicate")),
        (_FETCH, Fault("status", status=500)),
        (_FETCH, Fault("lose_reply")),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.kind} {value.status}",
)
def test_a_stumble_changes_nothing(path: str, fault: Fault, tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path / "calm") as made:
            wanted = await _step(made.backend())
        with rig(tmp_path / "rough", rules=[Rule(fault=fault, path=path, times=1)]) as made:
            found = await _step(made.backend())
            assert len(made.server.faults.happened) == 1
            (run,) = made.service.muscle.runs()
            assert made.service.muscle.steps(run) == 1
        assert found[0] == wanted[0]
        np.testing.assert_array_equal(found[1], wanted[1])

    asyncio.run(main())


def test_rows_in_parts_are_one_gradient_in_whatever_order_they_arrive(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path / "calm") as made:
            wanted = await _step(made.backend())
        late = Rule(fault=Fault("delay", seconds=0.1), path=_PASS, times=1)
        with rig(tmp_path / "rough", rules=[late], flags=Flags(chunk_rows=1)) as made:
            found = await _step(made.backend())
            assert made.server.faults.seen["/api/v1/forward_backward"] == len(DATA)
        np.testing.assert_allclose(found[1], wanted[1], atol=1e-6)

    asyncio.run(main())


@pytest.mark.parametrize("path", [_PASS, _STEP], ids=["pass", "step"])
def test_an_update_without_an_answer_ends_the_run_and_says_the_way_back(
    path: str, tmp_path: Path
) -> None:
    async def main() -> None:
        slow = Rule(fault=Fault("delay", seconds=5.0), path=path, times=1)
        with rig(tmp_path, rules=[slow]) as made:
            backend = made.backend(deadline=0.5)
            training = await backend.create_training_client(seed=0, save_dir="")
            with pytest.raises(faults.StateUncertain, match="last checkpoint"):
                await training.update(DATA, loss_fn="ppo", params=ADAM)
            for call in (
                training.optim_step(ADAM),
                training.forward_backward(DATA, loss_fn="ppo"),
                training.save_state("late"),
                training.save_weights_and_get_sampling_client(),
            ):
                with pytest.raises(faults.StateUncertain):
                    await call
            assert backend.calls.counts.abandoned == 1
            assert backend.usage().trained == sum(len(row.tokens) for row in DATA)

    asyncio.run(main())


def test_a_pass_refused_with_its_step_under_way_ends_the_run(tmp_path: Path) -> None:
    """The step would move the weights by its old momentum."""

    async def main() -> None:
        with rig(tmp_path) as made:
            training = await made.backend().create_training_client(seed=0, save_dir="")
            await training.update(DATA, loss_fn="ppo", params=ADAM)

            async def refuses(*_: object, **__: object) -> None:
                raise ConfigError("refused")

            made.service.muscle.forward_backward = refuses
            with pytest.raises(TurncreditError, match="refused"):
                await training.update(DATA, loss_fn="ppo", params=ADAM)
            with pytest.raises(faults.StateUncertain, match="last checkpoint"):
                await training.save_state("after")

    asyncio.run(main())


def test_a_snapshot_that_never_comes_ends_by_its_deadline(tmp_path: Path) -> None:
    """Clients of old versions block while they wait for one: the loop must go on."""

    async def main() -> None:
        never = Rule(fault=Fault("delay", seconds=600), path=r"/save_weights_for_sampler$")
        with rig(tmp_path, rules=[never]) as made:
            backend = made.backend(deadline=1.0)
            training = await backend.create_training_client(seed=0, save_dir="")
            with pytest.raises(faults.CallTimeout, match="saving a snapshot"):
                await training.save_weights_and_get_sampling_client()
            await backend.aclose()

    asyncio.run(main())


def test_one_slow_sample_holds_up_no_other_and_its_deadline_is_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Rule(fault=Fault("delay", seconds=5.0), path=_SAMPLE, times=1)
        with rig(tmp_path, rules=[slow]) as made:
            backend = made.backend(deadline=1.0)
            client = await backend.create_sampling_client()
            late = asyncio.ensure_future(client.sample(PROMPT, params=PARAMS))
            await _until(lambda: made.server.faults.happened != [])
            others = [client.sample(PROMPT, params=PARAMS) for _ in range(8)]
            assert len(await asyncio.gather(*others)) == 8
            assert not late.done()
            with pytest.raises(faults.CallTimeout, match="no answer within"):
                await late

    asyncio.run(main())


def test_who_gives_a_sample_up_frees_its_slot_and_it_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Rule(fault=Fault("delay", seconds=0.3), path=_FETCH, times=1)
        with rig(tmp_path, rules=[slow]) as made:
            backend = made.backend(calls_in_flight=1)
            client = await backend.create_sampling_client()
            given_up = asyncio.ensure_future(client.sample(PROMPT, params=PARAMS))
            await _until(lambda: made.server.faults.happened != [])
            given_up.cancel()
            await asyncio.wait([given_up])
            assert (await client.sample(PROMPT, params=PARAMS)).samples
            assert backend.calls.counts.abandoned == 1
            wasted = backend.calls.counts.abandoned_usage
            assert (wasted.prefill, wasted.sampled) == (len(PROMPT), PARAMS.max_tokens)

    asyncio.run(main())


def test_a_wrong_key_is_said_without_showing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with rig(tmp_path, flags=Flags(api_key="tml-right")) as made:
            with pytest.raises(faults.AuthFailed) as caught:
                await made.backend().create_sampling_client()
            assert "tml-wrong" not in str(caught.value)

    monkeypatch.setenv("TINKER_API_KEY", "tml-wrong-0123456789")
    asyncio.run(main())


def test_a_model_that_is_not_served_is_an_invalid_request(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend()
            object.__setattr__(backend.config, "base_model", "chair")
            with pytest.raises(faults.InvalidRequest, match="chair"):
                await backend.create_sampling_client()

    asyncio.run(main())


def test_a_stopped_bill_is_named_after_the_sdk_waited_in_silence(tmp_path: Path) -> None:
    async def main() -> None:
        unpaid = Fault("status", status=402, text="no balance left")
        with rig(tmp_path, rules=[Rule(fault=unpaid, path=_SAMPLE)]) as made:
            client = await made.backend(deadline=0.5).create_sampling_client()
            with pytest.raises(faults.BillingStopped, match="no balance left"):
                await client.sample(PROMPT, params=PARAMS)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "training", "kind"),
    [
        (sdk.RequestFailedError("x", "id", sdk.types.RequestErrorCategory.Server), False, None),
        (
            sdk.RequestFailedError("x", "id", sdk.types.RequestErrorCategory.Server),
            True,
            faults.StateUncertain,
        ),
        (
            sdk.RequestFailedError("x", "id", sdk.types.RequestErrorCategory.User),
            True,
            faults.InvalidRequest,
        ),
        (RuntimeError("this TrainingClient is poisoned"), True, faults.StateUncertain),
        (ValueError("Error: no with status 403 for self.request_id=7"), False, faults.AuthFailed),
        (
            AssertionError("asample promises always carry sample_sequence_ids"),
            False,
            faults.Unreadable,
        ),
    ],
    ids=["server", "server in training", "user", "poisoned", "status in words", "older server"],
)
def test_errors_become_faults(
    error: Exception, training: bool, kind: type[BackendError] | None
) -> None:
    found = translated(error, "asking", training=training)
    assert isinstance(found, kind or BackendError)
    if kind is None:
        assert type(found) is BackendError
    if isinstance(error, AssertionError):
        assert "tinker==0.25" in str(found)
