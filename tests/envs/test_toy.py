"""The corridor: only the key door decides."""

import asyncio

import pytest

from turncredit.core import registry
from turncredit.core.errors import ConfigError, EnvError
from turncredit.core.types import Group
from turncredit.envs import toy
from turncredit.hints import toy as toy_hint


def walk(env, task, actions):
    async def play():
        episode = env.episode(task)
        seen = [await episode.start()]
        step = None
        for action in actions:
            step = await episode.act(action)
            seen.append(step.observation)
        return seen, step

    return asyncio.run(play())


@pytest.fixture
def env():
    return registry.load("env", "toy").create(toy.Config())


def other(way):
    return "left" if way == "right" else "right"


def test_only_the_key_door_matters(env):
    for task in env.tasks("train")[:4]:
        key, answer = task.payload["key_door"] - 1, task.payload["answer"]
        ways = [other(answer)] * 8
        _, lost = walk(env, task, ways)
        assert lost.done
        assert not lost.success
        assert lost.reward == 0
        ways[key] = answer
        seen, won = walk(env, task, ways)
        assert won.done
        assert won.success
        assert won.reward == 1
        assert len({o.text for o in seen}) == 9
        assert walk(env, task, task.payload["walkthrough"])[1].success


def test_task_types_differ_in_key_door_and_answer(env):
    rules = {(t.task_type, t.payload["key_door"], t.payload["answer"]) for t in env.tasks("train")}
    assert len(rules) == 4
    assert {answer for _, _, answer in rules} == {"left", "right"}
    assert len({door for _, door, _ in rules}) == 4


def test_tasks_are_sorted_distinct_and_the_same_every_time(env):
    for split in env.splits:
        ids = [task.id for task in env.tasks(split)]
        assert ids == sorted(set(ids))
        assert list(env.tasks(split)) == list(toy.create(toy.Config()).tasks(split))
    with pytest.raises(ConfigError, match="valid_seen"):
        env.tasks("test")


def test_inadmissible_actions_change_nothing(env):
    task = env.tasks("train")[0]
    seen, step = walk(env, task, ["jump"])
    assert not step.admissible
    assert "Nothing happens." in step.observation.text
    assert seen[0].state_key == step.observation.state_key


def test_episodes_are_single_use(env):
    async def misuse():
        episode = env.episode(env.tasks("train")[0])
        with pytest.raises(EnvError, match="outside"):
            await episode.act("left")
        await episode.start()
        with pytest.raises(EnvError, match="twice"):
            await episode.start()
        await episode.close()
        await episode.close()

    asyncio.run(misuse())


@pytest.mark.parametrize("wrong", [{"corridor_doors": 0}, {"corridor_colours": 9}])
def test_impossible_sizes_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        toy.Config(**wrong)


def test_the_hint_names_the_key_door_or_a_wrong_one(env):
    task = env.tasks("train")[0]
    group = Group(task, ())
    right = toy_hint.create(toy_hint.Config()).text(task, group)
    wrong = toy_hint.create(toy_hint.Config(wrong_hint=True)).text(task, group)
    door = task.payload["key_door"]
    assert right == f"At door {door}, choose {task.payload['answer']}."
    assert wrong != right
    assert f"door {door}," not in wrong
