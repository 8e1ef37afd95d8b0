"""A panel is the same whatever the order of files, and another one is seen to be another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doors import Doors, task
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.core.errors import ConfigError, DataError
from turncredit.core.types import Task
from turncredit.proof.panel import choose, panel


def test_all_means_every_held_out_split() -> None:
    tasks = choose(Doors(), "all").tasks
    assert [t.split for t in tasks] == ["valid_seen"] * 6 + ["valid_unseen"] * 6
    assert {t.split for t in choose(Doors(splits=("train",)), "all").tasks} == {"train"}
    assert {t.split for t in choose(Doors(), "train").tasks} == {"train"}


def test_training_splits_of_any_name_are_not_held_out() -> None:
    env = Doors(splits=("train", "valid_seen", "valid_train"))
    assert {t.split for t in choose(env, "all").tasks} == {"valid_seen"}


def test_a_typo_is_answered() -> None:
    with pytest.raises(ConfigError, match='Did you mean "valid_unseen"'):
        choose(Doors(), "valid_unsen")


def test_a_limit_is_spread_over_task_types() -> None:
    tasks = choose(Doors(per_split=12), "valid_seen", 4).tasks
    assert [t.task_type for t in tasks] == ["north", "north", "south", "south"]
    assert [t.id for t in tasks] == sorted(t.id for t in tasks)
    assert choose(Doors(), "valid_seen", 99).tasks == choose(Doors(), "valid_seen").tasks
    with pytest.raises(ConfigError, match="at least 1"):
        choose(Doors(), "all", 0)


class Shuffled(Doors):
    def tasks(self, split: str) -> list[Task]:
        return list(super().tasks(split))[::-1]


@pytest.mark.parametrize("limit", [None, 3])
def test_the_environments_own_order_does_not_matter(limit: int | None) -> None:
    one, other = choose(Doors(), "all", limit), choose(Shuffled(), "all", limit)
    assert one == other
    assert one.hash == other.hash


@settings(deadline=None)
@given(st.integers(0, 5), st.sampled_from(["id", "digest"]))
def test_any_change_changes_the_hash(which: int, field: str) -> None:
    tasks = list(choose(Doors(), "valid_seen").tasks)
    before = panel(tasks).hash
    tasks[which] = replace(tasks[which], **{field: "other"})
    assert panel(tasks).hash != before


def test_order_and_number_change_the_hash() -> None:
    tasks = choose(Doors(), "valid_seen").tasks
    hashes = {panel(tasks).hash, panel(tasks[::-1]).hash, panel(tasks[:-1]).hash}
    assert len(hashes) == 3


def test_every_game_once_and_at_least_one() -> None:
    with pytest.raises(DataError, match="is 2 times in the panel"):
        panel([task(1), task(2), task(1)])
    with pytest.raises(DataError, match="at least one task"):
        panel([])


def test_the_manifest_says_what_was_played() -> None:
    found = panel([task(3)]).manifest()
    assert found["count"] == 1
    assert found["tasks"][0]["id"] == "valid_seen/door-003"
    assert set(found["tasks"][0]) == {"id", "split", "task_type", "digest"}


def test_a_task_described_by_no_text_is_refused() -> None:
    with pytest.raises(DataError, match="task_type is None"):
        panel([replace(task(0), task_type=None)])  # type: ignore[arg-type]
