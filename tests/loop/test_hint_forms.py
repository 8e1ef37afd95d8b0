"""A hint source of the wrong form is refused, and one that says nothing is named."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from turncredit import config
from turncredit.core.errors import ConfigError
from turncredit.core.looks import Insertion, Look
from turncredit.core.types import Group, Task
from turncredit.loop import parts, reading
from turncredit.loop.remarks import remarks

ROW = {"train/skipped": 0.0, "trajectory/env_errors": 0.0, "trajectory/count": 8.0}


class Formless:
    pass


class Undeclared:
    def looks(self, group: Group) -> list[list[Look]]:
        return [[] for _ in group.trajectories]


class Unnamed:
    def text(self, task: Task, group: Group) -> str:
        return "Go."


@dataclass
class Bare:
    sees_future: bool = True

    def looks(self, group: Group) -> list[Look]:
        return [Look((Insertion("x"),)) for _ in group.trajectories]


def settings(hint: str, method: str = "agentopsd") -> config.Run:
    chosen = {"hint": {"name": f"{__name__}:{hint}"}, "method": {"name": method}}
    return config.build(config.merge(config.read_recipe("toy-base"), chosen))


@pytest.mark.parametrize(("hint", "lacks"), [("Formless", "text"), ("Undeclared", "sees_future")])
def test_what_is_no_source_is_refused_before_anything_runs(hint, lacks):
    with pytest.raises(ConfigError, match=rf"has no {lacks}"):
        parts.open_parts(settings(hint))


def test_a_method_that_reads_looks_by_name_refuses_a_plain_text():
    assert parts.open_parts(settings("Unnamed"))
    with pytest.raises(ConfigError, match="--hint reflection"):
        parts.open_parts(settings("Unnamed", "opid"))


def test_one_look_in_place_of_a_list_is_named():
    from samples import group_of

    with pytest.raises(ConfigError, match="give a list of looks"):
        reading.looks_at(group_of([1], [[0.1]]), Bare())


def test_a_teacher_nobody_heard_and_a_hint_nobody_reads_are_said():
    assert not list(remarks(ROW | {"opsd/unhinted": 3.0, "opsd/teacher_gap": 0.1}))
    (said,) = remarks(ROW | {"opsd/unhinted": 8.0})
    assert "no trajectory got a hint" in said
    (said,) = remarks(ROW | {"opsd/unhinted": 0.0, "opsd/teacher_gap": 0.0})
    assert "does not read" in said
