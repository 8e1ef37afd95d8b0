"""What goes wrong on the way to PyTRIO, and what it must never do to an update or a bill."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pytrio", reason="the extra pytrio is not installed")

from pytrio_rig import ADAM, PROMPT, Rig, rig, row

from turncredit.backends.hosted import faults
from turncredit.backends.loopback.faults import Fault, Rule
from turncredit.core.calls import SamplingParams
from turncredit.core.errors import BackendError, ConfigError, TurncreditError

PARAMS = SamplingParams(max_tokens=6, seed=3, stop_ids=(1,))
_EVENTS, _SAMPLES = r"/v1/events$", r"/sample$"
_POLLS = r"/v1/events/"


async def _step(backend) -> tuple[list, np.ndarray]:
    """A small update as the loop makes it: samples, and scores afterwards."""
    training = await backend.create_training_client(seed=0, save_dir="")
    client = await training.save_weights_and_get_sampling_client()
    calls = [client.sample(PROMPT, params=PARAMS, num_samples=2) for _ in range(8)]
    sampled = [s.tokens for result in await asyncio.gather(*calls) for s in result.samples]
    await training.forward_backward([row(1.0), row(-1.0, (1,))], loss_fn="ppo")
    await training.optim_step(ADAM)
    new = await training.save_weights_and_get_sampling_client()
    return sampled, (await new.compute_logprobs(row().tokens.tolist())).logprobs[1:]


async def _until(true) -> None:
    for _ in range(3000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


def _once(made: Rig) -> None:
    """Every update was applied once."""
    kinds = [kind for _, kind in made.service.actor.applied]
    assert kinds.count("trainer.forward_backward") == 1
    assert kinds.count("trainer.optimize_step") == 1


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        (_SAMPLES, Fault("status", status=503)),
        (_SAMPLES, Fault("status", status=429, code="too_many_requests")),
        (_SAMPLES, Fault("drop")),
        (_SAMPLES, Fault("lose_reply")),
        (_SAMPLES, Fault("duplicate")),
        (_SAMPLES, Fault("delay", seconds=0.03)),
        (_EVENTS, Fault("status", status=500)),
        (_EVENTS, Fault("drop")),
        (_EVENTS, Fault("lose_reply")),
        (_EVENTS, Fault("duplicate")),
        (_POLLS, Fault("status", status=504)),
        (_POLLS, Fault("drop")),
        (_POLLS, Fault("lose_reply")),
        (r"/api/", Fault("status", status=502)),
        (r"/(training|sampling)-runs$", Fault("status", status=503)),
    ],
    ids=lambda value: (
        value.strip("$/") if isinstance(value, str) else f"{value.kind}{value.status}"
    ),
)
def test_a_passing_fault_changes_nothing(path: str, fault: Fault, tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path / "calm") as made:
            backend = made.backend()
            wanted = await _step(backend)
            billed = made.service.actor.billed
            await backend.aclose()
        rules = [Rule(path=path, fault=fault, rate=0.5)]
        with rig(tmp_path / "rough", rules=rules) as made:
            backend = made.backend()
            found = await _step(backend)
            assert made.server.faults.happened
            _once(made)
            assert found[0] == wanted[0]
            np.testing.assert_array_equal(found[1], wanted[1])
            assert made.service.actor.billed.trained == billed.trained
            assert made.service.actor.billed.sampled == billed.sampled
            await backend.aclose()

    asyncio.run(main())


def test_an_outage_is_counted_once_for_what_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that is gone: calls made later, and repetitions, never reach anybody."""

    async def main() -> None:
        with rig(tmp_path, patience=0.05) as made:
            backend = made.backend()
            client = await backend.create_sampling_client()
            calls = backend._shared.calls
            monkeypatch.setattr(calls, "patience", 0.2)
            before = backend.usage()
            made.server.stop()
            for _ in range(3):
                with pytest.raises(faults.Unreached):
                    await client.sample(PROMPT, params=PARAMS)
            used = backend.usage().since(before)
            assert (used.prefill, used.sampled) == (len(PROMPT), PARAMS.max_tokens)
            assert backend.abandoned()[0] == 1
            await backend.aclose()

    asyncio.run(main())


def test_an_update_without_an_answer_ends_the_run_and_is_not_repeated(tmp_path: Path) -> None:
    """The reply is lost for good: it may have been applied, so nothing more may follow."""

    async def main() -> None:
        with rig(tmp_path, patience=0.05) as made:
            backend = made.backend()
            training = await backend.create_training_client(seed=0, save_dir="")
            await training.forward_backward([row()], loss_fn="ppo")
            made.server.faults.rules.append(Rule(path=_POLLS, fault=Fault("drop")))
            with pytest.raises(faults.StateUncertain, match="last checkpoint") as caught:
                await training.optim_step(ADAM)
            assert not caught.value.retryable
            made.server.faults.rules.clear()
            _once(made)
            for call in (
                training.optim_step(ADAM),
                training.forward_backward([row()], loss_fn="ppo"),
                training.save_state("x"),
                training.save_weights_and_get_sampling_client(),
            ):
                with pytest.raises(faults.StateUncertain):
                    await call
            _once(made)
            await backend.aclose()

    asyncio.run(main())


def test_a_part_of_a_batch_that_fails_breaks_the_run_and_a_state_is_the_way_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        with rig(tmp_path, max_batch_size=1) as made:
            backend = made.backend()
            training = await backend.create_training_client(seed=0, save_dir="")
            await training.forward_backward([row(), row(-1.0, (1,))], loss_fn="ppo")
            await training.optim_step(ADAM)
            state = await training.save_state("safe")
            muscle, plain, parts = made.service.muscle, made.service.muscle.forward_backward, []

            async def second_fails(*args, **named):
                parts.append(1)
                if len(parts) == 2:
                    raise BackendError("out of memory")
                return await plain(*args, **named)

            muscle.forward_backward = second_fails  # type: ignore[method-assign]
            with pytest.raises(faults.StateUncertain):
                await training.forward_backward([row(), row(-1.0, (1,))], loss_fn="ppo")
            with pytest.raises(faults.StateUncertain):
                await training.optim_step(ADAM)
            again = await backend.create_training_client(seed=0, save_dir="", from_state=state)
            await again.forward_backward([row(), row(-1.0, (1,))], loss_fn="ppo")
            assert (await again.optim_step(ADAM))["grad_norm"] > 0
            await backend.aclose()

    asyncio.run(main())


def test_a_refused_batch_leaves_the_run_usable(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend()
            training = await backend.create_training_client(seed=0, save_dir="")
            muscle = made.service.muscle
            works = muscle.forward_backward

            async def refuses(*_: object, **__: object) -> None:
                raise ConfigError("refused")

            muscle.forward_backward = refuses
            with pytest.raises(faults.InvalidRequest):
                await training.forward_backward([row()], loss_fn="ppo")
            muscle.forward_backward = works
            await training.forward_backward([row()], loss_fn="ppo")
            assert (await training.optim_step(ADAM))["grad_norm"] > 0
            await backend.aclose()

    asyncio.run(main())


def test_a_pass_refused_with_its_step_under_way_ends_the_run(tmp_path: Path) -> None:
    """The step would move the weights by its old momentum."""

    async def main() -> None:
        with rig(tmp_path) as made:
            training = await made.backend().create_training_client(seed=0, save_dir="")
            await training.update([row()], loss_fn="ppo", params=ADAM)

            async def refuses(*_: object, **__: object) -> None:
                raise ConfigError("refused")

            made.service.muscle.forward_backward = refuses
            with pytest.raises(TurncreditError):
                await training.update([row()], loss_fn="ppo", params=ADAM)
            applied = made.service.actor.applied
            steps = ["trainer.optimize_step"] * 2
            await _until(lambda: [kind for _, kind in applied if kind == steps[0]] == steps)
            with pytest.raises(faults.StateUncertain, match="last checkpoint"):
                await training.save_state("after")

    asyncio.run(main())


def test_cancelling_frees_slots_and_counts_what_may_be_billed(tmp_path: Path) -> None:
    async def main() -> None:
        slow = [Rule(path=_SAMPLES, fault=Fault("delay", seconds=60), times=4)]
        with rig(tmp_path, rules=slow) as made:
            backend = made.backend(calls_in_flight=4)
            client = await backend.create_sampling_client()
            held = [asyncio.ensure_future(client.sample(PROMPT, params=PARAMS)) for _ in range(4)]
            await _until(lambda: len(made.server.faults.happened) == 4)
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            await asyncio.wait_for(client.sample(PROMPT, params=PARAMS), 30)
            assert backend.counts().abandoned == 4
            lost = backend.counts().abandoned_usage
            assert (lost.prefill, lost.sampled) == (4 * len(PROMPT), 4 * PARAMS.max_tokens)
            assert backend.usage().prefill == 5 * len(PROMPT)
            await backend.aclose()

    asyncio.run(main())


def test_cancelling_an_update_ends_the_run(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend()
            training = await backend.create_training_client(seed=0, save_dir="")
            await training.forward_backward([row()], loss_fn="ppo")
            made.server.faults.rules.append(Rule(path=_POLLS, fault=Fault("delay", seconds=60)))
            task = asyncio.ensure_future(training.optim_step(ADAM))
            await _until(lambda: made.server.faults.happened)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with pytest.raises(faults.StateUncertain, match="cancelled"):
                await training.save_state("x")
            await backend.aclose()

    asyncio.run(main())


def test_a_deadline_ends_a_call_that_never_answers(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path, rules=[Rule(path=_SAMPLES, fault=Fault("delay", seconds=60))]) as made:
            backend = made.backend(deadline=30.0)
            client = await backend.create_sampling_client()
            backend._shared.calls._deadline = 0.2
            with pytest.raises(faults.CallTimeout, match="--deadline"):
                await client.sample(PROMPT, params=PARAMS)
            await backend.aclose()

    asyncio.run(main())


def test_an_account_without_balance_is_said_in_words(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            made.service.control.balance = False
            backend = made.backend()
            with pytest.raises(faults.BillingStopped, match="Top up"):
                await backend.create_training_client(seed=0, save_dir="")
            await backend.aclose()

    asyncio.run(main())


def test_a_wrong_key_is_said_without_showing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTRIO_API_KEY", "sk-wrong-and-secret")

    async def main() -> None:
        with rig(tmp_path) as made:
            made.service.control.keys = frozenset({"sk-right"})
            backend = made.backend()
            with pytest.raises(faults.AuthFailed, match="PYTRIO_API_KEY") as caught:
                await backend.create_sampling_client()
            assert "secret" not in str(caught.value)
            monkeypatch.setenv("PYTRIO_API_KEY", "sk-right")
            await backend.create_sampling_client()
            await backend.aclose()

    asyncio.run(main())


def test_expired_weights_are_said_with_the_cure(tmp_path: Path) -> None:
    async def main() -> None:
        with rig(tmp_path) as made:
            backend = made.backend()
            training = await backend.create_training_client(seed=0, save_dir="")
            client = await training.save_weights_and_get_sampling_client()
            (saved,) = made.service.muscle.shelf.present()
            made.service.muscle.shelf.expire(saved)
            with pytest.raises(faults.SnapshotExpired, match="--snapshots named"):
                await client.compute_logprobs(PROMPT)
            await backend.aclose()

    asyncio.run(main())


def test_a_service_that_stays_full_is_given_up_on_in_words(tmp_path: Path) -> None:
    async def main() -> None:
        full = Fault("status", status=429, code="actor_capacity_exceeded", text="full")
        rules = [Rule(path=r"/training-runs$", fault=full)]
        with rig(tmp_path, rules=rules, patience=0.05) as made:
            backend = made.backend()
            with pytest.raises(TurncreditError, match="full") as caught:
                await backend.create_training_client(seed=0, save_dir="")
            assert isinstance(caught.value, faults.CapacityWait)
            await backend.aclose()

    asyncio.run(main())
