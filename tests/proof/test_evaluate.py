"""Evaluation: each game once, in order, whatever runs beside it; interrupted files go on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from doors import Doors, task

from turncredit.core.errors import ConfigError, DataError
from turncredit.core.types import Task, Trajectory
from turncredit.proof.evaluate import Options, evaluate, game_seed
from turncredit.proof.panel import choose, panel
from turncredit.proof.policies import ScriptedPlayer


def run(path: Path, policy: str = "walkthrough", env: Doors | None = None, **options: Any) -> dict:
    env = env or Doors()
    player = ScriptedPlayer(environment=env, policy=policy, max_turns=5)
    return asyncio.run(
        evaluate(
            choose(env, "all"), player, path, Options(**options), environment={"name": "doors"}
        )
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_walkthrough_wins_everything_and_every_game_is_whole(tmp_path: Path) -> None:
    summary = run(tmp_path / "a.jsonl")
    rows = lines(tmp_path / "a.jsonl")
    assert len(rows) == 13
    assert [row["id"] for row in rows[:-1]] == [t.id for t in choose(Doors(), "all").tasks]
    assert summary == rows[-1]
    assert summary["overall"]["success_rate"] == 1.0
    assert list(summary["per_split"]) == ["valid_seen", "valid_unseen"]
    assert summary["per_type"]["south"]["games"] == 2
    first = rows[0]
    assert first["turns"] == len(first["steps"]) == 2
    assert first["steps"][1]["action"] == "open 0"
    assert not (tmp_path / "a.jsonl.lock").exists()


def test_out_of_turns_is_truncated_and_no_success(tmp_path: Path) -> None:
    overall = run(tmp_path / "a.jsonl", "look")["overall"]
    assert (overall["successes"], overall["truncated"], overall["mean_turns"]) == (0, 12, 5)
    assert overall["stops"] == {"max_turns": 12}


def test_done_is_not_success(tmp_path: Path) -> None:
    overall = run(tmp_path / "a.jsonl", "look", Doors(patience=3))["overall"]
    assert (overall["successes"], overall["truncated"]) == (0, 0)
    assert overall["stops"] == {"failed": 12}


@pytest.mark.parametrize("policy", ["walkthrough", "random"])
def test_games_do_not_depend_on_how_many_run_at_once(tmp_path: Path, policy: str) -> None:
    files = [tmp_path / f"{n}.jsonl" for n in (1, 4, 16)]
    for file, window in zip(files, (1, 4, 16), strict=True):
        run(file, policy, games_per_batch=window)
    games = [file.read_bytes().splitlines()[:-1] for file in files]
    assert games[0] == games[1] == games[2]


def test_a_game_does_not_depend_on_the_rest_of_the_panel(tmp_path: Path) -> None:
    player = ScriptedPlayer(environment=Doors(), policy="random", max_turns=5)
    run(tmp_path / "all.jsonl", "random")
    alone = panel([task(4, "valid_unseen")])
    asyncio.run(evaluate(alone, player, tmp_path / "one.jsonl"))
    (one,) = [row for row in lines(tmp_path / "all.jsonl") if row.get("id") == alone.tasks[0].id]
    assert one["steps"] == lines(tmp_path / "one.jsonl")[0]["steps"]


def test_seeds_come_from_seed_and_task() -> None:
    assert game_seed(42, "a") == game_seed(42, "a")
    assert len({game_seed(42, "a"), game_seed(42, "b"), game_seed(43, "a")}) == 3
    assert 0 <= game_seed(42, "a") < 2**48


def test_a_broken_environment_is_reported_apart(tmp_path: Path) -> None:
    broken = frozenset({"valid_seen/door-001"})
    summary = run(tmp_path / "a.jsonl", env=Doors(broken=broken))
    overall = summary["overall"]
    assert (overall["env_errors"], overall["played"], overall["success_rate"]) == (1, 11, 1.0)
    assert "1 of 12" in summary["flags"][0]
    row = lines(tmp_path / "a.jsonl")[1]
    assert row["env_error"]
    assert not row["truncated"]
    assert row["error"] == "act('look') raised EnvError: the door fell off"


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    run(tmp_path / "a.jsonl")
    before = (tmp_path / "a.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="--overwrite-output"):
        run(tmp_path / "a.jsonl", "look")
    assert (tmp_path / "a.jsonl").read_bytes() == before
    run(tmp_path / "a.jsonl", "look", overwrite=True)
    assert lines(tmp_path / "a.jsonl")[-1]["overall"]["successes"] == 0


@pytest.mark.parametrize("kept", [0, 1, 5, 12])
@pytest.mark.parametrize("torn", [b"", b'{"kind":"game","ind', b'{"kind":'])
def test_an_interrupted_file_goes_on(tmp_path: Path, kept: int, torn: bytes) -> None:
    whole = tmp_path / "whole.jsonl"
    run(whole, "random")
    parts = whole.read_bytes().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(parts[:kept]) + torn)
    with pytest.raises(ConfigError, match="--resume"):
        run(cut, "random")
    if torn:
        with pytest.warns(UserWarning, match="torn last line"):
            summary = run(cut, "random", resume=True)
    else:
        summary = run(cut, "random", resume=True)
    assert summary["execution"]["resumed_after"] == kept
    assert cut.read_bytes().splitlines()[:-1] == whole.read_bytes().splitlines()[:-1]


def test_resuming_a_finished_file_plays_nothing(tmp_path: Path) -> None:
    run(tmp_path / "a.jsonl")
    before = (tmp_path / "a.jsonl").read_bytes()
    summary = run(tmp_path / "a.jsonl", resume=True)
    assert summary["overall"]["games"] == 12
    assert (tmp_path / "a.jsonl").read_bytes() == before


def test_resume_refuses_other_settings_and_other_panels(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    run(file)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(ConfigError, match="seed was 42, now 7"):
        run(file, seed=7, resume=True)
    with pytest.raises(ConfigError, match="policy"):
        run(file, "look", resume=True)
    with pytest.raises(ConfigError, match="another panel"):
        run(file, env=Doors(per_split=7), resume=True)


def test_resume_refuses_a_foreign_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"hello": 1}\n')
    with pytest.raises(DataError, match="not a file that turncredit eval wrote"):
        run(tmp_path / "a.jsonl", resume=True)


class Failing:
    settings: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.running = 0

    async def play(self, task: Task, seed: int) -> Trajectory:
        self.running += 1
        try:
            if task.id.endswith("002"):
                raise ConfigError("the service is gone")
            await asyncio.sleep(0.001)
            return await ScriptedPlayer(environment=Doors(), policy="look").play(task, seed)
        finally:
            self.running -= 1


def test_a_failing_policy_stops_it_and_keeps_what_was_played(tmp_path: Path) -> None:
    player = Failing()
    with pytest.raises(ConfigError, match="service is gone"):
        asyncio.run(evaluate(choose(Doors(), "all"), player, tmp_path / "a.jsonl"))
    assert [row["index"] for row in lines(tmp_path / "a.jsonl")] == [0, 1]
    assert player.running == 0


def test_a_replaced_output_waits_aside_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path, aside = tmp_path / "a.jsonl", tmp_path / "a.jsonl.old"
    run(path)
    before = path.read_bytes()
    for _ in range(2):  # a second interrupted try must not bury the whole one
        with pytest.raises(ConfigError, match="service is gone"):
            asyncio.run(evaluate(choose(Doors(), "all"), Failing(), path, Options(overwrite=True)))
        assert aside.read_bytes() == before
    run(path, "look", overwrite=True)
    assert not aside.exists()
