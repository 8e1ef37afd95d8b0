"""The maths behind the loopback servers, and rows on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.backends import tabular
from turncredit.backends.hosted.normalise import REDUCTIONS, prescaled, prompt_logprobs
from turncredit.backends.hosted.shift import shift, spread, unshift
from turncredit.backends.loopback.muscle import Muscle, Quirks
from turncredit.backends.loopback.shelf import Expired, NotFound
from turncredit.backends.selfcheck import example_prompt
from turncredit.core.calls import AdamParams, SamplingParams
from turncredit.core.datum import Datum
from turncredit.core.errors import AlignmentError, ConfigError

ADAM = AdamParams(learning_rate=0.1, grad_clip_norm=0.0)


def run(awaitable: Awaitable[object]) -> object:
    async def main() -> object:
        return await awaitable

    return asyncio.run(main())


@st.composite
def rows(draw: st.DrawFn) -> Datum:
    size = draw(st.integers(2, 12))
    mask = np.array([False, *draw(st.lists(st.booleans(), min_size=size - 1, max_size=size - 1))])
    mask[draw(st.integers(1, size - 1))] = True
    numbers = st.lists(st.floats(-3, 3), min_size=size, max_size=size)
    return Datum(
        tokens=np.array(draw(st.lists(st.integers(0, 99), min_size=size, max_size=size))),
        logprobs=np.where(mask, draw(numbers), 0.0),
        advantages=np.where(mask, draw(numbers), 0.0),
        mask=mask,
    )


@given(rows())
def test_a_row_survives_the_shift(row: Datum) -> None:
    wire = shift(row)
    assert len(wire.inputs) == len(wire.targets) == len(wire.logprobs) == len(row.tokens) - 1
    back = unshift(wire)
    for name in ("tokens", "logprobs", "advantages", "mask"):
        np.testing.assert_array_equal(getattr(back, name), getattr(row, name))


def test_entry_i_is_about_the_target_not_the_input() -> None:
    row = Datum(
        tokens=np.array([7, 8, 9]),
        logprobs=np.array([0, 0, -0.5]),
        advantages=np.array([0, 0, 2.0]),
        mask=np.array([False, False, True]),
    )
    wire = shift(row)
    assert wire.targets.tolist() == [8, 9]
    assert wire.logprobs.tolist() == [0, -0.5]
    assert wire.advantages.tolist() == [0, 2]
    assert wire.weights.tolist() == [0, 1]
    np.testing.assert_array_equal(spread([-9.0, -0.7], row), [np.nan, np.nan, -0.7])


def test_log_probs_of_another_length_are_refused() -> None:
    row = unshift(shift(_row()))
    with pytest.raises(AlignmentError):
        spread(np.zeros(len(row.tokens)), row)


@pytest.mark.parametrize("found", [[None, -1.0, -2.0], [-1.0, -2.0], [0.0, -1.0, -2.0]])
def test_prompt_log_probs_are_brought_to_one_form(found: list[float | None]) -> None:
    np.testing.assert_array_equal(prompt_logprobs(found, 3), [np.nan, -1.0, -2.0])


@pytest.mark.parametrize("found", [[-1.0], [None] * 4, [None, 0.5, -1.0], [None, -np.inf, -1.0]])
def test_other_prompt_log_probs_are_refused(found: list[float | None]) -> None:
    with pytest.raises(AlignmentError):
        prompt_logprobs(found, 3)


# ── the muscle ───────────────────────────────────────────────────────────────────────────────

_BACKEND = tabular.create(tabular.Config())
_PROMPT = example_prompt(_BACKEND.get_tokenizer())
_ACTION = [*_BACKEND.get_tokenizer().call_ids, *_BACKEND.get_tokenizer().call_ids]


def _row(advantage: float = 1.0, length: int = 3) -> Datum:
    tokens = np.array([*_PROMPT, *_ACTION[:length]])
    mask = np.arange(len(tokens)) >= len(_PROMPT)
    return Datum(
        tokens=tokens,
        logprobs=np.where(mask, -1.0, 0.0),
        advantages=np.where(mask, advantage, 0.0),
        mask=mask,
    )


async def _after_step(folder: Path, quirks: Quirks, data: list[Datum]) -> np.ndarray:
    """Scores after one plain gradient step, whose size is that of the gradient."""
    backend = tabular.create(tabular.Config(table_optimizer="sgd"))
    muscle = Muscle(backend, folder, quirks=quirks)
    await muscle.open_run("r")
    wire = prescaled([shift(row) for row in data], quirks.reduction)
    await muscle.forward_backward("r", wire, loss_fn="importance_sampling")
    await muscle.optim_step("r", ADAM)
    saved = await muscle.save_sampler("r", "now", temporary=True)
    return (await muscle.score(saved, data[0].tokens.tolist())).logprobs[1:]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_prescaled_rows_move_weights_alike_under_every_reduction(
    reduction: str, tmp_path: Path
) -> None:
    data = [_row(1.0, 3), _row(-0.5, 2), _row(0.25, 4)]
    plain = run(_after_step(tmp_path / "a", Quirks(), data))
    other = run(_after_step(tmp_path / "b", Quirks(reduction=reduction), data))  # type: ignore[arg-type]
    np.testing.assert_allclose(other, plain, atol=1e-12)


def test_an_unscaled_mean_moves_weights_less(tmp_path: Path) -> None:
    async def main() -> list[float]:
        moved = []
        for quirks in (Quirks(), Quirks(reduction="token_mean")):
            backend = tabular.create(tabular.Config(table_optimizer="sgd"))
            muscle = Muscle(backend, tmp_path / quirks.reduction, quirks=quirks)
            await muscle.open_run("r")
            await muscle.forward_backward("r", [shift(_row())], loss_fn="importance_sampling")
            moved.append((await muscle.optim_step("r", ADAM))["grad_norm"])
        return moved

    whole, mean = asyncio.run(main())
    assert mean == pytest.approx(whole / (len(_row().tokens) - 1))


def test_saved_weights_outlive_the_server_and_runs_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        muscle = Muscle(_BACKEND, tmp_path)
        await muscle.open_run("r")
        await muscle.forward_backward("r", [shift(_row())], loss_fn="importance_sampling")
        await muscle.optim_step("r", ADAM)
        await muscle.save_state("r", "one")
        await muscle.save_sampler("r", "temp", temporary=True)
        again = Muscle(_BACKEND, tmp_path)
        with pytest.raises(NotFound):
            await again.forward_backward("r", [shift(_row())], loss_fn="ppo")
        with pytest.raises(NotFound):
            again.shelf.find("r", "sampler_weights", "temp")
        state = again.shelf.find("r", "training_state", "one")
        await again.open_run("s", source=state, optimizer=True)
        tokens = _row().tokens.tolist()
        now = await muscle.save_sampler("r", "now", temporary=True)
        then = await again.save_sampler("s", "now", temporary=True)
        np.testing.assert_array_equal(
            (await muscle.score(now, tokens)).logprobs, (await again.score(then, tokens)).logprobs
        )
        np.testing.assert_array_equal(
            (await again.score(state, tokens)).logprobs, (await again.score(then, tokens)).logprobs
        )

    asyncio.run(main())


def test_time_ends_weights_and_names_are_taken_once(tmp_path: Path) -> None:
    async def main() -> None:
        now = [0.0]
        muscle = Muscle(_BACKEND, tmp_path, clock=lambda: now[0])
        await muscle.open_run("r")
        saved = await muscle.save_sampler("r", "one", ttl=10)
        with pytest.raises(ConfigError):
            await muscle.save_sampler("r", "one")
        await muscle.save_state("r", "one")  # another kind, another name space
        now[0] = 11.0
        with pytest.raises(Expired):
            await muscle.sampler(saved)
        with pytest.raises(Expired):
            muscle.shelf.find("r", "sampler_weights", "one")

    asyncio.run(main())


def test_reading_leaves_no_gradient_and_gives_every_target(tmp_path: Path) -> None:
    async def main() -> None:
        muscle = Muscle(_BACKEND, tmp_path)
        await muscle.open_run("r")
        wire = shift(_row())
        out = await muscle.forward_backward("r", [wire], loss_fn="ppo", backward=False)
        assert np.isfinite(out.logprobs[0]).all()
        assert len(out.logprobs[0]) == len(wire.targets)
        assert (await muscle.optim_step("r", ADAM))["grad_norm"] == 0

    asyncio.run(main())


def test_quirks_do_what_they_say(tmp_path: Path) -> None:
    async def main() -> None:
        muscle = Muscle(_BACKEND, tmp_path, quirks=Quirks(tempered=True, live_samplers=True))
        await muscle.open_run("r")
        old = await muscle.save_sampler("r", "old", temporary=True)
        params = SamplingParams(max_tokens=4, temperature=0.5)
        (warm,) = (await muscle.sample(old, _PROMPT, params=params)).samples
        score = (await muscle.score(old, [*_PROMPT, *warm.tokens])).logprobs[len(_PROMPT) :]
        assert np.abs(score - warm.logprobs).max() > 0.05
        tokens = _row().tokens.tolist()
        before = (await muscle.score(old, tokens)).logprobs[1:]
        await muscle.forward_backward("r", [shift(_row())], loss_fn="importance_sampling")
        await muscle.optim_step("r", ADAM)
        assert np.abs((await muscle.score(old, tokens)).logprobs[1:] - before).max() > 0.01

    asyncio.run(main())


def test_a_shifted_row_with_other_targets_is_refused() -> None:
    wire = shift(_row())
    with pytest.raises(AlignmentError):
        replace(wire, targets=wire.inputs)
