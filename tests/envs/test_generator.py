"""Generated games: reproducible, solvable, on disjoint layouts, in the official file format."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.core.errors import ConfigError
from turncredit.envs.household import files, layouts, rooms
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.engine import Game
from turncredit.envs.household.generator import SPLITS, generate, to_bytes, to_file_json

any_game = st.builds(
    generate,
    st.sampled_from(TASK_TYPES),
    st.integers(0, 10**9),
    split=st.sampled_from(SPLITS),
    size=st.sampled_from(rooms.SIZES),
)


@settings(max_examples=100, deadline=None)
@given(any_game)
def test_every_game_is_won_by_its_walkthrough_and_not_before(game):
    play = Game.from_pddl(game.problem, game.task).play()
    assert play.text.endswith(f"Your task is to: {game.task}")
    for command in game.walkthrough:
        assert not play.won
        assert command in play.admissible
        play.act(command)
    assert play.won


@settings(max_examples=40, deadline=None)
@given(any_game)
def test_every_size_stays_within_its_bounds(game):
    size = game.id.split("/")[1]
    opening = Game.from_pddl(game.problem, game.task)
    objects = sum(len(things) for things in opening.opening.contents.values())
    fewest, most = rooms.RECEPTACLES[size]
    assert fewest <= len(opening.receptacles) <= most
    assert 3 <= objects <= rooms.OBJECTS[size][1]


@settings(max_examples=40, deadline=None)
@given(any_game)
def test_things_lie_only_where_they_may_be_put(game):
    opening = Game.from_pddl(game.problem, game.task)
    for receptacle, things in opening.opening.contents.items():
        for thing in things:
            if thing in opening.having["pickupable"]:
                assert opening.object_types[thing] <= opening.accepts[receptacle]


def test_the_same_arguments_give_the_same_bytes_under_any_hash_seed():
    code = (
        "import hashlib; from turncredit.envs.household.generator import *;"
        "from turncredit.envs.household.domain import TASK_TYPES;"
        "games = [generate(t, 0, split=p, size=z) for t in TASK_TYPES"
        " for p, z in (('train', 'small'), ('valid_unseen', 'medium'))];"
        "print(hashlib.sha256(b''.join(map(to_bytes, games))).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(digests) == 1


def test_seeds_splits_and_types_differ():
    texts = {
        generate(task_type, seed, split=split, size="small").problem.partition("\n")[2]
        for task_type in TASK_TYPES
        for seed in range(20)
        for split in SPLITS
    }
    assert len(texts) == len(TASK_TYPES) * 20 * len(SPLITS)


@pytest.mark.parametrize("size", rooms.SIZES)
def test_no_held_out_layout_is_a_training_layout(size):
    for room in rooms.ROOMS:
        train = layouts.pool(room, size, unseen=False)
        unseen = layouts.pool(room, size, unseen=True)
        assert len(train) > 60
        assert len(unseen) > 15
        counts = {True: set(), False: set()}
        for side, pool in ((False, train), (True, unseen)):
            for layout in pool:
                counts[side].add(tuple(sorted(Counter(layout.receptacles).items())))
                assert layouts.held_out(layout.layout_id) is side
        assert not counts[True] & counts[False]


def test_splits_use_the_layouts_of_their_side():
    for seed in range(60):
        for split in SPLITS:
            game = generate(TASK_TYPES[seed % 6], seed, split=split, size="small")
            assert layouts.held_out(game.layout_id) is (split == "valid_unseen")


def test_layouts_of_valid_seen_are_training_layouts():
    train = {g.layout_id for room in rooms.ROOMS for g in layouts.pool(room, "small", unseen=False)}
    seen = {
        generate(TASK_TYPES[i % 6], i, split="valid_seen", size="small").layout_id
        for i in range(60)
    }
    assert seen <= train


def test_the_file_is_read_back_equal(tmp_path):
    game = generate("pick_heat_then_place_in_recep", 3, split="train", size="small")
    path = tmp_path / "game.tw-pddl"
    path.write_bytes(to_bytes(game))
    assert json.loads(path.read_bytes()) == to_file_json(game)
    loaded = files.read(path)
    assert loaded.task_line == game.task
    assert loaded.walkthrough == game.walkthrough
    assert loaded.problem == game.problem


def test_a_written_game_is_discovered_like_an_official_one(tmp_path):
    game = generate("pick_cool_then_place_in_recep", 1, split="train", size="small")
    folder = tmp_path / "train" / f"{game.task_type}-1" / "trial_1"
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_bytes(to_bytes(game))
    found = files.discover(tmp_path, "train")
    assert [g.task_type for g in found.games] == [game.task_type]


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (("pick_and_place_simpel", "train", "small"), 'Did you mean "pick_and_place_simple"?'),
        (("pick_and_place_simple", "trian", "small"), 'Did you mean "train"?'),
        (("pick_and_place_simple", "train", "smal"), 'Did you mean "small"?'),
    ],
)
def test_unknown_words_are_refused_with_the_nearest(arguments, cure):
    task_type, split, size = arguments
    with pytest.raises(ConfigError, match="Did you mean") as error:
        generate(task_type, 0, split=split, size=size)
    assert cure in str(error.value)
