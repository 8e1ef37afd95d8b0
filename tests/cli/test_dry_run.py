"""`--dry-run`: no call, no folder, and numbers that hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from turncredit import config
from turncredit.cli.main import main
from turncredit.core.errors import ConfigError
from turncredit.loop import forecast
from turncredit.loop.forecast import Game, Texts
from turncredit.record.ledger import Ledger
from turncredit.record.runlog import RunFolder

TRAIN = ["train", "--recipe", "household-agentopsd", "--backend", "tinker", "--max-steps", "80"]


def test_training_is_foretold_without_sdk_or_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--runs-dir", str(tmp_path), "--max-cost", "0.5", "--dry-run"]
    assert main([*TRAIN, *flags]) == 0
    out = capsys.readouterr().out
    assert "80 updates of 8 tasks x 8 trajectories" in out
    assert "money, USD" in out
    assert "--max-cost 0.5 ends it after about" in out
    assert list(tmp_path.iterdir()) == []


def test_what_the_service_cannot_do_is_refused_there_already(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--method", "gspo", "--backend", "pytrio", "--dry-run"]) == 2
    assert 'needs the loss "gspo"' in capsys.readouterr().err


def test_no_price_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--env", "household", "--backend", "pytrio", "--dry-run"]) == 0
    assert "money: unknown: no price is known" in capsys.readouterr().out


def test_a_run_foretells_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--tasks-per-update", "2", "--group-size", "2", "--save-every", "1"]
    toy = ["train", "--recipe", "toy-agentopsd", *size, "--runs-dir", str(tmp_path)]
    assert main([*toy, "--max-steps", "2", "--run-name", "a"]) == 0
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    run = str(tmp_path / "a")
    assert main([*toy, "--max-steps", "20", "--run-name", "b", "--dry-run", run]) == 0
    assert f"as in {run}" in capsys.readouterr().out
    assert main(["train", "--resume", run, "--max-steps", "6", "--dry-run"]) == 0
    assert "dry run: 4 updates" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before
    totals = Ledger.resume(RunFolder.open(tmp_path / "a").ledger()).totals()
    assert forecast.like(totals, 8, 16)["sampled"] == 2 * totals["tokens"]["sampled"]


def test_budgets_bound_the_plan() -> None:
    game = Game(turns=50, tokens=1000, action=100, admissible=True)
    likely, most = forecast.plans(Texts(200.0, 100.0), game, trajectories=8, group=4)
    assert (most.turns, most.length) == (4, 1000)  # 200 + 4 (100 + 100)
    assert likely.length <= 1000
    counted = forecast.tokens(most)
    assert counted["prefill"] == 8 * 4 * 600
    assert counted["cached"] == 0
    shared = forecast.tokens(most, cached=True)
    assert shared["prefill"] + shared["cached"] == counted["prefill"]
    assert counted["trained"] == 8000


def test_a_limit_nobody_can_keep_is_refused_before_a_folder_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--recipe", "toy-agentopsd", "--max-cost", "1", "--runs-dir", str(tmp_path)]
    assert main(["train", *flags]) == 2
    assert "max_cost=1 cannot be kept: no price is known" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_table_for_another_model_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[[price]]\nservice = "tabular"\nmodel = "another"\nhour = 1\n')
    flags = ["train", "--recipe", "toy-agentopsd", "--prices", str(file)]
    assert main([*flags, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "an entry without model is for all" in out
    assert "another" in out
    assert main([*flags, "--max-cost", "1", "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "an entry without model is for all" in capsys.readouterr().err


def test_faults_in_words() -> None:
    from turncredit.backends.loopback.faults import parse

    rules = parse("503@0.02, delay=0.2@0.5:/sample$, drop, 429=1")
    assert [(r.fault.kind, r.fault.status, r.rate, r.path) for r in rules] == [
        ("status", 503, 0.02, ""),
        ("delay", 503, 0.5, "/sample$"),
        ("drop", 503, 1.0, ""),
        ("status", 429, 1.0, ""),
    ]
    assert rules[1].fault.seconds == 0.2
    for wrong in ("dorp", "503@2", "drop@x", "delay:("):
        with pytest.raises(ConfigError):
            parse(wrong)


def test_a_limit_is_foretold_as_it_will_be_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTRIO does not tell what its cache served: the likely bill profits, the limit does not."""
    prices = tmp_path / "mine.toml"
    kinds = "prefill = 10.0\ncached = 0.0\nsample = 1.0\ntrain = 1.0\n"
    prices.write_text(f'[[price]]\nservice = "pytrio"\n{kinds}')
    flags = ["--backend", "pytrio", "--prices", str(prices), "--max-cost", "100", "--dry-run"]
    assert main(["train", "--recipe", "household-agentopsd", "--max-steps", "80", *flags]) == 0
    out = capsys.readouterr().out
    assert float(out.split("money, USD")[1].split()[0]) < 100
    assert "ends it after about 80 of 80 (likely)" not in out


def test_at_most_is_what_the_settings_allow() -> None:
    found = Texts(200.0, 100.0)
    most = {}
    for recipe in ("household-grpo", "household-dapo", "household-agentopsd"):
        run = config.build(config.read_recipe(recipe))
        most[recipe] = forecast.tokens(forecast.of_training(run, found)[1])
    plain, again, taught = most.values()
    # Groups that are dropped are played, too.
    assert again["sampled"] == pytest.approx(10 * plain["sampled"], rel=1e-3)
    assert again["trained"] == pytest.approx(plain["trained"])
    # A look at every trajectory, and the student rescored.
    assert taught["teacher"] > 2 * taught["trained"]
