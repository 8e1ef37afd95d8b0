"""One right text, several wrong ones; the task's id alone decides which."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from stories import TASK, mixed, texts, told

from turncredit.core.errors import ConfigError
from turncredit.core.registry import load
from turncredit.core.types import Group, Task
from turncredit.envs import toy
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.hints import skillbank
from turncredit.hints.contrast import Config, Contrast, create


def texts_for(hint: Contrast, task: Task) -> tuple[str, list[str]]:
    return hint.texts(task, Group(task, ()))


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_skills_of_other_types_are_the_wrong_ones(task_type: str) -> None:
    task, bank = replace(TASK, task_type=task_type), skillbank.create(skillbank.Config())
    right, wrong = texts_for(create(Config(wrong_hints=3)), task)
    own = bank.text(task, Group(task, ()))
    assert right == own
    others = {f"{bank.general}\n\n{text}" for text in bank.by_type.values()} - {own}
    assert len(set(wrong)) == 3
    assert set(wrong) <= others


def test_every_member_gets_the_right_look_first_and_named_wrong_ones() -> None:
    hint = load("hint", "contrast").create(Config())
    group = mixed()
    looks_G = hint.looks(group)
    right, wrong = hint.texts(group.task, group)
    assert len(looks_G) == 4
    for looks in looks_G:
        assert texts(looks) == [("system", text) for text in (right, *wrong)]
        assert [look.name for look in looks] == ["", "wrong0", "wrong1"]
        assert [look.turns for look in looks] == [None] * 3


def test_the_choice_follows_the_task_id_and_uses_all_others() -> None:
    hint = create(Config(wrong_hints=1))
    chosen = Counter(texts_for(hint, replace(TASK, id=f"game-{n}"))[1][0] for n in range(100))
    assert len(chosen) == len(TASK_TYPES) - 1
    assert min(chosen.values()) >= 5
    again = Counter(texts_for(hint, replace(TASK, id=f"game-{n}"))[1][0] for n in range(100))
    assert again == chosen
    # The group's members and what they did have no part in it.
    alone = Group(TASK, (told(["look"], won=True),))
    assert hint.texts(TASK, alone) == hint.texts(TASK, mixed())


def test_too_few_wrong_texts_are_refused(tmp_path: Path) -> None:
    mapping = {
        "skill_files": {"general_skills": "general.md", "place": "place.md", "heat": "heat.md"},
        # Two types that share a text are not each other's wrong hint.
        "task_to_skill": {TASK.task_type: "place", "pick_two": "place", "heat": "heat"},
    }
    (tmp_path / "skill_mapping.json").write_text(json.dumps(mapping))
    for name in ("general", "place", "heat"):
        (tmp_path / f"{name}.md").write_text(name)
    one = create(Config(skills_dir=str(tmp_path), wrong_hints=1))
    assert texts_for(one, TASK) == ("general\n\nplace", ["general\n\nheat"])
    with pytest.raises(ConfigError, match="only 1 wrong hints, not 2; lower --wrong-hints"):
        texts_for(create(Config(skills_dir=str(tmp_path))), TASK)
    with pytest.raises(ConfigError, match="wrong_hints is 0"):
        Config(wrong_hints=0)


def test_the_toy_names_the_key_door_and_other_doors() -> None:
    hint = create(Config(source="toy_key", wrong_hints=7))
    for task in toy.create(toy.Config()).tasks("valid_seen"):
        right, wrong = texts_for(hint, task)
        key, answer = task.payload["key_door"], task.payload["answer"]
        assert right == f"At door {key}, choose {answer}."
        doors = {f"At door {door}, choose {answer}." for door in range(1, 9)} - {right}
        assert set(wrong) == doors
    with pytest.raises(ConfigError, match="only speaks about the toy"):
        texts_for(hint, TASK)
    with pytest.raises(ConfigError, match="only 7 wrong hints, not 8"):
        texts_for(create(Config(source="toy_key", wrong_hints=8)), task)
