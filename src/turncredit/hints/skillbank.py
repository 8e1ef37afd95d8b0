"""Written skills: for a task, the general text and the text of its type, and no other.

A bank is a folder with `skill_mapping.json` (the public schema: `skill_files` names Markdown
files, one of them `general_skills`; `task_to_skill` maps a task type to one of those names;
`task_keywords` may be there and is not needed, because tasks carry their type). The choice is by
task type alone: no retrieval, no outcome, nothing of the future.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turncredit.core.errors import ConfigError, DataError, did_you_mean
from turncredit.core.settings import setting
from turncredit.core.types import Group, Task

BANKS = Path(__file__).parent / "banks"
_GENERAL = "general_skills"
# Public banks and game files disagree on one name.
_ALIASES = {
    "pick_and_place_simple": "pick_and_place",
    "pick_and_place": "pick_and_place_simple",
}


@dataclass(frozen=True)
class Config:
    """Where the skills are read from."""

    bank: str = setting("household", "built-in skills: household, or household-concise (short)")
    skills_dir: str | None = setting(None, "folder with a skill_mapping.json, instead of --bank")


@dataclass(frozen=True)
class SkillBank:
    """General text plus one text per task type."""

    folder: Path
    general: str
    by_type: Mapping[str, str]

    def text(self, task: Task, group: Group) -> str:
        """The general text, then that of the task's type.

        Raises:
            ConfigError: the bank knows nothing about this type of task.
        """
        for task_type in (task.task_type, _ALIASES.get(task.task_type, "")):
            if task_type in self.by_type:
                return f"{self.general}\n\n{self.by_type[task_type]}"
        near = did_you_mean(task.task_type, self.by_type)
        raise ConfigError(
            f'no skill for task type "{task.task_type}" in {self.folder}.{near} '
            f"(known: {', '.join(sorted(self.by_type))}); add it to task_to_skill"
        )


def create(config: Config) -> SkillBank:
    """Read the whole bank now, so that nothing can be missing later.

    Raises:
        ConfigError: no such bank or folder.
        DataError: a mapping or file that is missing, torn, empty, or outside the folder.
    """
    if config.skills_dir is not None:
        return read(Path(config.skills_dir).expanduser())
    known = sorted(path.name for path in BANKS.iterdir() if path.is_dir())
    if config.bank not in known:
        raise ConfigError(
            f'no skill bank "{config.bank}".{did_you_mean(config.bank, known)} '
            f"(known: {', '.join(known)}; your own: --skills-dir)"
        )
    return read(BANKS / config.bank)


def read(folder: Path) -> SkillBank:
    """Read a bank's folder; errors as of `create`."""
    path = folder / "skill_mapping.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no skill_mapping.json; --skills-dir takes its folder")
    try:
        mapping = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    files = _strings(mapping, "skill_files", path)
    types = _strings(mapping, "task_to_skill", path)
    if _GENERAL not in files:
        raise DataError(f'{path}: skill_files needs "{_GENERAL}", the text for every task')
    texts = {name: _text(folder, file) for name, file in files.items()}
    for task_type, name in types.items():
        if name not in texts:
            near = did_you_mean(name, texts)
            raise DataError(f'{path}: {task_type} wants "{name}", not in skill_files.{near}')
    return SkillBank(folder, texts[_GENERAL], {t: texts[name] for t, name in types.items()})


def _strings(mapping: object, key: str, path: Path) -> dict[str, str]:
    table = mapping.get(key) if isinstance(mapping, dict) else None
    if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
        raise DataError(f'{path} needs an object "{key}" of names to names')
    return table


def _text(folder: Path, file: str) -> str:
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise DataError(f"{folder}: skill file {file} lies outside the folder")
    if not path.is_file():
        raise DataError(f"{folder}: skill file {file} is missing")
    if not (text := path.read_text(encoding="utf-8").strip()):
        raise DataError(f"{folder}: skill file {file} is empty")
    return text
