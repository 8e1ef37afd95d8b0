"""Outputs of evaluations that were torn, edited, or are no outputs at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turncredit.cli.main import main

EVAL = ["eval", "--env", "toy", "--policy", "random", "--limit-per-split", "2"]
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    file = tmp_path_factory.mktemp("evals") / "whole.jsonl"
    assert main([*EVAL, "--output", str(file)]) == 0
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def written(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return path


DAMAGES: list[Callable[[Rows], Rows]] = [
    lambda rows: [{"kind": "game"}],
    lambda rows: [{"kind": "summary"}],
    lambda rows: [{"kind": "summary", "format": "turncredit.eval/1"}],
    lambda rows: rows[-1:],
    lambda rows: [rows[-1], *rows[:2]],
    lambda rows: [*rows[:4], rows[0]],
    lambda rows: [rows[1], rows[0]],
    lambda rows: [{**rows[0], "success": "yes"}, *rows[1:]],
    lambda rows: [{**rows[0], "turns": None}, *rows[1:]],
    lambda rows: [{key: v for key, v in rows[0].items() if key != "stop"}, *rows[1:]],
    lambda rows: [{**rows[0], "panel": 3}],
    lambda rows: [{**rows[0], "settings": 3}],
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_output_is_neither_resumed_nor_changed(
    damage: Callable[[Rows], Rows], rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "damaged.jsonl", damage(rows))
    before = file.read_bytes()
    assert main([*EVAL, "--output", str(file), "--resume"]) == 2
    assert str(file) in capsys.readouterr().err
    assert file.read_bytes() == before
    other = written(tmp_path / "other.jsonl", rows)
    if damage(rows) != rows:
        assert main(["compare", str(other), str(file)]) == 2


@pytest.mark.parametrize("text", ["a letter to a friend", "one line\n", '{"kind":"other"}\n'])
def test_a_foreign_file_is_never_touched(text: str, tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text(text)
    assert main([*EVAL, "--output", str(file), "--resume"]) == 2
    assert file.read_text() == text


@pytest.mark.filterwarnings("ignore:.*torn last line")
@pytest.mark.parametrize("kept", range(6))
@pytest.mark.parametrize("torn", ["", '{"ki', '{"kind":"game","index":2,'])
def test_whatever_an_interruption_left_is_finished(
    kept: int, torn: str, rows: Rows, tmp_path: Path
) -> None:
    file = written(tmp_path / "cut.jsonl", rows[:kept])
    with file.open("a") as out:
        out.write(torn)
    assert main([*EVAL, "--output", str(file), "--resume"]) == 0
    finished = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert finished[:-1] == rows[:-1]
    assert finished[-1]["overall"] == rows[-1]["overall"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--resume", "--overwrite-output"],
        ["--temperature", "-1"],
        ["--temperature", "nan"],
        ["--top-p", "0"],
        ["--top-p", "1.5"],
        ["--step-timeout", "0"],
        ["--swanlab-mode", "online"],
    ],
)
def test_nonsense_leaves_an_existing_output_alone(
    flags: list[str], rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "swanlab", None)
    file = written(tmp_path / "kept.jsonl", rows)
    argv = [*EVAL, "--policy", "model", "--backend", "tabular", "--overwrite-output"]
    assert main([*argv, "--output", str(file), *flags]) == 2
    assert written(tmp_path / "same.jsonl", rows).read_bytes() == file.read_bytes()


def test_compare_wants_two_evaluations(rows: Rows, tmp_path: Path) -> None:
    one, two = (written(tmp_path / name, rows) for name in ("a.jsonl", "b.jsonl"))
    assert main(["compare", str(one), str(two)]) == 0
    assert main(["compare", str(one), str(two), "--seed", "-1"]) == 2
    assert main(["compare", str(one), str(one), "--labels", "x", "y"]) == 2
    swapped = [{**row, "success": not row["success"]} for row in rows[:2]]
    edited = written(tmp_path / "edited.jsonl", [*swapped, *rows[2:]])
    assert main(["compare", str(one), str(edited)]) == 2
