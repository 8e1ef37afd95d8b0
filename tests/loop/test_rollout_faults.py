"""An environment's fault is data: one member's, counted, in no statistic; the step goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fakes import FakeClient, FakeEnv, FakeTokenizer, make_task, wait
from turncredit.core.errors import ConfigError, EnvError, MissingExtra
from turncredit.core.types import Group, Observation, StopReason, Task
from turncredit.loop.chat import Chat
from turncredit.loop.rollout import Limits, rollout

CHAT = Chat(FakeTokenizer(), FakeEnv(), max_turns=8)
LOOK = CHAT.action_ids("look")
LIMITS = Limits(max_turns=8, max_trajectory_tokens=20_000, step_timeout=5.0)


def run(env: FakeEnv, limits: Limits = LIMITS, size: int = 8) -> Group:
    groups = rollout(
        [make_task()], env, CHAT, FakeClient(lambda *_: (LOOK, "stop")), limits,
        group_size=size, run_seed=0, step=0,
    )  # fmt: skip
    return wait(groups)[0]


def env_raising(error: BaseException, at: int = 3, times: int = 1) -> FakeEnv:
    """Raises at turn `at` of the first `times` episodes that reach it."""
    left = [times]

    async def fail(task: Task, taken: int) -> None:
        if taken == at and left[0]:
            left[0] -= 1
            raise error

    return FakeEnv(win_at=5, on_act=fail)


@pytest.mark.parametrize(
    "error",
    [EnvError("the engine died"), ValueError("bad state"), KeyError("x"), TimeoutError("t")],
)
def test_raising_at_turn_3_in_1_of_8(error: Exception) -> None:
    env = env_raising(error)
    group = run(env)
    assert len(group.trajectories) == 7
    assert len(group.faults) == 1
    assert group.reward_G.tolist() == [1.0] * 7
    fault = group.faults[0]
    assert (fault.stop, fault.reward, len(fault.turns)) == (StopReason.ENV_ERROR, 0.0, 3)
    assert "turn 3" in fault.error
    assert type(error).__name__ in fault.error
    assert fault.turns[-1].action == "look"
    assert [episode.closed for episode in env.episodes] == [1] * 8


def test_a_fault_at_the_start_has_no_tokens() -> None:
    async def fail(task: Task) -> None:
        raise OSError("no such game")

    group = run(FakeEnv(on_start=fail), size=2)
    assert [len(t.tokens) for t in group.faults] == [0, 0]
    assert group.trajectories == ()
    assert "start() raised OSError: no such game" in group.faults[0].error


def test_an_episode_that_cannot_be_made_is_a_fault() -> None:
    class NoEpisodes(FakeEnv):
        def episode(self, task: Task):  # type: ignore[no-untyped-def]
            raise RuntimeError("out of processes")

    assert "episode() raised RuntimeError" in run(NoEpisodes(), size=1).faults[0].error


def test_no_answer_in_time_names_the_call_and_the_limit() -> None:
    async def hang(task: Task, taken: int) -> None:
        if taken == 2:
            await asyncio.sleep(60)

    env = FakeEnv(on_act=hang)
    group = run(env, replace(LIMITS, step_timeout=0.05), size=2)
    assert [t.error for t in group.faults] == ["act('look') of turn 2 gave no answer in 0.05 s"] * 2
    assert [episode.closed for episode in env.episodes] == [1, 1]


def test_an_answer_of_the_wrong_kind_is_a_fault() -> None:
    class Tuples(FakeEnv):
        def episode(self, task: Task):  # type: ignore[no-untyped-def]
            episode = super().episode(task)

            async def act(action: str) -> tuple[Observation, float]:
                return Observation("hm"), 1.0

            episode.act = act  # type: ignore[method-assign]
            return episode

    assert "returned tuple, not Step" in run(Tuples(), size=1).faults[0].error


def test_a_fault_while_closing_costs_a_warning_only(caplog: pytest.LogCaptureFixture) -> None:
    class Sticky(FakeEnv):
        def episode(self, task: Task):  # type: ignore[no-untyped-def]
            episode = super().episode(task)

            async def close() -> None:
                raise OSError("device busy")

            episode.close = close  # type: ignore[method-assign]
            return episode

    group = run(Sticky(), size=1)
    assert group.reward_G.tolist() == [1.0]
    assert "close() raised OSError: device busy" in caplog.text


@pytest.mark.parametrize("error", [ConfigError("wrong root"), MissingExtra("it", "textworld")])
def test_a_wrong_set_up_stops_the_step(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(env_raising(error, at=1))


def test_cancelling_closes_every_episode() -> None:
    env = FakeEnv(on_act=lambda *_: asyncio.sleep(60))

    async def main() -> None:
        client = FakeClient(lambda *_: (LOOK, "stop"))
        work = rollout(
            [make_task()], env, CHAT, client, replace(LIMITS, step_timeout=90),
            group_size=3, run_seed=0, step=0,
        )  # fmt: skip
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work, 0.2)

    asyncio.run(main())
    assert [episode.closed for episode in env.episodes] == [1, 1, 1]
