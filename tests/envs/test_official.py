"""The official games: all of them listed, the evaluation ones played."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from turncredit.core.types import Task
from turncredit.envs import alfworld
from turncredit.envs.check import check_environment
from turncredit.envs.household import files, transcripts

COUNTS = {
    "train": [790, 308, 650, 459, 533, 813],
    "valid_seen": [35, 13, 27, 16, 25, 24],
    "valid_unseen": [24, 18, 31, 23, 21, 17],
    "valid_train": [46, 19, 37, 25, 28, 45],
}


@pytest.mark.parametrize("split", files.SPLITS)
def test_counts_per_split_and_type(official_games: Path, split: str) -> None:
    found = files.discover(official_games, split)
    counts = Counter(game.task_type for game in found.games)
    assert [counts[t] for t in files.TASK_TYPES] == COUNTS[split]
    assert not found.excluded
    assert len({game.sha256 for game in found.games}) == len(found.games)


@pytest.mark.parametrize("split", ["valid_seen", "valid_unseen", "train"])
def test_walkthroughs_are_admissible_and_win(official_games: Path, split: str) -> None:
    games = list(files.discover(official_games, split).games)
    if split == "train":
        games = Random(0).sample(games, 150)
    for game in games:
        loaded = files.read(game.path, sha256=game.sha256)
        play = loaded.game.play()
        for command in loaded.walkthrough:
            assert not play.won
            assert command in play.admissible, (game.id, command)
            play.act(command)
        assert play.won, game.id


def test_recorded_transcripts(official_games: Path, oracles_dir: Path) -> None:
    recorded = list(transcripts.read(oracles_dir / "alfworld" / "transcripts.jsonl.gz"))
    assert len(recorded) == 36
    for transcript in recorded:
        loaded = files.read(files.path_of(official_games, transcript.game))
        assert transcripts.replay(transcript, loaded) is None


def environment(root: Path) -> alfworld.AlfWorld:
    return alfworld.create(alfworld.Config(data_root=str(root)))


def test_conformance(official_games: Path) -> None:
    one, two = (environment(official_games / "valid_seen") for _ in range(2))
    results = asyncio.run(check_environment(one, twin=two))
    assert [r for r in results if not r.passed] == []


def test_the_opening_is_split_into_room_and_goal(official_games: Path) -> None:
    home = environment(official_games)
    task = home.tasks("valid_seen")[0]
    assert task.payload["goal"] == "look at alarmclock under the desklamp."
    opening = asyncio.run(home.episode(task).start())
    assert opening.text.startswith("You are in the middle of a room.")
    assert "Your task is to" not in opening.text
    assert "Welcome" not in opening.text


def test_looking_for_fifty_steps_is_not_success(official_games: Path) -> None:
    async def look(task: Task) -> bool:
        episode = home.episode(task)
        await episode.start()
        steps = [await episode.act("look") for _ in range(50)]
        return any(step.done or step.success or step.reward for step in steps)

    home = environment(official_games)
    tasks = home.tasks("valid_unseen")[::10]
    assert not any(asyncio.run(look(task)) for task in tasks)


def test_solving_one_of_two_interleaved_episodes_leaves_the_other(official_games: Path) -> None:
    async def both(task: Task) -> tuple[bool, bool]:
        solver, idler = home.episode(task), home.episode(task)
        await solver.start()
        await idler.start()
        for command in task.payload["walkthrough"]:
            solved = await solver.act(command)
            idle = await idler.act("look")
        return solved.success, idle.success

    home = environment(official_games)
    for task in home.tasks("valid_unseen")[:5]:
        assert asyncio.run(both(task)) == (True, False)


def test_the_panel_does_not_depend_on_folder_creation(official_games: Path, tmp_path: Path) -> None:
    listed = [game.id for game in files.discover(official_games, "valid_unseen").games][:20]
    for name, order in (("a", listed), ("b", list(reversed(listed)))):
        for game_id in order:
            target = tmp_path / name / game_id
            target.parent.mkdir(parents=True)
            shutil.copy(official_games / game_id, target)
    one, two = (environment(tmp_path / name).tasks("valid_unseen") for name in "ab")
    assert one == two
    assert [task.id for task in one] == listed
