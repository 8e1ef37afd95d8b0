"""A source that denies seeing the future holds no later observation; one that does is caught."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import TASK, looks_of, mixed, nobody, played_household, told

from turncredit.core.leaks import SHORTEST, leak
from turncredit.core.looks import Insertion, Look, LookingHint, Preparing
from turncredit.core.registry import load, names
from turncredit.core.types import Group, Observation, Trajectory
from turncredit.envs import toy
from turncredit.hints import hindsight, reflection
from turncredit.proof.policies import ScriptedPlayer

STORY = told(["go to desk 1", "take apple 1", "look"], won=False)


def at(place: object, text: str) -> list[Look]:
    return [Look((Insertion(text, place),))]  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["system", "opening", 0, 1])
def test_a_later_observation_is_found(place: object) -> None:
    found = leak(STORY, at(place, "Remember:  SIGHT number 2\nof member 0. So act."))
    assert found is not None
    assert "first shown at turn 2" in found
    assert f"at turn {place if isinstance(place, int) else 0} " in found


def test_the_final_observation_counts_as_after_the_last_turn() -> None:
    assert "first shown at turn 3" in (leak(STORY, at(2, "The last sight of member 0.")) or "")


@pytest.mark.parametrize("place", [2, 1])
def test_what_was_shown_by_then_is_free(place: int) -> None:
    assert leak(STORY, at(2, f"Sight number {place} of member 0.")) is None


def test_the_task_line_the_opening_and_own_words_are_free() -> None:
    goal, room = "find the yellow submarine at once", "A kitchen with a fridge and a window."
    own = "I think the keys lie in the drawer."
    story = replace(
        STORY,
        task=replace(TASK, payload={"goal": goal}),
        opening=Observation(room),
        turns=(replace(STORY.turns[0], text=own), *STORY.turns[1:]),
        final_observation=f"{goal} {room} {own}",
    )
    assert leak(story, at(1, goal)) is None
    assert leak(story, at(0, room)) is None
    assert leak(story, at(1, own)) is None
    later = replace(story, final_observation=own)
    assert leak(later, at(0, own)) is not None  # at turn 0 it had not been said


def test_a_sentence_or_line_of_a_long_observation_is_enough() -> None:
    long = "You open the drawer 2. In it, you see a golden key 7.\nThe clock strikes the hour."
    story = replace(STORY, final_observation=long)
    assert leak(story, at(0, "hm: In it, you see a golden key 7. ok")) is not None
    assert leak(story, at(0, "the clock strikes the hour.")) is not None


def test_short_texts_are_shared_by_chance() -> None:
    story = replace(STORY, final_observation="x" * (SHORTEST - 1))
    assert leak(story, at(0, story.final_observation)) is None
    assert leak(replace(story, final_observation="x" * SHORTEST), at(0, "x" * SHORTEST))


def test_a_trajectory_without_turns() -> None:
    assert leak(told([], won=False), at("system", "nothing at all was seen here")) is None
    assert leak(told([], won=False), at("system", "The last sight of member 0.")) is None  # turn 0
    assert leak(told([], won=False), []) is None


@settings(max_examples=50)
@given(st.integers(0, 4), st.integers(0, 5))
def test_only_the_order_of_turns_decides(place: int, shown: int) -> None:
    story = told(["look"] * 5, won=False)
    sights = [turn.observation for turn in story.turns] + [story.final_observation]
    assert (leak(story, at(place, f"<{sights[shown]}>")) is not None) == (shown > place)


# ── all sources ──────────────────────────────────────────────────────────────────────────────

FUTURE_BLIND = {"contrast", "hindsight", "reference", "skillbank", "toy_key"}


def blind(name: str) -> object | None:
    component = load("hint", name)
    hint = component.create(component.config_type())
    return None if isinstance(hint, LookingHint) and hint.sees_future else hint


def played_toy(index: int) -> Group:
    environment = toy.create(toy.Config())
    task = environment.tasks("train")[index]
    policies = ("walkthrough", "random", "random")

    async def play() -> list[Trajectory]:
        return [
            await ScriptedPlayer(environment=environment, policy=p).play(task, seed)
            for seed, p in enumerate(policies)
        ]

    members = asyncio.run(play())
    return Group(task, tuple(replace(t, member=i, snapshot_id="s") for i, t in enumerate(members)))


@pytest.mark.parametrize("name", [name for name in names("hint") if blind(name) is not None])
def test_no_source_that_denies_it_holds_the_future(name: str) -> None:
    hint, inserted = blind(name), 0
    groups = [played_toy(i) for i in range(4)] if name == "toy_key" else []
    groups = groups or [played_household(i) for i in range(6)]  # every type of task
    assert any(not t.success for group in groups for t in group.trajectories)
    for group in groups:
        assert any(t.success for t in group.trajectories)
        for trajectory, looks in zip(group.trajectories, looks_of(hint, group), strict=True):
            assert leak(trajectory, looks) is None
            inserted += sum(len(look.insertions) for look in looks)
    assert (inserted > 0) == (name in FUTURE_BLIND)


def test_the_sources_that_read_whole_trajectories_say_so() -> None:
    seeing = {name for name in names("hint") if blind(name) is None}
    assert seeing == {"guidance", "reflection"}
    assert hindsight.create(hindsight.Config(peer_observations=True)).sees_future


class Prophet:
    """A fake that denies what it does."""

    sees_future = False

    def looks(self, group: Group) -> list[list[Look]]:
        return [
            [Look((Insertion(f"You will read: {t.final_observation}", 0),), turns=(0,))]
            for t in group.trajectories
        ]


def test_a_leaking_fake_is_caught_on_every_game() -> None:
    for index in range(6):
        group = played_household(index)
        pairs = zip(group.trajectories, Prophet().looks(group), strict=True)
        # A random walk may end where a text it knows is shown again; a win never does.
        caught = {t.member: leak(t, looks) for t, looks in pairs}
        assert caught[0] is not None
        assert "turn 0" in caught[0]


def test_a_peers_observations_are_caught_where_they_are_ones_own_future() -> None:
    environment_group = played_household(0, randoms=0)
    winner = environment_group.trajectories[0]
    loser = replace(winner, member=1, stop=told(["x"], won=False).stop, reward=0.0)
    group = Group(winner.task, (winner, loser))
    for shown, is_leak in ((False, False), (True, True)):
        config = hindsight.Config(peer_observations=shown, peer_chars=4000)
        looks = hindsight.create(config).looks(group)[1]
        assert (leak(loser, looks) is not None) == is_leak


def test_a_preparing_source_is_recognised_as_one() -> None:
    hint = reflection.create(reflection.Config(analyser="rules"))
    assert isinstance(hint, Preparing)
    assert isinstance(hint, LookingHint)
    assert asyncio.run(hint.prepare([mixed()], nobody))["reflection/asked"] == 0
