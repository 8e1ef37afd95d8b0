"""The 274 official evaluation games: a walkthrough wins all, looking around wins none."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from turncredit.envs.alfworld import Config, create
from turncredit.proof.evaluate import Options, evaluate
from turncredit.proof.panel import choose
from turncredit.proof.policies import ScriptedPlayer
from turncredit.proof.results import Results, read


def played(
    root: Path, output: Path, policy: str, window: int = 16, limit: int | None = None
) -> Results:
    env = create(Config(data_root=str(root)))
    player = ScriptedPlayer(environment=env, policy=policy)
    options = Options(games_per_batch=window)
    asyncio.run(evaluate(choose(env, "all", limit), player, output, options))
    return read(output)


def test_walkthroughs_win_all_274(official_games: Path, tmp_path: Path) -> None:
    summary = played(official_games, tmp_path / "a.jsonl", "walkthrough").summary
    assert summary["overall"]["successes"] == summary["overall"]["games"] == 274
    assert summary["overall"]["env_errors"] == summary["overall"]["mean_invalid_actions"] == 0
    assert [f["games"] for f in summary["per_split"].values()] == [140, 134]
    assert len(summary["per_type"]) == 6


def test_looking_around_is_truncated_not_done(official_games: Path, tmp_path: Path) -> None:
    overall = played(official_games, tmp_path / "a.jsonl", "look").summary["overall"]
    assert (overall["games"], overall["successes"], overall["truncated"]) == (274, 0, 274)
    assert overall["stops"] == {"max_turns": 274}


def test_the_panel_does_not_depend_on_workers_or_the_order_of_folders(
    official_games: Path, tmp_path: Path
) -> None:
    """Worker counts 1, 7 and 128, and two orders of creating the folders: one result."""
    games = [path.parent for path in official_games.glob("valid_*een/*/*/game.tw-pddl")]
    chosen = random.Random(0).sample(sorted(games), 40)
    roots = []
    for name, order in (("one", chosen), ("other", chosen[::-1])):
        roots.append(tmp_path / name)
        for folder in order:
            shutil.copytree(folder, roots[-1] / folder.relative_to(official_games))
    files = []
    for i, (root, window) in enumerate([(roots[0], 1), (roots[0], 7), (roots[1], 128)]):
        files.append(tmp_path / f"{i}.jsonl")
        played(root, files[-1], "random", window=window)
    rows = [file.read_bytes().splitlines()[:-1] for file in files]
    assert len(rows[0]) == 40
    assert rows[0] == rows[1] == rows[2]


def test_two_games_at_once_do_not_touch_each_other(official_games: Path) -> None:
    """One is solved in between the turns of the other, which must stay unsolved."""
    env = create(Config(data_root=str(official_games)))
    one, other = choose(env, "valid_seen").tasks[:2]

    async def interleaved() -> tuple[bool, bool]:
        first, second = env.episode(one), env.episode(other)
        await first.start()
        await second.start()
        solved = idle = False
        for command in one.payload["walkthrough"]:
            solved = (await first.act(command)).success
            idle = idle or (await second.act("look")).success
        return solved, idle

    assert asyncio.run(interleaved()) == (True, False)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_per_split(official_games: Path, tmp_path: Path, limit: int) -> None:
    summary = played(official_games, tmp_path / "a.jsonl", "walkthrough", limit=limit).summary
    assert [f["games"] for f in summary["per_split"].values()] == [limit, limit]
