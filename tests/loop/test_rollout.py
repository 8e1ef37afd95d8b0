"""Groups, seeds, budgets and stop reasons of a rollout."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes import FakeClient, FakeEnv, FakeTokenizer, Script, make_task, wait
from turncredit.core.calls import SampleResult, SamplingParams
from turncredit.core.errors import AlignmentError, BackendError, ConfigError
from turncredit.core.turns import GROUP
from turncredit.core.types import Group, StopReason, Trajectory
from turncredit.loop.chat import Chat
from turncredit.loop.rollout import Limits, member_seed, play, rollout, turn_seed

TOKENIZER = FakeTokenizer()
CHAT = Chat(TOKENIZER, FakeEnv(), max_turns=8)
LOOK, GO, FLY = (CHAT.action_ids(a) for a in ("look", "go to fridge 1", "fly"))
LIMITS = Limits(max_turns=8, max_trajectory_tokens=20_000, max_action_tokens=200)


def by_seed(prompt: list[int], params: SamplingParams) -> tuple[list[int], str]:
    return (LOOK, GO, FLY)[params.seed % 3], "stop"


def always(ids: list[int], stop: str = "stop") -> Script:
    return lambda prompt, params: (ids, stop)


def run(
    env: FakeEnv, client: FakeClient, limits: Limits = LIMITS, *, tasks: int = 2, size: int = 4,
    run_seed: int = 0, step: int = 0, on_done: Callable[[Trajectory], None] | None = None,
) -> list[Group]:  # fmt: skip
    return wait(
        rollout(
            [make_task(n) for n in range(tasks)], env, CHAT, client, limits,
            group_size=size, run_seed=run_seed, step=step, on_done=on_done,
        )
    )  # fmt: skip


def one(env: FakeEnv, client: FakeClient, limits: Limits = LIMITS) -> Trajectory:
    return wait(play(make_task(), env, CHAT, client, limits, seed=7))


def picks(groups: list[Group]) -> list[list[str | None]]:
    return [[turn.action for turn in t.turns] for g in groups for t in g.trajectories]


def test_groups_come_in_order_and_carry_the_snapshot() -> None:
    groups = run(FakeEnv(), FakeClient(by_seed, "snap-7"), tasks=3, size=4)
    assert [g.task.id for g in groups] == ["game-0", "game-1", "game-2"]
    for group in groups:
        assert [t.member for t in group.trajectories] == [0, 1, 2, 3]
        assert {t.snapshot_id for t in group.trajectories} == {"snap-7"}
        assert group.reward_G.tolist() == [1.0] * 4
        for t in group.trajectories:
            assert t.seed == member_seed(0, 0, group.task.id, t.member)
            assert t.opening.actions == FakeEnv().actions
            assert [turn.state_key for turn in t.turns] == ["s0", "s1", "s2"]


def test_seeds_repeat_and_differ_where_they_must() -> None:
    env, size = FakeEnv(win_at=4), 8
    first = picks(run(env, FakeClient(by_seed), size=size))
    assert picks(run(env, FakeClient(by_seed), size=size)) == first
    assert picks(run(env, FakeClient(by_seed), size=size, run_seed=1)) != first
    assert picks(run(env, FakeClient(by_seed), size=size, step=1)) != first
    assert len({tuple(p) for p in first[:size]}) > 1  # members explore
    assert first[:size] != first[size:]  # and so do tasks
    alone = picks(run(env, FakeClient(by_seed), tasks=1, size=3))
    assert alone == first[:3]  # not by who else is in the batch


def test_seeds_are_small_integers_of_all_their_parts() -> None:
    seeds = {
        member_seed(r, s, t, m) for r in range(4) for s in range(4) for t in "ab" for m in range(4)
    }
    assert len(seeds) == 128
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len({turn_seed(7, k) for k in range(50)}) == 50
    assert member_seed(1, 12, "3", 4) != member_seed(11, 2, "3", 4)


def test_sampling_parameters_are_passed_on() -> None:
    client = FakeClient(always(LOOK))
    one(FakeEnv(), client, replace(LIMITS, temperature=0.01, top_p=0.9))
    params = client.requests[0][1]
    assert (params.max_tokens, params.temperature, params.top_p) == (200, 0.01, 0.9)
    assert params.stop_ids == CHAT.stop_ids
    assert params.seed == turn_seed(7, 0)


def test_success_and_failure_are_what_the_environment_says() -> None:
    won = one(FakeEnv(), FakeClient(always(LOOK)))
    assert (won.stop, won.reward, won.success, won.stop.truncated) == ("success", 1.0, True, False)
    lost = one(FakeEnv(lose=True, final_reward=0.0), FakeClient(always(LOOK)))
    assert (lost.stop, lost.reward, lost.success) == (StopReason.FAILED, 0.0, False)
    partial = one(FakeEnv(lose=True, final_reward=0.4), FakeClient(always(LOOK)))
    assert (partial.stop, partial.reward) == (StopReason.FAILED, 0.4)
    silent = one(FakeEnv(final_reward=0.0), FakeClient(always(LOOK)))
    assert (silent.stop, silent.reward) == (StopReason.SUCCESS, 1.0)


def test_out_of_turns() -> None:
    t = one(FakeEnv(win_at=99), FakeClient(always(LOOK)))
    assert (t.stop, len(t.turns), t.reward, t.success) == (StopReason.MAX_TURNS, 8, 0.0, False)
    assert t.stop.truncated
    assert len(t.tokens) == t.turns[-1].stop  # no reply nobody reads


def test_one_action_too_long() -> None:
    t = one(FakeEnv(), FakeClient(always(LOOK[:-1], "length")))
    assert (t.stop, len(t.turns)) == (StopReason.ACTION_TOKENS, 1)
    assert t.turns[0].action is None
    assert t.turns[0].text.startswith("<tool_call>")


def test_out_of_trajectory_tokens() -> None:
    limits = replace(LIMITS, max_trajectory_tokens=1200)
    t = one(FakeEnv(win_at=99), FakeClient(always(LOOK)), limits)
    assert t.stop is StopReason.TRAJECTORY_TOKENS
    assert 0 < len(t.turns) < 8
    assert len(t.tokens) <= 1200
    assert t.turns[-1].action == "look"  # an action is never cut by this budget


def test_a_first_prompt_that_does_not_fit_is_a_trajectory_without_turns() -> None:
    limits = replace(LIMITS, max_trajectory_tokens=300)
    env = FakeEnv()
    t = one(env, FakeClient(always(LOOK)), limits)
    assert (t.stop, t.turns, t.reward) == (StopReason.TRAJECTORY_TOKENS, (), 0.0)
    assert t.prompt_length == len(t.tokens) > 0
    assert env.episodes[0].closed == 1


def test_a_finished_episode_is_not_checked_for_room() -> None:
    ample = one(FakeEnv(), FakeClient(always(LOOK)))
    exact = replace(LIMITS, max_trajectory_tokens=ample.turns[-1].start + 200)
    assert one(FakeEnv(), FakeClient(always(LOOK)), exact).stop is StopReason.SUCCESS
    tight = replace(exact, max_trajectory_tokens=exact.max_trajectory_tokens - 1)
    cut = one(FakeEnv(), FakeClient(always(LOOK)), tight)
    assert cut.stop is StopReason.TRAJECTORY_TOKENS


def test_invalid_format_stands_still_and_says_so() -> None:
    noise = TOKENIZER.encode("I would look.<|im_end|>", parse_special=True)
    said = iter([noise, FLY, LOOK, LOOK])
    client = FakeClient(lambda prompt, params: (next(said), "stop"))
    t = one(FakeEnv(), client)
    assert [turn.action for turn in t.turns] == [None, "fly", "look", "look"]
    assert [turn.admissible for turn in t.turns] == [False, False, True, True]
    assert [turn.state_key for turn in t.turns] == ["s0", "s0", "s1", "s2"]
    heard = [TOKENIZER.decode(prompt[-300:]) for prompt, _ in client.requests]
    assert "Invalid format" not in heard[0]
    assert "Invalid format" in heard[1]
    assert "You are in a kitchen." in heard[1]
    assert "not available" in heard[2]
    assert "not available" not in heard[3][-120:]


def test_a_slow_member_holds_back_no_other() -> None:
    finished: list[str] = []
    slow = member_seed(0, 0, "game-0", 0)

    async def main() -> None:
        gate = asyncio.Event()

        class Gated(FakeClient):
            async def sample(self, prompt, *, params, num_samples=1):  # type: ignore[no-untyped-def]
                if params.seed == turn_seed(slow, 1):
                    await gate.wait()
                return await super().sample(prompt, params=params, num_samples=num_samples)

        def done(t: Trajectory) -> None:
            finished.append(t.name)
            if len(finished) == 7:
                gate.set()

        await rollout(
            [make_task(0), make_task(1)], FakeEnv(), CHAT, Gated(by_seed), LIMITS,
            group_size=4, run_seed=0, step=0, on_done=done,
        )  # fmt: skip

    asyncio.run(asyncio.wait_for(main(), 10))
    assert finished[-1] == "game-0#0"
    assert len(finished) == 8


def test_concurrency_is_bounded() -> None:
    running = {"now": 0, "most": 0}

    async def count(*_: object) -> None:
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        await asyncio.sleep(0)
        running["now"] -= 1

    run(FakeEnv(on_act=count), FakeClient(by_seed), replace(LIMITS, max_concurrency=3))
    assert running["most"] == 3


def test_calls_are_made_in_the_name_of_their_group() -> None:
    asked: Counter[object] = Counter()

    class Asked(FakeClient):
        async def sample(self, prompt, *, params, num_samples=1):  # type: ignore[no-untyped-def]
            asked[GROUP.get()] += 1
            return await super().sample(prompt, params=params, num_samples=num_samples)

    groups = run(FakeEnv(), Asked(by_seed), tasks=2, size=3)
    made = [sum(len(t.turns) for t in group.trajectories) for group in groups]
    assert asked == {"game-0": made[0], "game-1": made[1]}
    assert GROUP.get() is None


def test_another_snapshots_sample_is_refused() -> None:
    class Switched(FakeClient):
        async def sample(self, prompt, *, params, num_samples=1) -> SampleResult:  # type: ignore[no-untyped-def]
            result = await super().sample(prompt, params=params)
            return replace(result, snapshot_id="snap-1")

    with pytest.raises(AlignmentError, match=r"snapshot: expected snap-0, got snap-1"):
        run(FakeEnv(), Switched(by_seed))


def test_samples_without_matching_logprobs_are_refused() -> None:
    class Short(FakeClient):
        async def sample(self, prompt, *, params, num_samples=1) -> SampleResult:  # type: ignore[no-untyped-def]
            result = await super().sample(prompt, params=params)
            sample = replace(result.samples[0], logprobs=result.samples[0].logprobs[:-1])
            return replace(result, samples=(sample,))

    with pytest.raises(AlignmentError, match="log-probs"):
        run(FakeEnv(), Short(by_seed))
    with pytest.raises(AlignmentError, match="log-probs"):
        run(FakeEnv(), FakeClient(always([])))


def test_errors_of_the_policys_side_propagate_and_close_every_episode() -> None:
    env = FakeEnv()

    def broken(prompt: list[int], params: SamplingParams) -> tuple[list[int], str]:
        if len(env.episodes) == 8:
            raise BackendError("the sampler died", retryable=True)
        return LOOK, "stop"

    with pytest.raises(BackendError, match="the sampler died"):
        run(env, FakeClient(broken))
    assert [episode.closed for episode in env.episodes] == [1] * 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_turns": 0},
        {"max_concurrency": 0},
        {"max_action_tokens": 600, "max_trajectory_tokens": 600},
    ],
)
def test_impossible_limits_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Limits(**wrong)  # type: ignore[arg-type]
