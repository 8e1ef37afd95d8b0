"""`--dry-run`: no call, no folder, and numbers that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from turncredit import config
from turncredit.cli.main import main
from turncredit.core.errors import ConfigError
from turncredit.core.looks import Demand
from turncredit.loop import forecast
from turncredit.loop.forecast import Game, Texts
from turncredit.loop.forecast_run import Place, of_training
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
    assert (most.turns, most.length) == (50, 1000)
    assert most.actions == pytest.approx(900 / 112 * 100)  # if nearly nothing is shown
    assert likely.length <= 1000
    counted = forecast.tokens(most)
    assert counted["prefill"] == 8 * 50 * 600  # short actions leave room for all turns
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


@pytest.mark.parametrize("tokens", ["", "prefill = 1000\nsample = 1000\ntrain = 1000\n"])
def test_hours_are_not_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tokens: str
) -> None:
    """Nobody knows how long a run takes; a run that was made says it, in its ledger's seconds."""
    file = tmp_path / "mine.toml"
    file.write_text(f'[[price]]\nservice = "tabular"\nhour = 3600\n{tokens}')
    size = ["--tasks-per-update", "2", "--group-size", "2", "--runs-dir", str(tmp_path)]
    toy = ["train", "--recipe", "toy-agentopsd", *size, "--max-steps", "2"]
    priced = [*toy, "--prices", str(file), "--max-cost", "9"]
    assert main([*priced, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "3600 USD for each hour of the machine" in out
    assert ("money, USD" in out) == bool(tokens)  # what tokens cost is foretold
    assert "--max-cost 9 counts hours too: when it ends it is not foretold" in out
    assert main([*toy, "--run-name", "a"]) == 0
    totals = Ledger.resume(RunFolder.open(tmp_path / "a").ledger()).totals()
    capsys.readouterr()
    assert main([*priced, "--dry-run", str(tmp_path / "a")]) == 0
    said = float(capsys.readouterr().out.split("money, USD")[1].split()[0])
    paid = sum(totals["tokens"][kind] or 0 for kind in forecast.KINDS) / 1000 if tokens else 0.0
    assert said == pytest.approx(totals["seconds"]["step"] + paid, abs=0.006, rel=0.06)


def test_a_run_that_learnt_nothing_is_no_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ["--tasks-per-update", "1", "--group-size", "2", "--max-steps", "1"]
    toy = ["train", "--runs-dir", str(tmp_path), *size]
    plain = [*toy, "--recipe", "toy-grpo", "--run-name", "a"]
    assert main(plain) == 0
    run, remark = str(tmp_path / "a"), "no teacher read anything"
    capsys.readouterr()
    for recipe, remarked in (("toy-agentopsd", True), ("toy-grpo", False)):
        assert main([*toy, "--recipe", recipe, "--dry-run", run]) == 0
        assert (remark in capsys.readouterr().out) == remarked


def test_what_costs_little_is_not_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[[price]]\nservice = "tabular"\nprefill = 0.0\nsample = 0.01\ntrain = 0.0\n')
    flags = ["--max-steps", "1", "--prices", str(file), "--dry-run"]
    assert main(["train", "--recipe", "toy-agentopsd", *flags]) == 0
    likely, most = capsys.readouterr().out.split("money, USD")[1].split()[:2]
    assert 0 < float(likely) < float(most) < 0.005


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
        most[recipe] = of_training(run, found, Demand(), Place())[1][""]
    plain, again, taught = most.values()
    # Groups that are dropped are played, too.
    assert again["sampled"] == pytest.approx(10 * plain["sampled"], rel=0.1)
    assert again["trained"] == pytest.approx(plain["trained"])
    # The student is rescored, whatever the method, and a teacher looks at every trajectory.
    assert plain["teacher"] > plain["trained"]
    assert taught["teacher"] > 2 * taught["trained"]


@pytest.mark.parametrize(
    ("recipe", "lines"),
    [
        ("household-agentopsd", []),
        ("household-seed --analyser policy", ["read in questions", "sampled in answers"]),
        ("household-grsd --analyser policy", ["read in questions", "sampled in answers"]),
        ("household-tempo", ["read in questions", "sampled in answers"]),
        ("household-ucob", ["read for transfers", "trained on transfers"]),
    ],
)
def test_what_is_done_besides_games_has_lines_of_its_own(
    recipe: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--recipe", *recipe.split(), "--max-steps", "2", "--dry-run"]) == 0
    out = capsys.readouterr().out
    kinds = ("in questions", "in answers", "for transfers", "on transfers")
    named = [line[2:22].strip() for line in out.splitlines() if any(k in line for k in kinds)]
    assert named == lines
    assert "tried at the start" in out


def test_hints_that_the_policy_does_not_write_cost_it_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--recipe", "household-seed", "--analyser", "rules", "--dry-run"]
    assert main(["train", *flags]) == 0
    out = capsys.readouterr().out
    assert "in questions" not in out
    assert "read by teachers" in out
    # Nor does a hint that nobody reads.
    flags = ["--recipe", "household-grpo", "--hint", "reflection", "--dry-run"]
    assert main(["train", *flags]) == 0
    assert "in questions" not in capsys.readouterr().out


# ── demonstrations ───────────────────────────────────────────────────────────────────────────


def test_a_supervised_run_is_foretold_and_then_is_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "mine.toml"
    prices.write_text('[[price]]\nservice = "tabular"\nprefill = 1\nsample = 1\ntrain = 1\n')
    flags = ["sft", "--recipe", "toy-agentopsd", "--demonstrations", "12", "--batch", "4"]
    flags += ["--epochs", "2", "--held-out", "0.2", "--prices", str(prices), "--seed", "1"]
    runs = tmp_path / "runs"
    flags += ["--runs-dir", str(runs), "--run-name", "a"]
    assert main([*flags, "--max-cost", "0.001", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "dry run: 5 updates of 4 of 10 demonstrations, 2 kept aside, on tabular" in out
    assert "likely     at most" in out
    assert "--max-cost 0.001 ends it after about 0 of 5 (likely)" in out
    assert not runs.exists()
    likely, most = _amounts(out, "trained")
    assert main(flags) == 0
    totals = Ledger.resume(RunFolder.open(runs / "a").ledger()).totals()
    assert totals["steps"] == 5
    assert likely / 2 <= totals["tokens"]["trained"] <= most  # a call is one token here
    read = [*_amounts(out, "read")]
    assert read[0] / 2 <= totals["tokens"]["prefill"] <= read[1]
    capsys.readouterr()
    # Its own lengths are known then, to the token.
    before = sorted(runs.rglob("*"))
    assert main(["sft", "--resume", str(runs / "a"), "--epochs", "4", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "dry run: 5 updates" in out
    assert "lengths as they were gathered" in out
    assert _amounts(out, "trained")[0] == pytest.approx(totals["tokens"]["trained"], rel=0.01)
    assert main([*flags, "--dry-run", str(runs / "a")]) == 0
    assert f"as in {runs / 'a'}" in capsys.readouterr().out
    # What a run recorded is read, not guessed.
    assert main([*flags, "--from", str(runs / "a"), "--dry-run"]) == 0
    assert _amounts(capsys.readouterr().out, "trained")[0] > 0
    assert sorted(runs.rglob("*")) == before


def test_a_supervised_run_is_refused_there_already(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["sft", "--env", "toy", "--backend", "pytrio", "--max-trajectory-tokens", "20000"]
    assert main([*flags, "--dry-run"]) == 2
    assert "the model reads 16384 tokens at most" in capsys.readouterr().err
    assert main(["sft", "--env", "toy", "--from", "nowhere", "--dry-run"]) == 2
    assert "no such run folder" in capsys.readouterr().err


def test_the_limit_of_an_evaluation_is_foretold(capsys: pytest.CaptureFixture[str]) -> None:
    play = ["eval", "--env", "household", "--backend", "tinker", "--limit-per-split", "4"]
    assert main([*play, "--max-cost", "0.001", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "tried at the start" in out
    assert "--max-cost 0.001 ends it after about" in out


@pytest.mark.parametrize("amount", ["nan", "inf", "-1", "0"])
@pytest.mark.parametrize("command", ["train", "sft", "eval"])
@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry"])
def test_an_amount_that_is_none_is_refused(
    command: str,
    amount: str,
    dry: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--env", "toy", "--backend", "tabular", f"--max-cost={amount}", *dry]
    assert main([command, *flags]) == 2
    said = capsys.readouterr().err
    assert "max" in said
    assert "use an amount above 0" in said
    assert "leave it out" in said
    assert list(tmp_path.iterdir()) == []


def _amounts(out: str, name: str) -> tuple[float, float]:
    """The two numbers of a line."""
    scales = {"k": 1e3, "M": 1e6, "G": 1e9}
    (line,) = re.findall(rf"^  {name} {{2,}}(.*)$", out, re.M)
    found = re.findall(r"([\d.]+)(?: ([kMG])\b)?", line)
    first, second = (float(number) * scales.get(letter, 1.0) for number, letter in found)
    return first, second
