"""The experts win: alone, after interference, from unseen states, and on the official games."""

from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.core.errors import DataError
from turncredit.envs.household import files, rooms
from turncredit.envs.household.aims import aim_of
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.engine import Game
from turncredit.envs.household.experts import ExploringExpert, solve
from turncredit.envs.household.generator import generate


@cache
def _game(index: int, size: rooms.Size, split: str = "valid_unseen") -> Game:
    made = generate(TASK_TYPES[index % len(TASK_TYPES)], index, split=split, size=size)
    return Game.from_pddl(made.problem, made.task)


def _turns(game: Game, expert: ExploringExpert, limit: int = 150) -> int | None:
    """Turns to win, or None."""
    play = game.play()
    for turn in range(limit):
        if play.won:
            return turn
        command = expert.act(play)
        assert command in play.admissible
        play.act(command)
    return limit if play.won else None


@pytest.mark.parametrize(
    ("size", "games", "mean"), [("small", 180, 9.0), ("medium", 60, 12.0), ("full", 30, 18.0)]
)
def test_exploring_wins_every_game_in_few_turns(size, games, mean):
    turns = [_turns(_game(i, size), ExploringExpert(_game(i, size), i)) for i in range(games)]
    assert None not in turns
    assert sum(turns) / games < mean


def test_exploring_only_reads_what_a_player_reads():
    class Shown:
        """Text and admissible commands of a play, and nothing else of it."""

        def __init__(self, play):
            self.text, self.admissible = play.text, play.admissible

    for i in range(24):
        game = _game(i, "small")
        play, expert = game.play(), ExploringExpert(game, i)
        for _ in range(40):
            if play.won:
                break
            play.act(expert.act(Shown(play)))
        assert play.won


def test_the_search_order_is_the_seeds():
    game = _game(0, "full")
    plays = []
    for seed in (1, 1, 2):
        play, expert = game.play(), ExploringExpert(game, seed)
        plays.append([])
        while not play.won:
            plays[-1].append(expert.act(play))
            play.act(plays[-1][-1])
    assert plays[0] == plays[1] != plays[2]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(("small", "medium")), st.randoms())
def test_labels_lead_home_after_any_interference(index, size, random):
    game = _game(index, size)
    play, expert = game.play(), ExploringExpert(game, index)
    for _ in range(15):
        if play.won:
            return
        assert expert.act(play) in play.admissible
        play.act(random.choice(play.admissible))
    for _ in range(120):
        if play.won:
            return
        play.act(expert.act(play))
    pytest.fail("lost")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.randoms())
def test_an_expert_that_joins_late_still_wins(index, random):
    game = _game(index, "small")
    play = game.play()
    for _ in range(15):
        play.act(random.choice(play.admissible))
    expert = ExploringExpert(game, index)
    for _ in range(120):
        if play.won:
            return
        play.act(expert.act(play))
    pytest.fail("lost")


@pytest.mark.parametrize("size", rooms.SIZES)
def test_solving_needs_no_search(size):
    for i in range(24):
        game = _game(i, size)
        commands = solve(game)
        assert 3 <= len(commands) <= 12
        assert len(commands) <= (_turns(game, ExploringExpert(game, 0)) or 0)


def test_official_games_are_solved_and_explored(official_games):
    paths = sorted(official_games.glob("*/*/*/game.tw-pddl"))
    chosen = Random(0).sample(paths, 100)
    explored, longer = [], 0
    for i, path in enumerate(chosen):
        loaded = files.read(path)
        commands = solve(loaded.game)
        assert commands, path
        longer += len(commands) > len(loaded.walkthrough)
        explored.append(_turns(loaded.game, ExploringExpert(loaded.game, i), 100))
    assert None not in explored
    # Some problems put one thing in two places at once; treated, it then is where it should be.
    assert longer <= 0.06 * len(chosen)


def test_aims_are_read_from_goals():
    aims = [aim_of(_game(i, "small").goal) for i in range(6)]
    assert [aim.verb for aim in aims] == ["", "", "clean", "heat", "cool", ""]
    assert [aim.tool for aim in aims] == ["", "", "sinkbasin", "microwave", "fridge", ""]
    assert [aim.copies for aim in aims] == [1, 1, 1, 1, 1, 2]
    assert [aim.lamp for aim in aims] == ["", "desklamp", "", "", "", ""]


def test_other_goals_are_refused():
    with pytest.raises(DataError, match="none of the six"):
        aim_of(("exists", ("?r", "-", "receptacle"), ("opened", "?r")))


def test_a_game_that_cannot_be_won_has_no_walkthrough():
    game = _game(0, "small")
    made = generate(TASK_TYPES[0], 0, split="valid_unseen", size="small")
    target = aim_of(game.goal).target
    lines = [line for line in made.problem.splitlines() if "pickupable" not in line]
    assert target
    assert solve(Game.from_pddl("\n".join(lines), made.task)) == []
