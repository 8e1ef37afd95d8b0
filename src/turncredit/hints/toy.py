"""Hints for the toy: names the key door of the corridor, or, for a control, a wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turncredit.core.errors import ConfigError
from turncredit.core.settings import setting
from turncredit.core.types import Group, Task


@dataclass(frozen=True)
class Config:
    """Whether the hint tells the truth."""

    wrong_hint: bool = setting(False, "name another door instead of the key door (a control)")


class KeyDoor:
    """Says, for example: At door 3, choose right."""

    def __init__(self, config: Config) -> None:
        self._wrong = config.wrong_hint

    def text(self, task: Task, group: Group) -> str:
        """The hint for `task`; the group is not looked at.

        Raises:
            ConfigError: the task is not one of the toy's.
        """
        rules = _rules(task)
        door = rules["key_door"]
        if self._wrong:
            door = (door - 1 + max(1, rules["doors"] // 2)) % rules["doors"] + 1
        return _says(door, rules)


def other_doors(task: Task) -> list[str]:
    """The hint for `task` with each of the other doors in place of the key door.

    Raises:
        ConfigError: the task is not one of the toy's.
    """
    rules = _rules(task)
    doors = range(1, rules["doors"] + 1)
    return [_says(door, rules) for door in doors if door != rules["key_door"]]


def _says(door: int, rules: Mapping[str, Any]) -> str:
    return f"At door {door}, choose {rules['answer']}."


def _rules(task: Task) -> Mapping[str, Any]:
    if not {"key_door", "answer", "doors"} <= set(task.payload):
        raise ConfigError(
            f'hint "toy_key" only speaks about the toy; {task.env} needs another hint'
        )
    return task.payload


def create(config: Config) -> KeyDoor:
    """The hint source."""
    return KeyDoor(config)
