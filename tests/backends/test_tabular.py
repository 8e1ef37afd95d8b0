"""The exact table: same numbers everywhere, exact gradients, exact resume, frozen snapshots."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.backends import tabular
from turncredit.core.calls import AdamParams, SamplingParams
from turncredit.core.datum import Datum
from turncredit.core.errors import BackendError, ConfigError, DataError
from turncredit.core.types import Group
from turncredit.credit import agentopsd, grpo
from turncredit.envs import toy
from turncredit.hints import toy as toy_hint
from turncredit.loop import reading, teacher
from turncredit.loop.chat import Chat
from turncredit.loop.data import build_rows, reduced
from turncredit.loop.loss import PPOConfig, ppo
from turncredit.loop.rollout import Limits, rollout

ENV = toy.create(toy.Config())
LIMITS = Limits(max_turns=10, max_trajectory_tokens=4096, max_action_tokens=8)
SPEED = AdamParams(learning_rate=0.1)


def opened(**config):
    backend = tabular.create(tabular.Config(**config))
    return backend, Chat(backend.get_tokenizer(), ENV, max_turns=10)


async def sampled(backend, chat, client, *, tasks=2, seed=0, step=1, group_size=4):
    return await rollout(
        ENV.tasks("train")[:tasks], ENV, chat, client, LIMITS, group_size=group_size,
        run_seed=seed, step=step,
    )  # fmt: skip


async def update(training, backend, chat, *, step, method=grpo, speed=SPEED):
    """One whole training step. Returns its metrics."""
    client = await training.save_weights_and_get_sampling_client()
    groups = await sampled(backend, chat, client, step=step)
    if method.NEEDS_TEACHER:
        hint = toy_hint.create(toy_hint.Config())
        readings = reading.read(groups, hint, chat, max_tokens=9999)
        groups = await teacher.score(groups, readings, client, concurrency=8)
    rows = build_rows(groups, [method.credit(group, method.Config()) for group in groups])
    out = await training.forward_backward(reduced(rows.data), loss_fn="ppo")
    return {**out.metrics, **await training.optim_step(speed)}


async def fresh(backend, folder, from_state=None):
    return await backend.create_training_client(seed=0, save_dir=str(folder), from_state=from_state)


# ── tokenizer ────────────────────────────────────────────────────────────────────────────────


@given(st.text())
@settings(max_examples=50, deadline=None)
def test_any_text_survives_and_cannot_hold_a_special_token(text):
    tokenizer = opened()[0].get_tokenizer()
    for source in (text, f"{text}<|im_end|>\n<|im_start|>assistant\n"):
        ids = tokenizer.encode(source, parse_special=False)
        assert tokenizer.decode(ids) == source
        assert not {tokenizer.start_id, tokenizer.end_id} & set(ids)


def test_an_action_is_one_token_and_the_end_of_turn():
    _, chat = opened()
    for action in ("left", "right"):
        ids = chat.action_ids(action)
        assert len(ids) == 2
        assert chat.parse(ids).action == action


def test_ids_of_another_tokenizer_are_refused():
    with pytest.raises(DataError, match="another tokenizer"):
        opened()[0].get_tokenizer().decode([10_000])


# ── sampling and scoring ─────────────────────────────────────────────────────────────────────


def test_sampled_rescored_and_trained_log_probs_are_the_same_bits(tmp_path):
    async def main():
        backend, chat = opened()
        training = await fresh(backend, tmp_path)
        await update(training, backend, chat, step=0)
        client = await training.save_weights_and_get_sampling_client()
        for group in await sampled(backend, chat, client):
            for trajectory in group.trajectories:
                scored = await client.compute_logprobs(trajectory.tokens)
                assert len(scored.logprobs) == len(trajectory.tokens)
                assert np.isnan(scored.logprobs[0])
                assert np.isfinite(scored.logprobs[1:]).all()
                assert scored.snapshot_id == client.snapshot_id == trajectory.snapshot_id
                tail = await client.compute_logprobs(trajectory.tokens, last_n=5)
                assert np.array_equal(tail.logprobs[-5:], scored.logprobs[-5:])
                row = row_of(trajectory)
                out = await training.forward_backward([row], loss_fn="ppo")
                for turn in trajectory.turns:
                    for values in (scored.logprobs, out.logprobs[0]):
                        assert np.array_equal(values[turn.start : turn.stop], turn.logprob_N)
                assert out.metrics["approx_kl"] == out.metrics["clip_fraction"] == 0

    asyncio.run(main())


def row_of(trajectory, weight=1.0):
    values_K = tuple(np.full(len(t.logprob_N), weight) for t in trajectory.turns)
    (row,) = build_rows([Group(trajectory.task, (trajectory,))], [grpo.Credit((values_K,))]).data
    return row


def test_a_hint_moves_the_named_action_at_the_named_door_only(tmp_path):
    async def main():
        backend, chat = opened(hint_bonus=2.0)
        client = await backend.create_sampling_client()
        groups = await sampled(backend, chat, client)
        hint = toy_hint.create(toy_hint.Config())
        readings = reading.read(groups, hint, chat, max_tokens=9999)
        scored = await teacher.score(groups, readings, client, concurrency=4)
        for group in scored:
            door, answer = group.task.payload["key_door"], group.task.payload["answer"]
            for trajectory in group.trajectories:
                for k, (turn, gap) in enumerate(
                    zip(trajectory.turns, trajectory.gap_K, strict=True), start=1
                ):
                    if k == door:
                        assert (gap[0] > 0.1) == (turn.action == answer)
                        assert (gap[0] < -0.1) == (turn.action != answer)
                    else:
                        assert not gap.any()

    asyncio.run(main())


def test_samples_depend_on_their_seed_alone():
    async def main():
        backend, chat = opened()
        task = ENV.tasks("train")[0]
        prompt = chat.prompt(task, await ENV.episode(task).start())
        client = await backend.create_sampling_client()

        async def tokens(seed, n=1):
            result = await client.sample(
                prompt, params=SamplingParams(max_tokens=8, seed=seed), num_samples=n
            )
            return [sample.tokens for sample in result.samples]

        alone = [(await tokens(seed))[0] for seed in range(20)]
        together = await asyncio.gather(*(tokens(seed) for seed in reversed(range(20))))
        assert [t[0] for t in reversed(together)] == alone == await tokens(0, n=20)
        assert len(set(alone)) == 2

    asyncio.run(main())


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (0.01, 1.0), (1.0, 0.5)])
def test_cold_and_narrow_sampling_take_the_likeliest(temperature, top_p):
    async def main():
        backend, chat = opened(habit=1.0)
        task = ENV.tasks("train")[0]
        prompt = chat.prompt(task, await ENV.episode(task).start())
        client = await backend.create_sampling_client()
        params = SamplingParams(max_tokens=8, temperature=temperature, top_p=top_p)
        result = await client.sample(prompt, params=params, num_samples=10)
        assert {chat.parse(s.tokens).action for s in result.samples} == {"left"}
        assert result.samples[0].logprobs[0] == pytest.approx(-np.log1p(np.exp(-1)))
        cut = await client.sample(prompt, params=replace(params, max_tokens=1))
        assert cut.samples[0].stop_reason == "length"

    asyncio.run(main())


# ── training ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("loss_fn", ["ppo", "importance_sampling", "cross_entropy"])
def test_gradients_by_finite_differences_and_by_the_reference(tmp_path, loss_fn):
    async def main():
        backend, chat = opened()
        training = await fresh(backend, tmp_path)
        for step in range(2):
            await update(training, backend, chat, step=step)
        client = await training.save_weights_and_get_sampling_client()
        groups = await sampled(backend, chat, client)
        rows = [
            row_of(t, w)
            for w, t in zip((1.0, -0.5, 2.0, -1.0), groups[0].trajectories, strict=True)
        ]
        rng = np.random.default_rng(0)  # old log-probs elsewhere, so that some ratios clip
        rows = [
            replace(r, logprobs=r.logprobs + rng.normal(0, 0.3, len(r.tokens)) * r.mask)
            for r in rows
        ]
        await training.forward_backward(rows, loss_fn=loss_fn)
        await training.optim_step(SPEED)  # every row now exists
        out = await training.forward_backward(rows, loss_fn=loss_fn)
        state = training._state
        gradient = {state.rows[key]: values.copy() for key, values in state.gradient.items()}
        state.gradient.clear()
        if loss_fn == "ppo":
            reference = sum(
                ppo(new[None], r.logprobs[None], r.advantages[None], r.mask[None],
                    PPOConfig(aggregation="seq-mean-token-sum")).loss
                for new, r in zip(out.logprobs, rows, strict=True)
            )  # fmt: skip
            assert out.metrics["loss"] == pytest.approx(reference)
        busiest = sorted(gradient, key=lambda row: -np.abs(gradient[row]).max())[:3]
        for row in busiest:
            column = int(np.argmax(np.abs(gradient[row])))
            losses = []
            for shift in (1e-5, -2e-5):
                state.theta[row, column] += shift
                moved = await training.forward_backward(rows, loss_fn=loss_fn)
                losses.append(moved.metrics["loss"])
                state.gradient.clear()
            state.theta[row, column] += 1e-5
            slope = (losses[0] - losses[1]) / 2e-5
            assert gradient[row][column] == pytest.approx(slope, rel=1e-4, abs=1e-8)

    asyncio.run(main())


def test_context_tokens_never_train(tmp_path):
    async def main():
        backend, chat = opened()
        training = await fresh(backend, tmp_path)
        client = await training.save_weights_and_get_sampling_client()
        trajectory = (await sampled(backend, chat, client))[0].trajectories[0]
        row = row_of(trajectory)
        junk = replace(
            row,
            logprobs=np.where(row.mask, row.logprobs, -77.0),
            advantages=np.where(row.mask, row.advantages, 5.0),
        )
        results = []
        for data in (row, junk):
            out = await training.forward_backward([data], loss_fn="ppo")
            results.append((out.metrics["loss"], training._state.gradient))
            training._state.gradient = {}
        (loss, gradient), (other_loss, other) = results
        assert loss == other_loss
        assert all(np.array_equal(gradient[row], other[row]) for row in gradient)

    asyncio.run(main())


def test_learning_raises_what_was_rewarded_and_steps_do_not_depend_on_turns(tmp_path):
    async def main():
        backend, chat = opened()
        training = await fresh(backend, tmp_path)
        client = await training.save_weights_and_get_sampling_client()
        row = row_of((await sampled(backend, chat, client))[0].trajectories[0])
        before = (await training.forward_backward([row], loss_fn="ppo")).logprobs[0][row.mask]
        await training.optim_step(SPEED)
        assert training._state.steps == 1
        after = (await training.forward_backward([row], loss_fn="ppo")).logprobs[0][row.mask]
        assert after.sum() > before.sum()

    asyncio.run(main())


def test_gradients_accumulate_and_are_cleared(tmp_path):
    async def main():
        backend, chat = opened(table_optimizer="sgd")
        client = await backend.create_sampling_client()
        group = (await sampled(backend, chat, client))[0]
        rows = [row_of(t) for t in group.trajectories]
        tables = []
        for parts in ([rows], [rows[:1], rows[1:]]):
            training = await fresh(backend, tmp_path)
            for part in parts:
                await training.forward_backward(part, loss_fn="ppo")
            await training.optim_step(AdamParams(learning_rate=0.1))
            assert not training._state.gradient
            tables.append(training._state.theta)
        assert tables[0] == pytest.approx(tables[1], abs=1e-15)

    asyncio.run(main())


def test_snapshots_are_immutable(tmp_path):
    async def main():
        backend, chat = opened()
        training = await fresh(backend, tmp_path)
        old = await training.save_weights_and_get_sampling_client()
        trajectory = (await sampled(backend, chat, old))[0].trajectories[0]
        before = await old.compute_logprobs(trajectory.tokens)
        for step in range(3):
            await update(training, backend, chat, step=step)
        new = await training.save_weights_and_get_sampling_client()
        moved = await new.compute_logprobs(trajectory.tokens)
        after = await old.compute_logprobs(trajectory.tokens)
        assert np.array_equal(before.logprobs, after.logprobs, equal_nan=True)
        assert not np.array_equal(before.logprobs, moved.logprobs, equal_nan=True)
        assert old.snapshot_id != new.snapshot_id
        await old.close()
        await old.close()
        with pytest.raises(BackendError, match="closed"):
            await old.compute_logprobs(trajectory.tokens)

    asyncio.run(main())


# ── files ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("save_at", [1, 2, 3])
def test_resuming_equals_never_stopping(tmp_path, save_at, optimizer):
    async def main():
        backend, chat = opened(table_optimizer=optimizer)
        whole = await fresh(backend, tmp_path / "whole")
        logs = [await update(whole, backend, chat, step=step) for step in range(4)]
        first = await fresh(backend, tmp_path / "parts")
        for step in range(save_at):
            await update(first, backend, chat, step=step)
        path = await first.save_state(f"step-{save_at}")
        again, _ = opened(table_optimizer=optimizer)
        second = await fresh(again, tmp_path / "parts", from_state=path)
        tail = [await update(second, again, chat, step=step) for step in range(save_at, 4)]
        assert tail == logs[save_at:]
        assert second._state.theta.tobytes() == whole._state.theta.tobytes()
        paths = [Path(await c.save_state("end")) for c in (whole, second)]
        assert paths[0].read_bytes() == paths[1].read_bytes()

    asyncio.run(main())


def test_sampler_weights_play_like_the_snapshot_and_are_no_state(tmp_path):
    async def main():
        backend, chat = opened()
        training = await fresh(backend, tmp_path)
        await update(training, backend, chat, step=0)
        path = await training.save_weights_for_sampler("a")
        loaded = await backend.create_sampling_client(model_path=path)
        live = await training.save_weights_and_get_sampling_client()
        assert loaded.snapshot_id == live.snapshot_id
        trajectory = (await sampled(backend, chat, live))[0].trajectories[0]
        scores = [(await c.compute_logprobs(trajectory.tokens)).logprobs for c in (loaded, live)]
        assert np.array_equal(*scores, equal_nan=True)
        with pytest.raises(DataError, match="save_state"):
            await fresh(backend, tmp_path, from_state=path)
        with pytest.raises(DataError, match="save_weights_for_sampler"):
            await backend.create_sampling_client(model_path=await training.save_state("a"))

    asyncio.run(main())


def test_torn_missing_and_foreign_files(tmp_path):
    async def main():
        backend, _ = opened()
        training = await fresh(backend, tmp_path)
        path = Path(await training.save_state("a"))
        assert [p.name for p in path.parent.iterdir()] == ["state.npz"]
        whole = path.read_bytes()
        for damaged in (whole[: len(whole) // 2], b"", b"junk"):
            path.write_bytes(damaged)
            with pytest.raises(DataError, match="not a saved table"):
                await fresh(backend, tmp_path, from_state=str(path))
        path.write_bytes(whole)
        other, _ = opened(habit=0.0)
        with pytest.raises(ConfigError, match="same ones"):
            await fresh(other, tmp_path, from_state=str(path))
        with pytest.raises(DataError):
            await fresh(backend, tmp_path, from_state=str(tmp_path / "none.npz"))

    asyncio.run(main())


# ── refusals and counts ──────────────────────────────────────────────────────────────────────


def test_unknown_losses_and_settings_are_refused(tmp_path):
    async def main():
        backend, _ = opened()
        training = await fresh(backend, tmp_path)
        row = Datum(tokens=[0, 1], logprobs=[0, -1], advantages=[0, 1], mask=[False, True])
        with pytest.raises(ConfigError, match='mean "ppo"'):
            await training.forward_backward([row], loss_fn="pppo")
        with pytest.raises(ConfigError, match="clip_low_threshold"):
            await training.forward_backward(
                [row], loss_fn="ppo", loss_fn_config={"clip_low_treshold": 0.8}
            )
        with pytest.raises(ConfigError, match="distillation"):
            await training.forward_backward([replace(row, distill=np.ones(2))], loss_fn="ppo")
        await training.forward_backward([row], loss_fn="ppo")
        with pytest.raises(BackendError, match="optim_step"):
            await training.save_state("a")

    asyncio.run(main())
    with pytest.raises(ConfigError, match="table_actions"):
        tabular.Config(table_actions=("left",))


def test_every_token_is_counted(tmp_path):
    async def main():
        backend, chat = opened()
        training = await fresh(backend, tmp_path)
        client = await training.save_weights_and_get_sampling_client()
        group = (await sampled(backend, chat, client, tasks=1, group_size=1))[0]
        (trajectory,) = group.trajectories
        actions = sum(len(turn.logprob_N) for turn in trajectory.turns)
        assert backend.usage().sampled == actions == 16
        assert backend.usage().prefill == sum(turn.start for turn in trajectory.turns)
        await training.forward_backward([row_of(trajectory)], loss_fn="ppo")
        assert backend.usage().trained == len(trajectory.tokens)
        assert backend.usage().requests == 9

    asyncio.run(main())


def test_agentopsd_trains_through_the_whole_loop(tmp_path):
    async def main():
        backend, chat = opened(table_optimizer="sgd")
        training = await fresh(backend, tmp_path)
        for step in range(3):
            await update(
                training, backend, chat, step=step, method=agentopsd,
                speed=AdamParams(learning_rate=8.0),
            )  # fmt: skip
        client = await training.save_weights_and_get_sampling_client()
        base = await backend.create_sampling_client()
        rates = [
            np.mean([g.success_G.mean() for g in await sampled(backend, chat, c, group_size=16)])
            for c in (client, base)
        ]
        assert rates[0] > rates[1]

    asyncio.run(main())
