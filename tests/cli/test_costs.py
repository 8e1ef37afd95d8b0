"""What a person is told about costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from turncredit.cli.costs import duration, lines, short
from turncredit.cli.main import main
from turncredit.record.ledger import Ledger

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
