"""What a person is told about costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from turncredit.cli.costs import duration, lines, short
from turncredit.cli.main import main
from turncredit.record.ledger import Ledger
from turncredit.record.runlog import RunFolder

TOKENS = {
    "unique": 1_000_000,
    "prefill": 1_100_000,
    "cached": None,
    "sampled": 90_000,
    "teacher": 500_000,
    "teacher_unique": 400_000,
    "teacher_cached": 0,
    "trained": 800_000,
}
TOTALS = {
    "tokens": TOKENS,
    "requests": 10,
    "seconds": {"rollout": 40.0, "teacher": 60.0, "step": 110.0},
    "steps": 2,
    "games": {"played": 40, "solved": 10},
    "flops": {"done": 3e15, "floor": 2e15},
    "floor_seconds": 11.0,
    "money": {"currency": "CNY", "amount": 5.0},
}


def test_everything_that_is_known() -> None:
    text = "\n".join(lines(TOTALS, "svc m (a table)"))
    for words in (
        "2 updates, 110 s",
        "read 1.1 M (at least 1 M)",
        "by teachers 500 k (at least 400 k)",
        "from cache ?",
        "1.50 times the floor",
        "11 s: it took 10 times",
        "teacher 60, rollout 40",
        "5 CNY by svc m",
        "10 of 40 games; for each 11 s",
        "0.5 CNY",
    ):
        assert words in text, words


def test_what_another_stage_had_cached_is_no_lower_bound() -> None:
    shared = {**TOTALS, "tokens": {**TOKENS, "teacher": 556, "teacher_unique": 856}}
    text = "\n".join(lines(shared, ""))
    assert "by teachers 556 (856 distinct, some cached by other stages)" in text
    assert "read 1.1 M (at least 1 M)" in text


def test_what_is_unknown_is_not_zero() -> None:
    bare = {**TOTALS, "games": None, "flops": None, "floor_seconds": None, "money": None}
    text = "\n".join(lines(bare, "nobody knows"))
    assert "money    unknown: nobody knows" in text
    assert "FLOP" not in text
    assert "games" not in text
    nobody = {**TOTALS, "games": {"played": 4, "solved": 0}}
    assert "0 of 4 games" in lines(nobody, "")[-1]
    assert "for each" not in lines(nobody, "")[-1]
    assert "costs of 0 updates" in lines(Ledger().totals(), "")[0]


@pytest.mark.parametrize(
    ("number", "text"), [(None, "?"), (0, "0"), (999, "999"), (1234, "1.23 k"), (2.5e13, "25 T")]
)
def test_numbers_are_short(number: float | None, text: str) -> None:
    assert short(number) == text


def test_durations() -> None:
    assert [duration(s) for s in (0.5, 90, 600, 7200)] == ["0.5 s", "90 s", "10 min", "2.0 h"]


def test_a_run_is_priced_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--recipe", "toy-grpo", "--runs-dir", str(tmp_path), "--run-name", "run"]
    assert main([*words, "--max-steps", "2", "--tasks-per-update", "2"]) == 0
    said = capsys.readouterr().err
    assert "costs of 2 updates" in said
    assert 'unknown: no price is known for backend "tabular"' in said
    place = str(tmp_path / "run")
    assert main(["costs", place]) == 0
    assert "unknown: no price is known" in capsys.readouterr().out
    file = tmp_path / "mine.toml"
    file.write_text('[[price]]\nservice = "tabular"\ncurrency = "EUR"\nhour = 3600\n')
    assert main(["costs", place, "--prices", str(file)]) == 0
    assert "EUR by tabular * (your own table)" in capsys.readouterr().out
    assert main(["costs", place, "--service", "tinker", "--model", "Qwen/Qwen3-8B"]) == 0
    out = capsys.readouterr().out
    assert "USD by tinker Qwen/Qwen3-8B (https://" in out
    assert main(["costs", place, "--service", "tinkr"]) == 0
    assert 'Did you mean "tinker"?' in capsys.readouterr().out
    assert main(["costs", place, "--service", "tinker"]) == 0
    assert "Qwen/Qwen3-8B" in capsys.readouterr().out
    assert main(["costs", str(tmp_path / "nothing")]) == 2


def test_what_a_run_counted_stands_unless_a_price_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[[price]]\nservice = "tabular"\ncurrency = "EUR"\nhour = 3600\n')
    words = ["train", "--recipe", "toy-grpo", "--runs-dir", str(tmp_path), "--run-name", "run"]
    words += ["--max-steps", "1", "--tasks-per-update", "2", "--prices", str(file)]
    assert main(words) == 0
    folder = RunFolder.open(tmp_path / "run")
    spent = folder.spent()
    assert spent is not None
    folder.write_spent({**spent, "amount": 1e6})  # as after an attempt that was lost
    capsys.readouterr()
    assert main(["costs", str(folder.path)]) == 0
    out = capsys.readouterr().out
    assert "EUR by tabular * (your own table), as the run counted it" in out
    assert "spent    1e+06 EUR in all, lost work included" in out
    file.write_text('[[price]]\nservice = "tabular"\ncurrency = "USD"\nhour = 1\n')
    assert main(["costs", str(folder.path), "--prices", str(file)]) == 0
    out = capsys.readouterr().out
    assert "USD by tabular * (your own table)\n" in out
    assert "spent" not in out


def test_one_wrong_name_hides_no_other_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--recipe", "toy-grpo", "--runs-dir", str(tmp_path), "--max-steps", "1"]
    for name in ("first", "second", "third"):
        assert main([*words, "--tasks-per-update", "2", "--run-name", name]) == 0
    damaged = tmp_path / "third" / "ledger.jsonl"
    damaged.write_text('{"step": 1}\n')
    capsys.readouterr()
    runs = [str(tmp_path / name) for name in ("first", "secnd", "third", "nothing-like", "second")]
    assert main(["costs", *runs]) == 2
    said = capsys.readouterr()
    assert [line for line in said.out.splitlines() if line in runs] == [runs[0], runs[-1]]
    assert said.out.count("costs of 1 update") == 2
    misspelt, torn, unlike = said.err.splitlines()
    assert misspelt.startswith(f"turncredit: {runs[1]} is no run folder (there is no such folder)")
    assert misspelt.endswith(f'Did you mean "{tmp_path / "second"}"?')
    assert "the record of step 1 is damaged" in torn
    assert "Did you mean" not in unlike
    assert main(["costs", str(tmp_path)]) == 2
    assert f"It holds runs: name one, such as {tmp_path / 'third'}" in capsys.readouterr().err


def test_a_name_alone_is_looked_for_among_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert main(["costs", "mine"]) == 2
    assert 'Did you mean "runs/mine"?' in capsys.readouterr().err


def test_seconds_of_the_start_have_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading a model takes longer than a small update: the sum must show where time went."""
    size = ["--tasks-per-update", "2", "--group-size", "2", "--max-steps", "2"]
    toy = ["--recipe", "toy-agentopsd", "--runs-dir", str(tmp_path), "--run-name"]
    assert main(["train", *toy, "a", *size]) == 0
    first, second = RunFolder.open(tmp_path / "a").ledger()
    assert "start" in first["seconds"]
    assert "start" not in second["seconds"]
    capsys.readouterr()
    assert main(["costs", str(tmp_path / "a")]) == 0
    assert ", start " in capsys.readouterr().out
