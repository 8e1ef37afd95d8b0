"""The embedded environment: stable ids, lazy listing, balanced types, episodes that can be won."""

import asyncio
import hashlib
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from turncredit.core.errors import ConfigError, DataError
from turncredit.core.registry import load
from turncredit.core.types import Task
from turncredit.envs import household
from turncredit.envs.household import Config, create, layouts
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.generator import build, generate, to_bytes


def _play(environment: household.Household, task: Task, commands: tuple[str, ...]):
    async def run():
        episode = environment.episode(task)
        await episode.start()
        steps = [await episode.act(command) for command in commands]
        await episode.close()
        return steps

    return asyncio.run(run())


def test_the_registry_finds_it_with_its_settings():
    component = load("env", "household")
    environment = component.create(component.config_type())
    assert environment.name == "household"
    assert environment.splits == ("train", "valid_seen", "valid_unseen")
    assert environment.tool.name == "alfworld_step"


def test_ids_are_sorted_stable_and_balanced():
    tasks = create(Config(train_games=60)).tasks("train")
    ids = [task.id for task in tasks]
    assert ids == sorted(ids)
    assert ids[3] == "household/small/train/000003-pick_heat_then_place_in_recep"
    assert set(Counter(task.task_type for task in tasks).values()) == {10}
    again = create(Config(train_games=60)).tasks("train")
    assert list(again) == list(tasks)


def test_a_hundred_thousand_games_are_listed_without_making_any(monkeypatch):
    made = []

    def counting(*args, **kwargs):
        made.append(args)
        return build(*args, **kwargs)

    monkeypatch.setattr(household, "build", counting)
    tasks = create(Config(train_games=100_000)).tasks("train")
    assert len(tasks) == 100_000
    assert made == []
    assert tasks[99_999].id == tasks[-1].id
    assert len(made) == 1
    assert [t.id for t in tasks[5:8]] == [t.id for t in islice(tasks, 5, 8)]
    with pytest.raises(IndexError, match="100000 games"):
        tasks[100_000]


def test_the_digest_is_that_of_the_game_file():
    task = create(Config()).tasks("valid_seen")[4]
    made = generate(task.task_type, 4, split="valid_seen", size="small")
    assert task.digest == hashlib.sha256(to_bytes(made)).hexdigest()
    assert task.payload["goal"] == made.task
    assert task.payload["walkthrough"] == made.walkthrough


@pytest.mark.parametrize("split", ["train", "valid_seen", "valid_unseen"])
def test_the_walkthrough_wins_and_only_at_its_end(split):
    environment = create(Config())
    for task in environment.tasks(split)[:12]:
        steps = _play(environment, task, task.payload["walkthrough"])
        assert [step.success for step in steps] == [False] * (len(steps) - 1) + [True]
        assert all(step.admissible for step in steps)


def test_looking_around_never_wins():
    environment = create(Config())
    steps = _play(environment, environment.tasks("train")[0], ("look",) * 20)
    assert not any(step.success or step.done for step in steps)


def test_id_and_digest_are_enough_to_play_a_task_elsewhere():
    task = create(Config(size="medium")).tasks("train")[7]
    bare = replace(task, payload={})
    steps = _play(create(Config()), bare, task.payload["walkthrough"])
    assert steps[-1].success


def test_held_out_layouts_never_show_in_training():
    environment = create(Config(train_games=120, eval_games_per_split=120))
    ids = {s: {t.payload["layout"] for t in environment.tasks(s)} for s in environment.splits}
    assert not ids["valid_unseen"] & (ids["train"] | ids["valid_seen"])
    assert all(layouts.held_out(name) for name in ids["valid_unseen"])


def test_another_games_seed_makes_other_games():
    first, other = (create(Config(games_seed=s)).tasks("train")[:12] for s in (0, 3))
    assert not {t.digest for t in first} & {t.digest for t in other}
    assert other[1].id == "household/small/train/3000001-look_at_obj_in_light"


def test_task_types_can_be_chosen_and_make_the_same_games():
    kinds = ("pick_two_obj_and_place", "pick_and_place_simple")
    environment = create(Config(task_types=kinds, train_games=12))
    assert Counter(t.task_type for t in environment.tasks("train")) == dict.fromkeys(kinds, 6)
    everything = create(Config(train_games=12)).tasks("train")
    assert environment.tasks("train")[0] == everything[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": "smal"}, 'Did you mean "small"'),
        ({"train_games": 0}, "use 1 to"),
        ({"eval_games_per_split": 2_000_000}, "use 1 to"),
        ({"games_seed": -1}, "0 or more"),
        ({"task_types": ("pick_two",)}, "no task type"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Config(**settings)


def test_unknown_splits_and_tasks_are_refused_with_the_cure():
    environment = create(Config())
    with pytest.raises(ConfigError, match='Did you mean "valid_unseen"'):
        environment.tasks("valid_unsen")
    task = environment.tasks("train")[0]
    other = Task(id=task.id, env="household", split="train", task_type=TASK_TYPES[0], digest="0")
    with pytest.raises(DataError, match="another game of that name"):
        environment.episode(other)
    foreign = Task(id="train/trial_1", env="household", split="train", task_type="x", digest="0")
    with pytest.raises(DataError, match="names no household game"):
        environment.episode(foreign)
