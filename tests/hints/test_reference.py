"""The task's own solution, whole, where it is wanted; a task without one is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stories import TASK, played_household, texts

from turncredit.core.errors import ConfigError
from turncredit.core.looks import LookingHint
from turncredit.core.registry import load
from turncredit.core.types import Group, Task
from turncredit.hints.reference import Config, create


def with_payload(**payload: object) -> Task:
    return replace(TASK, payload=payload)


def test_a_text_wins_over_commands() -> None:
    task = with_payload(reference=" It is in the fridge.\n", walkthrough=("look",))
    expected = "A reference solution of this task:\nIt is in the fridge."
    assert create(Config()).text(task, Group(task, ())) == expected


def test_commands_are_numbered_and_never_cut() -> None:
    task = with_payload(walkthrough=[f"go to desk {k}" for k in range(300)])
    lines = create(Config()).text(task, Group(task, ())).splitlines()
    assert lines[0] == "A way to solve this task, step by step:"
    assert lines[1:] == [f"{k + 1}. go to desk {k}" for k in range(300)]


@pytest.mark.parametrize("place", ["system", "opening"])
def test_it_stands_where_it_is_wanted_for_every_member(place: str) -> None:
    group = played_household(0)
    hint = load("hint", "reference").create(Config(place=place))  # type: ignore[arg-type]
    assert isinstance(hint, LookingHint)
    looks_G = hint.looks(group)
    assert len(looks_G) == len(group.trajectories)
    for looks in looks_G:
        ((at, text),) = texts(looks)
        assert at == place
        assert all(command in text for command in group.task.payload["walkthrough"])
        assert looks[0].turns is None


@pytest.mark.parametrize("payload", [{}, {"walkthrough": ()}, {"reference": " "}, {"reference": 3}])
def test_a_task_without_one_is_refused_with_a_cure(payload: dict[str, object]) -> None:
    task = with_payload(**payload)
    with pytest.raises(
        ConfigError, match=r'tale has no reference.*payload\["walkthrough"\].*--hint'
    ):
        create(Config()).looks(Group(task, ()))
