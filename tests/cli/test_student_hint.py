"""`turncredit eval --student-hint`: written down, labelled, and never there by default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turncredit.cli.main import main, parser_for
from turncredit.core import registry

TOY = ["eval", "--env", "toy", "--backend", "tabular", "--limit-per-split", "4"]
TOY += ["--max-turns", "8", "--temperature", "1.0"]


def evaluated(file: Path, *flags: str) -> dict:
    assert main([*TOY, "--output", str(file), *flags]) == 0
    return json.loads(file.read_bytes().splitlines()[-1])


def test_the_file_says_which_hint_the_policy_saw(tmp_path: Path) -> None:
    plain = evaluated(tmp_path / "plain.jsonl")
    shown = evaluated(tmp_path / "shown.jsonl", "--student-hint", "toy_key")
    wrong = evaluated(tmp_path / "wrong.jsonl", "--student-hint", "toy_key", "--wrong-hint")
    assert plain["settings"]["environment"]["name"] == "toy"
    assert "student_hint" not in plain["settings"]["environment"]
    assert shown["settings"]["environment"]["name"] == "toy+toy_key"
    told = [s["settings"]["environment"]["student_hint"] for s in (shown, wrong)]
    assert [t["wrong_hint"] for t in told] == [False, True]
    assert told[0]["texts"] != told[1]["texts"]
    assert plain["panel"] == shown["panel"]
    game = json.loads((tmp_path / "shown.jsonl").read_bytes().splitlines()[0])
    assert game["steps"][0]["observation"].startswith("Guidance for this task")
    assert "Guidance" not in json.dumps(game["steps"][1:])
    assert b"Guidance" not in (tmp_path / "plain.jsonl").read_bytes()


def test_no_table_takes_a_hinted_evaluation_for_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / f"{name}.jsonl") for name in ("a", "b", "c")]
    evaluated(Path(files[0]))
    evaluated(Path(files[1]), "--student-hint", "toy_key")
    assert "! the policy played with the hint toy_key" in capsys.readouterr().out
    evaluated(Path(files[2]), "--student-hint", "toy_key", "--seed", "1")
    capsys.readouterr()
    assert main(["compare", *files, "--labels", "base", "same", "seeded"]) == 0
    out = capsys.readouterr().out
    assert "same (toy+toy_key) − base" in out
    assert "seeded (toy+toy_key) − base" in out
    assert "their difference is that of the hint" in out
    assert main(["compare", files[1], files[2], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["arms"] == ["b (toy+toy_key)", "c (toy+toy_key)"]
    assert not any("different hints" in note for note in found["notes"])


def test_an_unfinished_evaluation_keeps_its_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    evaluated(file, "--student-hint", "toy_key")
    whole = file.read_bytes()
    file.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert main([*TOY, "--output", str(file), "--resume"]) == 2
    assert "other settings" in capsys.readouterr().err
    evaluated(file, "--student-hint", "toy_key", "--resume")
    assert file.read_bytes().splitlines()[:-1] == whole.splitlines()[:-1]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--student-hint", "skillbank"], "no skill for task type"),
        (["--student-hint", "toy_kee"], 'Did you mean "toy_key"'),
        (["--student-hint", "toy_key", "--policy", "look"], "needs --policy model"),
        (["--student-hint", "hindsight"], "finished trajectories"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_a_file_is_made(
    flags: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    assert main([*TOY, "--output", str(file), *flags]) == 2
    assert told in capsys.readouterr().err
    assert not file.exists()


def test_a_recipe_lends_the_settings_of_its_hint_but_not_the_hint() -> None:
    recipe = ["--recipe", "household-agentopsd"]
    plain = parser_for("eval", recipe).parse_args(recipe)
    assert not hasattr(plain, "student_hint")
    argv = [*recipe, "--student-hint", "skillbank"]
    assert parser_for("eval", argv).parse_args(argv).bank == "household-concise"
    argv += ["--bank", "household"]
    assert parser_for("eval", argv).parse_args(argv).bank == "household"


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN["hint"]))
@pytest.mark.parametrize("command", ["eval", "sft"])
def test_every_hint_has_flags_beside_the_commands_own(command: str, name: str) -> None:
    argv = ["--student-hint", name]
    assert parser_for(command, argv).parse_args(argv).student_hint == name
