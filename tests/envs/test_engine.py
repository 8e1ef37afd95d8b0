from __future__ import annotations

import contextlib
import threading
import timeit
from random import Random

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.core.errors import DataError
from turncredit.envs.household.domain import HELP, TASK_TYPES
from turncredit.envs.household.engine import Game, Play
from turncredit.envs.household.generator import generate
from turncredit.envs.household.pddl import parse
from turncredit.envs.household.verify import MixedCommands

Shown = tuple[str, tuple[str, ...], bool, str]


def shown(play: Play) -> Shown:
    return play.text, play.admissible, play.won, play.key()


def run(play: Play, *commands: str) -> str:
    for command in commands:
        assert play.admits(command), (command, play.admissible)
        play.act(command)
    return play.text


def made(seed: int) -> Game:
    game = generate(TASK_TYPES[seed % 6], seed, split="train", size="small")
    return Game.from_pddl(game.problem, game.task)


# ── what the player reads ────────────────────────────────────────────────────────────────────


def test_opening_names_receptacles_downwards_and_the_task() -> None:
    assert tiny.game().play().text == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
        "around you, you see a drawer 1, a fridge 1, a microwave 1, a shelf 2, a shelf 1, and a "
        "sinkbasin 1.\n\nYour task is to: put a clean mug in shelf."
    )


def test_look_in_mid_room_after_the_opening_sees_nothing() -> None:
    assert run(tiny.game().play(), "look").endswith("you see nothing.")


def test_shared_location() -> None:
    play = tiny.game().play()
    assert run(play, "go to shelf 2") == "You arrive at shelf 2. On the shelf 2, you see a mug 2."
    assert not play.admits("go to shelf 1"), "one already stands there"
    assert (
        run(play, "look") == "You are facing the shelf 2, and shelf 1. Next to it, you see nothing."
    )
    run(play, "take mug 2 from shelf 2", "move mug 2 to shelf 1")
    # Taken out of one, put into its neighbour: the domain then also lists it beside.
    assert run(play, "look").endswith("Next to it, you see a mug 2.")
    run(play, "take mug 2 from shelf 1", "move mug 2 to shelf 2")
    assert run(play, "look").endswith("Next to it, you see a mug 2.")


def test_open_close_and_a_lamp_used_through_the_lid() -> None:
    play = tiny.game().play()
    assert run(play, "go to drawer 1") == "You arrive at drawer 1. The drawer 1 is closed."
    assert run(play, "use lamp 1") == "You turn on the lamp 1."
    assert run(play, "use lamp 1") == "You turn on the lamp 1."
    opened = "You open the drawer 1. The drawer 1 is open. In it, you see a lamp 1."
    assert run(play, "open drawer 1") == opened
    assert not play.admits("take lamp 1 from drawer 1"), "a lamp cannot be picked up"
    assert run(play, "close drawer 1") == "You close the drawer 1."


def test_clean_heat_cool_and_how_it_reads() -> None:
    play = tiny.game().play()
    run(play, "go to shelf 1")
    assert play.visible["shelf 2"] == ("mug 2",)
    run(play, "take mug 2 from shelf 2")
    assert run(play, "examine mug 2") == "There's nothing special about mug 2."
    run(play, "go to microwave 1")
    assert run(play, "heat mug 2 with microwave 1") == "You heat the mug 2 using the microwave 1."
    assert run(play, "examine mug 2") == "This is a hot mug 2."
    run(play, "go to fridge 1", "cool mug 2 with fridge 1")
    assert run(play, "examine mug 2") == "This is a cold mug 2."
    run(play, "go to sinkbasin 1", "clean mug 2 with sinkbasin 1")
    assert run(play, "examine mug 2") == "This is a cool and clean mug 2."
    assert run(play, "inventory") == "You are carrying: a mug 2."
    assert not play.won
    assert (
        run(play, "go to shelf 2", "move mug 2 to shelf 1") == "You move the mug 2 to the shelf 1."
    )
    assert play.won
    run(play, "take mug 2 from shelf 1")
    assert not play.won, "won is a state, not an event"


def test_slice_and_boxes_and_help() -> None:
    play = tiny.game().play()
    run(play, "go to shelf 1", "take knife 1 from shelf 1")
    assert run(play, "slice bread 1 with knife 1") == "You sliced the bread 1 with the knife 1."
    run(play, "move knife 1 to shelf 1", "take bread 1 from shelf 1")
    assert run(play, "examine bread 1") == "This is a sliced bread 1."
    run(play, "move bread 1 to shelf 2", "take box 1 from shelf 1")
    assert run(play, "examine box 1") == "This is a normal box 1. In it, you see a cd 1."
    assert run(play, "help") == HELP


@pytest.mark.parametrize(
    "command", ["", "Look", "take nothing", "go to shelf 9", "lookk", "look 1"]
)
def test_an_unknown_command_changes_nothing(command: str) -> None:
    play = tiny.game().play()
    before = shown(play)[1:]
    play.act(command)
    assert play.text == "Nothing happens."
    assert shown(play)[1:] == before


def test_surrounding_blanks_do_not_matter() -> None:
    play = tiny.game().play()
    play.act("  go to fridge 1\n")
    assert play.text == "You arrive at fridge 1. The fridge 1 is closed."


# ── malformed problems ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected one expression"),
        ("(define (problem x)", "missing"),
        ("(define (problem x)))", "too many"),
        ("hello", "expected (define"),
        ("(define (problem x) (:objects) (:init))", "no :goal"),
        ("(" * 100 + ")" * 100, "deeper"),
        (tiny.problem(facts=tiny.FACTS + "(pickupabel Mug_bar_1)"), 'Did you mean "pickupable"?'),
        (tiny.problem(facts=tiny.FACTS + "(pickupable Mug_bar_9)"), "not declared"),
        (tiny.problem(facts=tiny.FACTS + "(pickupable Mug_bar_1 Mug_bar_2)"), "takes 1"),
        (tiny.problem(facts=tiny.FACTS + "(atLocation agent1 loc_bar_2)"), "at one location"),
        (tiny.problem(facts="(atLocation agent1 loc_bar_0)"), "location"),
        (tiny.problem(facts=tiny.FACTS + "mug"), "not a fact"),
        (tiny.problem(objects="- object"), "dangling"),
        (tiny.problem(goal="(isClean ?o)"), "neither declared nor quantified"),
        (tiny.problem(goal="(isShiny Mug_bar_1)"), "no predicate"),
        (tiny.problem(goal="(checked Mug_bar_1)"), "does not follow"),
        (tiny.problem(goal="(exists (?o - object) ?o)"), "not an expression"),
        (tiny.problem(goal="(isClean Mug_bar_1) (isClean Mug_bar_2)"), "exactly one"),
    ],
)
def test_malformed_problems_say_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(DataError, match="PDDL") as error:
        Game.from_pddl(text, "x")
    assert says in str(error.value)


@given(st.text(alphabet="()ab-?;\n ", max_size=80))
def test_the_reader_returns_or_refuses_but_never_breaks(text: str) -> None:
    with contextlib.suppress(DataError):
        parse(text)


# ── goals ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("goal", "before", "after"),
    [
        ("(opened Drawer_bar_1)", False, True),
        ("(not (opened Drawer_bar_1))", True, False),
        ("(or (opened Fridge_bar_1) (opened Drawer_bar_1))", False, True),
        ("(forall (?r - receptacle) (not (opened ?r)))", True, False),
        ("(exists (?r - receptacle) (and (openable ?r) (opened ?r)))", False, True),
        ("(exists (?a - agent) (atLocation ?a loc_bar_2))", False, True),
        ("(exists (?o - object) (exists (?o - object) (isCool ?o)))", True, True),
        ("(exists (?x - object ?y - object) (and (isCool ?x) (not (= ?x ?y))))", True, True),
        (
            "(exists (?x - object ?y - object) (and (isCool ?x) (isCool ?y) (not (= ?x ?y))))",
            False,
            False,
        ),
        ("(and)", True, True),
        ("(exists (?n - nothing) (and))", False, False),
    ],
)
def test_goals(goal: str, before: bool, after: bool) -> None:
    play = tiny.game(goal=goal).play()
    assert play.won is before
    run(play, "go to drawer 1", "open drawer 1")
    assert play.won is after


# ── properties ───────────────────────────────────────────────────────────────────────────────


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 59), st.integers(0, 2**32))
def test_random_play(game_seed: int, seed: int) -> None:
    game = made(game_seed)
    play, choose = game.play(), MixedCommands(Random(seed))
    for _ in range(40):
        text, admissible, won, key = shown(play)
        assert list(admissible) == sorted(set(admissible))
        command = choose(admissible)
        twin, bystander = play.clone(), play.clone()
        play.act(command)
        assert shown(bystander) == (text, admissible, won, key), "a clone is not touched"
        twin.act(command)
        assert shown(twin) == shown(play), "a clone goes the same way"
        assert (play.text == "Nothing happens.") is (command.strip() not in admissible)
        if command.strip() not in admissible:
            assert shown(play)[1:] == (admissible, won, key)
        assert (play.holding is None) or f"examine {play.holding}" in play.admissible


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 59), st.integers(0, 2**32))
def test_taking_and_putting_back_restores_the_state(game_seed: int, seed: int) -> None:
    play, rng = made(game_seed).play(), Random(seed)
    for _ in range(30):
        takes = [c for c in play.admissible if c.startswith("take ")]
        if takes:
            command, key = rng.choice(takes), play.key()
            back = command.replace("take ", "move ").replace(" from ", " to ")
            there = play.clone()
            run(there, command)
            if there.admits(back):
                run(there, back)
                assert there.key() == key
                assert there.admissible == play.admissible
        play.act(rng.choice(play.admissible))


def test_threads_do_not_disturb_each_other() -> None:
    game = made(3)

    def story(seed: int) -> list[Shown]:
        play, choose = game.play(), MixedCommands(Random(seed))
        frames = []
        for _ in range(150):
            play.act(choose(play.admissible))
            frames.append(shown(play))
        return frames

    alone = [story(seed) for seed in range(8)]
    together: list[list[Shown]] = [[] for _ in range(8)]
    threads = [
        threading.Thread(target=lambda seed=seed: together.__setitem__(seed, story(seed)))
        for seed in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_a_clone_costs_microseconds() -> None:
    play = made(0).play()
    assert play.admissible
    best = min(timeit.repeat(play.clone, number=1000, repeat=5)) / 1000
    assert best < 20e-6


def test_the_key_does_not_depend_on_the_way() -> None:
    one, other = tiny.game().play(), tiny.game().play()
    run(one, "go to drawer 1", "open drawer 1", "go to fridge 1")
    run(other, "go to fridge 1", "look", "go to drawer 1", "open drawer 1", "go to fridge 1")
    assert one.key() == other.key()
    run(one, "open fridge 1")
    assert one.key() != other.key()
