"""`turncredit eval` and `turncredit compare`, as typed."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from turncredit.cli.main import main

PLAY = ["eval", "--env", "household", "--eval-games-per-split", "4", "--max-turns", "20"]


def evaluated(path: Path, *flags: str) -> list[dict]:
    assert main([*PLAY, "--output", str(path), *flags]) == 0
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_scripted_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *games, summary = evaluated(tmp_path / "w.jsonl", "--policy", "walkthrough")
    assert len(games) == 8
    assert summary["overall"]["success_rate"] == 1.0
    out = capsys.readouterr()
    assert "100.0 %" in out.out
    assert str(tmp_path / "w.jsonl") in out.out
    assert "8 games of household, panel" in out.err
    *_, summary = evaluated(tmp_path / "l.jsonl", "--policy", "look", "--split", "valid_seen")
    assert (summary["overall"]["successes"], summary["overall"]["truncated"]) == (0, 4)


def test_outputs_are_protected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.jsonl"
    evaluated(file, "--policy", "look")
    assert main([*PLAY, "--policy", "look", "--output", str(file)]) == 2
    assert "--overwrite-output" in capsys.readouterr().err
    evaluated(file, "--policy", "look", "--resume")
    evaluated(file, "--policy", "walkthrough", "--overwrite-output")


def test_a_model_plays(tmp_path: Path) -> None:
    args = ["eval", "--env", "toy", "--backend", "tabular", "--limit-per-split", "3"]
    rows = []
    for window in ("1", "4", "16"):
        file = tmp_path / f"{window}.jsonl"
        assert main([*args, "--output", str(file), "--games-per-batch", window]) == 0
        rows.append(file.read_bytes().splitlines())
    assert rows[0][:-1] == rows[1][:-1] == rows[2][:-1]
    settings = json.loads(rows[0][-1])["settings"]
    assert settings["policy"]["backend"]["name"] == "tabular"
    assert settings["temperature"] == 0.01
    assert settings["seed"] == 42


def test_the_weights_of_a_run_are_named_as_they_were_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run may go on: an evaluation then continues by the same weights, or not at all."""
    train = ["train", "--recipe", "toy-grpo", "--runs-dir", str(tmp_path), "--run-name", "run"]
    assert main([*train, "--max-steps", "1", "--tasks-per-update", "2"]) == 0
    run, file = tmp_path / "run", tmp_path / "a.jsonl"
    args = ["eval", "--recipe", "toy-grpo", "--limit-per-split", "3", "--model-path", str(run)]
    assert main([*args, "--output", str(file)]) == 0
    weights = str(run / "checkpoints" / "step-000001" / "sampler.npz")
    assert f"policy: {weights}" in capsys.readouterr().err
    rows = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert {row["settings"]["policy"]["model_path"] for row in rows} == {weights}
    file.write_text("\n".join(json.dumps(row) for row in rows[:1]) + "\n")
    assert main(["train", "--resume", str(run), "--max-steps", "2"]) == 0
    assert main([*args, "--output", str(file), "--resume"]) == 2


def test_a_path_of_weights_needs_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--policy", "look", "--model-path", "x", "--output", str(tmp_path / "a.jsonl")]
    assert main([*PLAY, *flags]) == 2
    assert "--policy model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--policy", "lok"], 'Did you mean "look"'),
        (["--splitt", "all"], 'Did you mean "--split"'),
        (["--policy", "look", "--split", "valid_sen"], 'Did you mean "valid_seen"'),
    ],
)
def test_typos_are_answered(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(SystemExit):
        main([*PLAY, *flags])
    assert told in capsys.readouterr().err


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / f"{policy}.jsonl") for policy in ("look", "walkthrough")]
    evaluated(Path(files[0]), "--policy", "look")
    evaluated(Path(files[1]), "--policy", "walkthrough")
    capsys.readouterr()
    assert main(["compare", *files, "--labels", "base", "trained"]) == 0
    out = capsys.readouterr().out
    assert "all: trained − base" in out
    assert "+100.0" in out
    assert main(["compare", *files, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["arms"] == ["look", "walkthrough"]
    assert found["pairs"][0]["p_value"] == 2 / 2**8
    assert (found["pairs"][0]["gained"], found["pairs"][0]["lost"]) == (8, 0)


def test_compare_refuses_other_panels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(tmp_path / "a.jsonl", "--policy", "look")
    evaluated(tmp_path / "b.jsonl", "--policy", "look", "--split", "valid_seen")
    assert main(["compare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]) == 2
    assert "not on the same panel" in capsys.readouterr().err


def test_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [str(tmp_path / f"{policy}.jsonl") for policy in ("look", "walkthrough")]
    for file, policy in zip(files, ("look", "walkthrough"), strict=True):
        evaluated(Path(file), "--policy", policy)
    figures = [tmp_path / "one.png", tmp_path / "two.png"]
    for figure in figures:
        assert main(["compare", *files, "--figure", str(figure)]) == 0
    assert figures[0].read_bytes().startswith(b"\x89PNG")
    assert figures[0].read_bytes() == figures[1].read_bytes()


def test_without_matplotlib_the_tables_are_still_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    files = [str(tmp_path / f"{policy}.jsonl") for policy in ("look", "walkthrough")]
    for file, policy in zip(files, ("look", "walkthrough"), strict=True):
        evaluated(Path(file), "--policy", policy)
    assert main(["compare", *files, "--figure", str(tmp_path / "a.png")]) == 1
    out = capsys.readouterr()
    assert "walkthrough − look" in out.out
    assert "pip install 'turncredit[plot]'" in out.err
    assert not (tmp_path / "a.png").exists()
