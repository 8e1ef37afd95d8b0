"""A failure reads how a peer succeeded; a success, and a failure without one, how it ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stories import TASK, mixed, texts, told

from turncredit.core.errors import ConfigError
from turncredit.core.registry import load
from turncredit.core.types import Group
from turncredit.hints.hindsight import FAILED, SUCCEEDED, Config, create, shortest_success

PEER = "Another attempt at the same task succeeded like this:\n1. go to fridge 1\n2. move apple 1"


def test_one_request_a_trajectory_with_the_text_before_every_turn() -> None:
    looks_G = create(Config()).looks(mixed())
    assert [len(looks) for looks in looks_G] == [1, 1, 1, 1]
    assert [looks[0].turns for looks in looks_G] == [None] * 4  # it judges all
    for looks, turns, text in zip(
        looks_G,
        (3, 4, 2, 2),
        (f"{FAILED}\n{PEER}", SUCCEEDED, SUCCEEDED, f"{FAILED}\n{PEER}"),
        strict=True,
    ):
        assert texts(looks) == [(k, text) for k in range(turns)]


def test_in_front_it_stands_once() -> None:
    looks_G = create(Config(where="front")).looks(mixed())
    assert texts(looks_G[0]) == [("system", f"{FAILED}\n{PEER}")]
    assert texts(looks_G[1]) == [("system", SUCCEEDED)]


def test_without_a_success_only_the_outcome_is_told() -> None:
    group = Group(TASK, tuple(t for t in mixed().trajectories if not t.success))
    assert shortest_success(group) is None
    looks_G = create(Config()).looks(group)
    assert {text for looks in looks_G for _, text in texts(looks)} == {FAILED}


def test_the_shortest_success_is_the_peer_and_the_first_of_equals() -> None:
    group = mixed()
    twin = replace(told(["go to sofa 1", "move pear 1"], won=True), member=9)
    for members in (
        (*group.trajectories, twin),
        (twin, *reversed(group.trajectories)),
    ):
        found = shortest_success(Group(TASK, members))
        assert found is not None
        assert found.member == 2


def test_a_long_walk_loses_whole_actions_and_counts_them() -> None:
    peer = told([f"go to countertop {k}" for k in range(50)], won=True, member=1)
    group = Group(TASK, (told(["look"], won=False), peer))
    text = texts(create(Config(peer_chars=200)).looks(group)[0])[0][1]
    lines = text.splitlines()[2:]
    assert len("\n".join(lines)) <= 200
    (gap,) = (line for line in lines if line.startswith("("))
    assert gap == f"({50 - (len(lines) - 1)} actions left out here)"
    kept = [line for line in lines if line != gap]
    assert all(
        line == f"{k + 1}. go to countertop {k}" for line in kept for k in [int(line.split()[-1])]
    )
    assert kept[0].startswith("1. ")
    assert kept[-1].startswith("50. ")


def test_an_action_longer_than_the_bound_is_counted_too() -> None:
    peer = told(["search " + "x" * 300], won=True, member=1)
    group = Group(TASK, (told(["look"], won=False), peer))
    text = texts(create(Config(peer_chars=60)).looks(group)[0])[0][1]
    assert text.endswith("\n(1 actions left out here)")


def test_only_what_was_carried_out_is_shown_and_observations_on_request() -> None:
    peer = told(["go to desk 1", None, "move apple 1"], won=True, member=1)
    group = Group(TASK, (told(["look"], won=False), peer))
    plain = texts(create(Config()).looks(group)[0])[0][1]
    assert plain.endswith("\n1. go to desk 1\n2. move apple 1")
    seen = texts(create(Config(peer_observations=True)).looks(group)[0])[0][1]
    assert seen.endswith(
        "\n1. go to desk 1 -> Sight number 1 of member 1."
        "\n2. move apple 1 -> The last sight of member 1."
    )


def test_a_member_without_turns_has_no_look() -> None:
    group = Group(TASK, (told([], won=False), told(["look"], won=True, member=1)))
    assert [len(looks) for looks in create(Config()).looks(group)] == [0, 1]
    assert create(Config()).looks(Group(TASK, ())) == []


def test_settings_and_registry() -> None:
    assert load("hint", "hindsight").config_type is Config
    with pytest.raises(ConfigError, match="peer_chars is 3; use at least"):
        Config(peer_chars=3)
    assert not create(Config()).sees_future
