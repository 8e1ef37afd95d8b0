"""What a service may answer otherwise than asked: put right where it can be, else refused in words.

With the genuine clients, which pass most of it on as it comes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_rig import SERVICES, Rehearsed, ServiceName, cost, rehearsed

from turncredit.backends import tabular
from turncredit.backends.hosted.faults import StateUncertain
from turncredit.backends.selfcheck import example_prompt
from turncredit.core.calls import AdamParams, Sample, SamplingParams
from turncredit.core.datum import Datum
from turncredit.core.errors import ConfigError, TurncreditError

TOKENIZER = tabular.create(tabular.Config()).get_tokenizer()
PROMPT = example_prompt(TOKENIZER)
END, CALL = TOKENIZER.end_id, TOKENIZER.call_ids[0]
PARAMS = SamplingParams(max_tokens=4, seed=3, stop_ids=(END,))
GOOD = Sample(tokens=(CALL, END), logprobs=(-0.3, -0.1), stop_reason="stop")


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> ServiceName:
    return request.param


def _backend(made: Rehearsed) -> Any:
    import importlib

    adapter: Any = importlib.import_module(f"turncredit.backends.{made.name}")
    backend = adapter.create(adapter.Config(base_model="table", base_url=made.server.url))
    backend._tokenizer = TOKENIZER
    return backend


@contextmanager
def _answering(service: ServiceName, folder: Path, *samples: Sample) -> Iterator[Rehearsed]:
    """A service that samples this, whatever it is asked."""
    with rehearsed(service, folder) as made:
        sample = made.muscle.sample

        async def answered(*args: Any, **given: Any) -> Any:
            return replace(await sample(*args, **given), samples=samples)

        made.muscle.sample = answered  # type: ignore[method-assign]
        yield made


async def _sampled(made: Rehearsed, count: int = 1) -> tuple[Sample, ...]:
    backend = _backend(made)
    try:
        client = await backend.create_sampling_client()
        return (await client.sample(PROMPT, params=PARAMS, num_samples=count)).samples
    finally:
        await backend.aclose()
        # Whatever it is worth, it was billed. (Odd log-probs are tokens of the service, too.)
        assert cost(backend.usage()) >= made.billed > 0


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (replace(GOOD, tokens=(CALL,) * 5, logprobs=(-0.3,) * 5), "5 tokens where 4 are allowed"),
        (replace(GOOD, tokens=(CALL, END, CALL), logprobs=(-0.3,) * 3), "after a stop token"),
        (replace(GOOD, tokens=(END, END), logprobs=(-0.3,) * 2), "after a stop token"),
        (replace(GOOD, logprobs=(-0.3,)), "log-prob"),
        (replace(GOOD, logprobs=(-0.3,) * 3), "log-prob"),
        (replace(GOOD, logprobs=()), "log-prob"),
        (replace(GOOD, logprobs=(-0.3, math.nan)), "log-probs of a sample"),
        (replace(GOOD, logprobs=(-0.3, 0.5)), "log-probs of a sample"),
        (replace(GOOD, logprobs=(-math.inf, -0.1)), "log-probs of a sample"),
        (replace(GOOD, tokens=(len(TOKENIZER), END)), "ids of a sample"),
        (replace(GOOD, tokens=(-1, END)), "ids of a sample"),
    ],
    ids=[
        *["too long", "runs on", "stops twice", "one log-prob too few", "one too many", "none"],
        *["nan", "above 0", "-inf", "id too large", "id below 0"],
    ],
)
def test_samples_nobody_asked_for_are_refused(
    service: ServiceName, odd: Sample, words: str, tmp_path: Path
) -> None:
    with _answering(service, tmp_path, odd) as made, pytest.raises(TurncreditError, match=words):
        asyncio.run(_sampled(made))


@pytest.mark.parametrize("number", [1, 3], ids=["fewer", "more"])
def test_another_number_of_samples_is_refused(
    service: ServiceName, number: int, tmp_path: Path
) -> None:
    with (
        _answering(service, tmp_path, *[GOOD] * number) as made,
        pytest.raises(TurncreditError, match=r"samples|sequences"),
    ):
        asyncio.run(_sampled(made, count=2))


@pytest.mark.parametrize(
    ("tokens", "said", "meant"),
    [
        ((CALL, END), "length", "stop"),  # its own last token says otherwise
        ((CALL, CALL, CALL, END), "length", "stop"),  # room and end at once
        ((CALL, CALL, CALL, CALL), "stop", "length"),  # all its room, and no end
        ((CALL, CALL), "length", "length"),  # shorter than allowed: the service has less room
        ((CALL, CALL), "stop", "stop"),  # an end of the model's own
    ],
    ids=["ended", "ended in time", "cut", "cut early", "own end"],
)
def test_how_a_sample_ended_is_what_its_tokens_say(
    service: ServiceName, tokens: tuple[int, ...], said: Any, meant: str, tmp_path: Path
) -> None:
    odd = Sample(tokens=tokens, logprobs=(-0.5,) * len(tokens), stop_reason=said)
    with _answering(service, tmp_path, odd) as made:
        (found,) = asyncio.run(_sampled(made))
    assert (found.tokens, found.stop_reason) == (tokens, meant)


def test_tokens_that_cannot_have_been_counted_so_are_paid_in_full(
    service: ServiceName, tmp_path: Path
) -> None:
    """More found in a cache than was sent, or fewer sent than none: no limit was kept on them."""
    with rehearsed(service, tmp_path) as made:
        if made.name == "pytrio":
            actor = made._service.actor
            answer = actor._answer

            async def counted(*args: Any) -> Any:
                out = await answer(*args)
                return {**out, "usage": {**out["usage"], "input_tokens": -1_000_000}}

            actor._answer = counted
        else:
            sample = made.muscle.sample

            async def cached(*args: Any, **given: Any) -> Any:
                found = await sample(*args, **given)
                return replace(found, usage=replace(found.usage, cached=1_000_000))

            made.muscle.sample = cached  # type: ignore[method-assign]

        async def main() -> None:
            backend = _backend(made)
            client = await backend.create_sampling_client()
            await client.sample(PROMPT, params=PARAMS, num_samples=2)
            used = backend.usage()
            assert used.prefill >= len(PROMPT)
            assert used.prefill + (used.cached or 0) == 2 * len(PROMPT)
            await backend.aclose()

        asyncio.run(main())


# ── training ─────────────────────────────────────────────────────────────────────────────────


def _row() -> Datum:
    tokens = np.array([*PROMPT, CALL, END])
    mask = np.arange(len(tokens)) >= len(PROMPT)
    old, weight = np.where(mask, -0.4, 0.0), np.where(mask, 1.0, 0.0)
    return Datum(tokens=tokens, logprobs=old, advantages=weight, mask=mask)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found[:-1],
        lambda found: (*found, found[-1]),
        lambda found: (*found[:-1], found[-1][:-1]),
        lambda found: (*found[:-1], np.full_like(found[-1], np.nan)),
    ],
    ids=["a row too few", "a row too many", "a token too few", "nan"],
)
def test_an_update_that_is_answered_oddly_is_refused_and_counted(
    service: ServiceName, spoil: Callable[[Any], Any], tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:
        plain = made.muscle.forward_backward

        async def odd(*args: Any, **given: Any) -> Any:
            out = await plain(*args, **given)
            return replace(out, logprobs=tuple(spoil(out.logprobs)))

        made.muscle.forward_backward = odd  # type: ignore[method-assign]

        async def main() -> None:
            backend = _backend(made)
            try:
                training = await backend.create_training_client(seed=0, save_dir="")
                given = {"loss_fn": "ppo", "params": AdamParams(learning_rate=0.1)}
                with pytest.raises(TurncreditError, match=r"row|log-prob|sample count"):
                    await training.update([_row(), _row()], **given)
                assert backend.usage().trained >= made.used.trained
            finally:
                await backend.aclose()

        asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: {"tokens": row.tokens + len(TOKENIZER)}, "another tokenizer"),
        (lambda row: {"distill": row.advantages, "teacher": row.logprobs}, "fold them"),
    ],
    ids=["foreign ids", "weights that no term reads"],
)
def test_rows_are_refused_as_local_refuses_them(
    service: ServiceName, change: Callable[[Datum], Any], words: str, tmp_path: Path
) -> None:
    with rehearsed(service, tmp_path) as made:

        async def main() -> None:
            backend = _backend(made)
            training = await backend.create_training_client(seed=0, save_dir="")
            odd = replace(_row(), **change(_row()))
            with pytest.raises(ConfigError, match=words):
                await training.forward_backward([odd], loss_fn="ppo")
            given = {"loss_fn": "ppo", "params": AdamParams(learning_rate=0.1)}
            with pytest.raises(ConfigError, match=words):
                await training.update([odd], **given)
            assert made.used.trained == 0
            await backend.aclose()

        asyncio.run(main())


@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
def test_after_an_answer_that_the_sdk_refuses_the_run_is_not_used(
    together: bool, tmp_path: Path
) -> None:
    """The update was made, so it must not pass for one that was refused."""
    with rehearsed("pytrio", tmp_path) as made:
        plain = made.muscle.forward_backward

        async def odd(*args: Any, **given: Any) -> Any:
            out = await plain(*args, **given)
            return replace(out, logprobs=out.logprobs[:-1])

        async def main() -> None:
            backend = _backend(made)
            training = await backend.create_training_client(seed=0, save_dir="")
            made.muscle.forward_backward = odd  # type: ignore[method-assign]
            given: dict[str, Any] = {"loss_fn": "ppo"}
            if together:
                given["params"] = AdamParams(learning_rate=0.1)
            call = training.update if together else training.forward_backward
            with pytest.raises(StateUncertain, match="cannot be read"):
                await call([_row(), _row()], **given)
            assert backend.usage().trained >= made.used.trained
            with pytest.raises(StateUncertain):
                await training.save_state("after")
            await backend.aclose()

        asyncio.run(main())
