"""Comparing evaluations: only on one panel, only whole files, with the numbers worked by hand."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from doors import Doors, task

from turncredit.cli.main import main
from turncredit.core.errors import ConfigError, DataError
from turncredit.core.types import Observation, StopReason, Task, Trajectory, Turn
from turncredit.proof.compare import compare_files
from turncredit.proof.evaluate import evaluate
from turncredit.proof.panel import choose, panel
from turncredit.proof.policies import ScriptedPlayer
from turncredit.proof.results import read


class Told:
    """Wins the games it was told to; each game takes `turns` turns, `bad` of them inadmissible."""

    def __init__(self, wins: set[int], *, turns: int = 4, bad: int = 0, broken: int = -1) -> None:
        self._wins, self._turns, self._bad, self._broken = wins, turns, bad, broken
        self.settings: dict[str, Any] = {"policy": {"wins": sorted(wins)}}

    async def play(self, task: Task, seed: int) -> Trajectory:
        number = int(task.id[-3:])
        stop = StopReason.SUCCESS if number in self._wins else StopReason.MAX_TURNS
        if number == self._broken:
            stop = StopReason.ENV_ERROR
        turns = [
            Turn(start=0, logprob_N=(), action="x", admissible=k >= self._bad)  # type: ignore[arg-type]
            for k in range(self._turns)
        ]
        return Trajectory(
            task=task,
            member=0,
            seed=seed,
            snapshot_id="s",
            tokens=(),  # type: ignore[arg-type]
            prompt_length=0,
            turns=tuple(turns),
            reward=float(stop is StopReason.SUCCESS),
            stop=stop,
            opening=Observation(""),
            error="broken" if stop is StopReason.ENV_ERROR else "",
        )


def write(path: Path, player: Told, tasks: list[Task] | None = None) -> Path:
    chosen = tasks or [task(n, kind="south" if n >= 6 else "north") for n in range(10)]
    asyncio.run(evaluate(panel(chosen), player, path))
    return path


def test_the_numbers(tmp_path: Path) -> None:
    base = write(tmp_path / "base.jsonl", Told({0, 1, 2}, turns=6, bad=2))
    other = write(tmp_path / "other.jsonl", Told({1, 2, 3, 4, 5, 6, 7}, turns=4, bad=1))
    result = compare_files([base, other])
    assert result.arms == ("base", "other")
    assert list(result.sections) == ["all", "split valid_seen", "type north", "type south"]
    figures = [cell.figures for cell in result.sections["type north"]]
    assert [f["successes"] for f in figures] == [3, 5]
    assert [f["success_rate"] for f in figures] == [0.5, 5 / 6]
    assert [f["mean_invalid_actions"] for f in figures] == [2, 1]
    pair = result.pairs[0]
    assert (pair.section, pair.base, pair.other) == ("all", "base", "other")
    assert (pair.games, pair.gained, pair.lost) == (10, 5, 1)
    assert pair.difference == pytest.approx(0.4)
    assert pair.p_value == 2 * (1 + 6) / 64
    assert pair.interval[0] < 0.4 < pair.interval[1]
    assert (pair.invalid_difference, pair.invalid_interval) == (-1, (-1, -1))
    assert (pair.turns_difference, pair.turns_interval) == (-2, (-2, -2))
    south = next(p for p in result.pairs if p.section == "type south")
    assert (south.games, south.gained, south.lost, south.p_value) == (4, 2, 0, 0.5)
    assert result.notes == ()


def test_every_two_arms_are_compared(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{n}.jsonl", Told(set(range(n)))) for n in (2, 4, 6)]
    pairs = [p for p in compare_files(files).pairs if p.section == "all"]
    assert [(p.base, p.other, p.gained) for p in pairs] == [
        ("2", "4", 2),
        ("2", "6", 4),
        ("4", "6", 2),
    ]


def test_a_game_that_broke_in_one_arm_is_in_neither_side_of_the_pair(tmp_path: Path) -> None:
    base = write(tmp_path / "base.jsonl", Told({0, 1}))
    other = write(tmp_path / "other.jsonl", Told({0, 1}, broken=1))
    result = compare_files([base, other])
    assert (result.pairs[0].games, result.pairs[0].lost) == (9, 0)
    assert "1 of 10 games broke" in result.notes[0]
    json.dumps(result.to_dict(), allow_nan=False)


def test_other_panels_are_refused_by_name(tmp_path: Path) -> None:
    base = write(tmp_path / "base.jsonl", Told(set()), [task(n) for n in (1, 2, 3)])
    more = write(tmp_path / "more.jsonl", Told(set()), [task(n) for n in (1, 2, 4)])
    with pytest.raises(DataError, match="not on the same panel") as caught:
        compare_files([base, more])
    assert "only in base: valid_seen/door-003" in str(caught.value)
    assert "only in more: valid_seen/door-004" in str(caught.value)
    changed = [task(1), task(2, digest="f" * 64), task(3)]
    edited = write(tmp_path / "edited.jsonl", Told(set()), changed)
    with pytest.raises(DataError, match="same id, other contents: valid_seen/door-002"):
        compare_files([base, edited])
    turned = write(tmp_path / "turned.jsonl", Told(set()), [task(n) for n in (2, 1, 3)])
    with pytest.raises(DataError, match="another order"):
        compare_files([base, turned])


def test_other_settings_are_told(tmp_path: Path) -> None:
    paths = []
    for turns in (3, 5):
        player = ScriptedPlayer(environment=Doors(), policy="look", max_turns=turns)
        paths.append(tmp_path / f"{turns}.jsonl")
        asyncio.run(evaluate(choose(Doors(), "all"), player, paths[-1]))
    note, alike = compare_files(paths).notes
    assert "max_turns 3 / 5" in note
    assert "won the very same games (0 of" in alike


def test_unfinished_and_changed_files_are_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.jsonl", Told({1}))
    lines = whole.read_bytes().splitlines(keepends=True)

    def file(*parts: bytes) -> Path:
        path = tmp_path / "b.jsonl"
        path.write_bytes(b"".join(parts))
        return path

    for unfinished in (lines[:-1], lines[:3], [*lines[:-1], lines[-1][:-20]], []):
        with pytest.raises(DataError, match="--resume"):
            read(file(*unfinished))
    with pytest.raises(DataError, match="not the panel of its summary"):
        read(file(*lines[:-2], lines[-1]))
    with pytest.raises(DataError, match="expected game 1"):
        read(file(lines[0], lines[0], *lines[2:]))
    won = lines[0].replace(b'"success":false', b'"success":true')
    with pytest.raises(DataError, match="do not give the figures"):
        read(file(won, *lines[1:]))
    with pytest.raises(DataError, match="not a file that turncredit eval wrote"):
        read(file(b'{"loss":1}\n'))
    with pytest.raises(DataError, match="cannot read"):
        read(tmp_path / "none.jsonl")


def test_labels(tmp_path: Path) -> None:
    files = [write(tmp_path / name / "eval.jsonl", Told(set())) for name in ("a", "b")]
    assert compare_files(files).arms == ("a/eval", "b/eval")
    assert compare_files(files, labels=["x", "y"]).arms == ("x", "y")
    with pytest.raises(ConfigError, match="called the same"):
        compare_files(files, labels=["x", "x"])
    with pytest.raises(ConfigError, match="1 labels for 2"):
        compare_files(files, labels=["x"])
    with pytest.raises(ConfigError, match="at least two"):
        compare_files(files[:1])


# ── nothing to compare ───────────────────────────────────────────────────────────────────────


def test_the_same_games_twice_are_said_to_be_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "one.jsonl", Told({1, 2}))
    two = write(tmp_path / "two.jsonl", Told({1, 2}))
    (note,) = compare_files([one, two]).notes
    assert "one and two are identical in every game" in note
    assert "both files name one policy" in note
    assert "say nothing" in note
    assert main(["compare", str(one), str(two)]) == 0
    assert "! one and two are identical in every game" in capsys.readouterr().out


def test_another_name_for_the_same_weights_is_suspected(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl"]
    for path, wins in zip(paths, ({1, 2}, {1, 2}, {1, 3}), strict=True):
        player = Told(wins)
        player.settings = {"policy": {"model_path": path.stem}}
        write(path, player)
    (note,) = compare_files(paths).notes
    assert "a and b are identical" in note
    assert "probably the same weights" in note


def test_the_same_outcomes_in_other_ways_are_no_proof(tmp_path: Path) -> None:
    quick = write(tmp_path / "quick.jsonl", Told(set(), turns=2))
    slow = write(tmp_path / "slow.jsonl", Told(set(), turns=4))
    (note,) = compare_files([quick, slow]).notes
    assert "won the very same games (0 of 10)" in note
    assert "no proof" in note
