"""Each type of task gets the general text and its own, and no other's; nothing goes missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import make_task
from turncredit.core.errors import ConfigError, DataError
from turncredit.core.registry import load
from turncredit.core.types import Group
from turncredit.hints.skillbank import BANKS, Config, create

TYPES = {
    "pick_and_place_simple": "place.md",
    "pick_two_obj_and_place": "place_two.md",
    "look_at_obj_in_light": "look.md",
    "pick_clean_then_place_in_recep": "clean.md",
    "pick_heat_then_place_in_recep": "heat.md",
    "pick_cool_then_place_in_recep": "cool.md",
}


def text_for(task_type: str, config: Config) -> str:
    task = make_task(task_type=task_type)
    return create(config).text(task, Group(task, ()))


@pytest.mark.parametrize("bank", ["household", "household-concise"])
@pytest.mark.parametrize("task_type", TYPES)
def test_general_and_own_text_and_no_other(bank: str, task_type: str) -> None:
    text = text_for(task_type, Config(bank=bank))
    files = {path.name: path.read_text().strip() for path in (BANKS / bank).glob("*.md")}
    assert set(files) == {"general.md", *TYPES.values()}
    assert text == f"{files['general.md']}\n\n{files[TYPES[task_type]]}"
    assert [name for name, body in files.items() if body in text and name != "general.md"] == [
        TYPES[task_type]
    ]
    words = len(text.split())
    assert 20 <= words <= 40 if bank.endswith("concise") else 150 <= words <= 250


def test_texts_say_how_and_name_no_numbered_thing() -> None:
    for path in BANKS.glob("*/*.md"):
        assert not any(word.strip(".,").isdigit() for word in path.read_text().split()), path


def test_unknown_types_and_banks_are_errors_with_a_cure() -> None:
    with pytest.raises(ConfigError, match=r'no skill for task type "pick_cleen.*Did you mean'):
        text_for("pick_cleen_then_place_in_recep", Config())
    with pytest.raises(ConfigError, match='Did you mean "household"'):
        create(Config(bank="houshold"))


def write(folder: Path, mapping: object, **files: str) -> Config:
    (folder / "skill_mapping.json").write_text(
        mapping if isinstance(mapping, str) else json.dumps(mapping)
    )
    for name, body in files.items():
        (folder / f"{name}.md").write_text(body)
    return Config(skills_dir=str(folder))


def mapping(**changes: object) -> dict[str, object]:
    return {
        "skill_files": {"general_skills": "general.md", "place": "place.md"},
        "task_to_skill": {"pick_and_place": "place"},
        "task_keywords": {"pick_and_place": ["put"]},
        **changes,
    }


def test_the_public_schema_is_read_under_either_name_of_placing(tmp_path: Path) -> None:
    config = write(tmp_path, mapping(), general="# General", place="# Place")
    assert text_for("pick_and_place_simple", config) == "# General\n\n# Place"
    assert text_for("pick_and_place", config) == "# General\n\n# Place"


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("{torn", "not JSON"),
        ([], "skill_files"),
        (mapping(skill_files={"place": "place.md"}), "general_skills"),
        (mapping(task_to_skill={"x": "plaice"}), 'Did you mean "place"'),
        (mapping(task_to_skill={"x": 3}), "task_to_skill"),
        (mapping(skill_files={"general_skills": "gone.md"}), "gone.md is missing"),
        (mapping(skill_files={"general_skills": "empty.md"}), "empty.md is empty"),
        (mapping(skill_files={"general_skills": "../out.md"}), "outside"),
    ],
)
def test_a_bad_bank_is_refused_when_it_is_read(tmp_path: Path, table: object, what: str) -> None:
    config = write(tmp_path, table, general="g", place="p", empty=" ")
    with pytest.raises(DataError, match=what):
        create(config)


def test_a_folder_without_a_mapping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"skill_mapping\.json"):
        create(Config(skills_dir=str(tmp_path)))


def test_none_says_nothing() -> None:
    component = load("hint", "none")
    hint = component.create(component.config_type())
    task = make_task()
    assert hint.text(task, Group(task, ())) is None
    assert load("hint", "skillbank").config_type is Config
