"""`turncredit sft`, as typed."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from turncredit.cli.main import main, parser_for
from turncredit.config import merge
from turncredit.loop import sft_settings
from turncredit.record.runlog import RunFolder

SFT = ["sft", "--recipe", "toy-grpo", "--max-steps", "2", "--save-every", "1"]
SFT += ["--batch", "4", "--demonstrations", "10"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a supervised run `sft` and a trained run `rl`."""
    runs = tmp_path_factory.mktemp("runs")
    where = ["--runs-dir", str(runs), "--run-name"]
    assert main([*SFT, *where, "sft"]) == 0
    size = ["--max-steps", "1", "--tasks-per-update", "2", "--group-size", "4"]
    assert main(["train", "--recipe", "toy-grpo", *size, *where, "rl"]) == 0
    return runs


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs"))


def where(runs: Path, name: str) -> list[str]:
    return ["--runs-dir", str(runs), "--run-name", name]


def test_it_says_what_was_learnt_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(SFT) == 0
    shown = capsys.readouterr()
    assert "experts: 10 demonstrations, 0 refused" in shown.err
    assert "2 updates of 4 of 9 demonstrations, 1 kept aside" in shown.err
    assert "held-out cross-entropy: 0.6566 → " in shown.out  # (ln(1 + e) + 0) / 2
    assert shown.out.splitlines()[-1] == (
        "go on with: turncredit train --recipe toy-grpo --init-from runs/sft-toy-s42"
    )
    folder = RunFolder.open("runs/sft-toy-s42")
    assert [row["step"] for row in folder.metrics()] == [1, 2]
    assert Path(folder.resolve(folder.checkpoints()[-1]["sampler"])).is_file()
    assert {"config.json", "environment.json", "ledger.jsonl"} < set(contents(folder.path))


def test_the_way_it_tells_to_go_on_works(runs: Path, tmp_path: Path) -> None:
    argv = ["train", "--recipe", "toy-grpo", "--init-from", str(runs / "sft")]
    parser_for("train", argv[1:]).parse_args(argv[1:])
    size = ["--max-steps", "1", "--tasks-per-update", "2", "--group-size", "2"]
    assert main([*argv, *size, *where(tmp_path, "on")]) == 0


def test_flags_win_over_the_recipe_and_passes_over_its_updates(tmp_path: Path) -> None:
    argv = ["sft", "--recipe", "toy-grpo", "--epochs", "1", "--learning-rate", "0.25"]
    argv += ["--demonstrations", "8", "--batch", "4", "--held-out", "0", *where(tmp_path, "run")]
    assert main(argv) == 0
    folder = RunFolder.open(tmp_path / "run")
    saved = folder.config()
    assert (saved["schedule"]["max_steps"], saved["sft"]["epochs"]) == (0, 1)
    assert saved["optim"]["learning_rate"] == 0.25
    assert saved["rollout"]["max_turns"] == 8  # the recipe's
    assert len(folder.metrics()) == 2
    assert not any("held_out" in key for row in folder.metrics() for key in row)


def test_without_a_recipe_the_way_on_names_the_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["sft", "--env", "toy", "--backend", "tabular", "--max-steps", "1"]
    assert main([*argv, *where(tmp_path, "run")]) == 0
    run = tmp_path / "run"
    told = f"turncredit train --env toy --backend tabular --init-from {run}"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--from", "expert"], 'Did you mean "experts"'),
        (["--from", "experts", "--from", "experts"], "named twice"),
        (["--from", "{runs}"], "no run folder"),
        (["--from", "{runs}/rl", "--student-hint", "toy_key"], "keep the prompts"),
        (["--from", "{runs}/rl", "--min-reward", "7"], "8 less than min_reward"),
        (["--student-hint", "skillbank"], "no skill for task type"),
        (["--train-split", "tain"], "no split 'tain'"),
        (["--epochs", "2"], "both say how long"),
        (["--batch", "0"], "batch is 0; use at least 1"),
        (["--held-out", "1"], "held_out is 1.0"),
        (["--max-turns", "3"], "10 cut off by a budget"),
        (["--init-from", "{runs}/nothing"], "no weights at"),
        (["--trackers", "nothing"], "nothing"),
        (["--learning-rat", "1"], 'Did you mean "--learning-rate"'),
    ],
)
def test_what_cannot_work_leaves_everything_as_it_was(
    flags: list[str], told: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(runs)
    flags = [flag.replace("{runs}", str(runs)) for flag in flags]
    for name, extra in (("new", []), ("sft", ["--overwrite"])):
        capsys.readouterr()
        try:
            status = main([*SFT, *where(runs, name), *extra, *flags])
        except SystemExit as left:
            status = left.code
        assert status == 2
        shown = capsys.readouterr().err
        assert told in shown
        assert "Traceback" not in shown
        assert contents(runs) == before


def test_runs_are_protected(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(runs)
    assert main([*SFT, *where(runs, "sft")]) == 2
    assert "--overwrite" in capsys.readouterr().err
    (runs / "sft" / "mine.txt").write_text("mine")
    assert main([*SFT, *where(runs, "sft"), "--overwrite"]) == 2
    assert "mine.txt" in capsys.readouterr().err
    (runs / "sft" / "mine.txt").unlink()
    assert contents(runs) == before
    assert main([*SFT, *where(runs, "sft"), "--overwrite", "--seed", "7"]) == 0
    assert RunFolder.open(runs / "sft").config()["schedule"]["seed"] == 7


def torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def scrambled(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(bytes(data))


def half_a_line(file: Path) -> None:
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())[:-50]))


def another_form(file: Path) -> None:
    file.write_bytes(gzip.compress(b'{"kind":"group","group":0,"task":{"id":"a"}}\n'))


@pytest.mark.parametrize("damage", [torn, scrambled, half_a_line, another_form])
def test_a_torn_source_is_named(
    damage: Callable[[Path], object], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(runs / "rl" / "trajectories" / "000001.jsonl.gz")
    before = contents(runs)
    assert main([*SFT, "--from", str(runs / "rl"), *where(runs, "new")]) == 2
    shown = capsys.readouterr().err
    assert "damaged" in shown
    assert str(runs / "rl") in shown
    assert contents(runs) == before


def test_a_run_without_trajectories_teaches_nothing(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(runs / "rl" / "trajectories")
    assert main([*SFT, "--from", str(runs / "rl"), *where(runs, "new")]) == 2
    assert "holds no trajectories" in capsys.readouterr().err


def test_a_source_may_be_gone_once_it_was_read(runs: Path) -> None:
    source = ["--from", str(runs / "rl"), "--init-from", str(runs / "sft")]
    assert main([*SFT, *source, "--min-reward", "0", *where(runs, "new")]) == 0
    shutil.rmtree(runs / "rl")
    shutil.rmtree(runs / "sft")
    assert main(["sft", "--resume", str(runs / "new"), "--max-steps", "3"]) == 0
    assert [row["step"] for row in RunFolder.open(runs / "new").metrics()] == [1, 2, 3]


@pytest.mark.parametrize(
    "flags",
    [
        ["--seed", "3"],
        ["--env=alfworld"],
        ["--from", "experts"],
        ["--student-hint", "toy_key"],
        ["--batch", "3"],
        ["--recipe", "toy-grpo"],
        ["--overwrite"],
        ["--max-steps", "1"],
    ],
)
def test_what_cannot_change_half_way(
    flags: list[str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(runs)
    assert main(["sft", "--resume", str(runs / "sft"), *flags]) == 2
    assert flags[0].partition("=")[0] in capsys.readouterr().err
    assert contents(runs) == before


def test_a_finished_run_says_so_and_can_be_extended_by_passes(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sft", "--resume", str(runs / "sft")]) == 0
    assert "all 2 updates are made" in capsys.readouterr().err
    assert main(["sft", "--resume", str(runs / "sft"), "--epochs", "2"]) == 0
    assert len(RunFolder.open(runs / "sft").metrics()) == 5  # 2 passes over 9, 4 at a time


def test_the_two_kinds_of_run_are_not_mistaken(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(runs)
    assert main(["sft", "--resume", str(runs / "rl")]) == 2
    assert "no supervised run" in capsys.readouterr().err
    assert main(["train", "--resume", str(runs / "sft")]) == 2
    assert "sft" in capsys.readouterr().err
    assert contents(runs) == before


def edited(run: Path) -> None:
    file = run / "config.json"
    file.write_text(file.read_text().replace('"batch": 4', '"batch": 5'))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (edited, "digest differs"),
        (lambda run: torn(run / "checkpoints/step-000002/state.npz"), "Delete the last line"),
        (
            lambda run: (run / "checkpoints.jsonl").write_text('{"step": 2, "state": "x"}\n'),
            "lacks sampler",
        ),
        (lambda run: torn(run / "trajectories/000000.jsonl.gz"), "damaged"),
    ],
)
def test_damage_is_named_and_nothing_is_lost(
    damage: Callable[[Path], object],
    told: str,
    runs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(runs / "sft")
    before = contents(runs)
    assert main(["sft", "--resume", str(runs / "sft")]) == 2
    assert told in capsys.readouterr().err
    assert contents(runs) == before


def test_a_busy_run_is_left_alone(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(runs)
    with RunFolder.open(runs / "sft").locked():
        assert main(["sft", "--resume", str(runs / "sft")]) == 2
        assert main([*SFT, *where(runs, "sft"), "--overwrite"]) == 2
    assert capsys.readouterr().err.count("being written by process") == 2
    assert contents(runs) == before


def test_a_recipe_may_hold_a_section_of_its_own(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        '[env]\nname = "toy"\n[backend]\nname = "tabular"\n[schedule]\ngroup_size = 4\n'
        'max_steps = 1\n[sft]\nfrom = ["experts"]\nbatch = 3\n'
    )
    assert main(["sft", "--recipe", str(recipe), *where(tmp_path, "run")]) == 0
    assert RunFolder.open(tmp_path / "run").config()["sft"]["batch"] == 3


def test_what_a_run_saved_builds_the_same_run() -> None:
    made = sft_settings.build(merge({"env": {"name": "toy"}, "sft": {"from": ["experts", "x"]}}))
    again = sft_settings.build(made.to_dict())
    assert again == made
    assert again.digest() == made.digest()
    moved = sft_settings.build(
        {**made.to_dict(), "schedule": {"run_name": "other", "max_steps": 9}}
    )
    assert moved.digest() == made.digest()
    assert sft_settings.build({**made.to_dict(), "schedule": {"seed": 1}}).digest() != made.digest()
