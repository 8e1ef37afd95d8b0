"""Published vectors, and how the replay reports what it meets."""

import json
from pathlib import Path

import pytest

from turncredit.cli.main import main
from turncredit.conformance.__main__ import main as module_main
from turncredit.conformance.replay import ADAPTERS, replay
from turncredit.conformance.vectors import Vector, differences

VECTOR = {
    "method": "grpo-lab08",
    "case": "pair",
    "dtype": "float64",
    "tolerance": {"rtol": 1e-12, "atol": 1e-12},
    "inputs": {"rewards": [1.0, 0.0]},
    "outputs": {"advantages": [0.5, -0.5], "degenerate_groups": 0},
}


def put(folder: Path, name: str, **changes: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps(VECTOR | changes))


def test_all_published_vectors_of_what_we_implement_pass(oracles_dir: Path):
    report = replay(oracles_dir / "credit")
    assert report.failures == ()
    for method, tally in report.tallies.items():
        assert method in ADAPTERS
        assert tally.passed, method
        assert not tally.not_implemented, method
    assert report.passed >= 264


@pytest.mark.parametrize("call", [module_main, lambda argv: main(["conformance", *argv])])
def test_both_commands_end_with_the_counts(call, tmp_path, capsys):
    put(tmp_path, "good")
    put(tmp_path, "later", method="no-such-method")
    assert call([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 passed, 0 failed"
    assert any("no-such-method" in line and line.split()[-1] == "1" for line in lines)


def test_a_wrong_number_fails_and_is_named(tmp_path, capsys):
    put(tmp_path, "bad", outputs={"advantages": [0.5, -0.4], "degenerate_groups": 0})
    assert module_main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "bad.json: advantages[1]: expected -0.4, got -0.5" in out
    assert out.splitlines()[-1] == "0 passed, 1 failed"


def test_torn_and_foreign_files(tmp_path, capsys):
    put(tmp_path, "good")
    (tmp_path / "torn.json").write_text(json.dumps(VECTOR)[:40])
    (tmp_path / "other.json").write_text("[1, 2]")
    assert module_main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "torn.json is not whole JSON" in out
    assert "1 JSON files that are not vectors" in out
    assert out.splitlines()[-1] == "1 passed, 1 failed"


def test_a_malformed_vector_fails_with_the_reason(tmp_path, capsys):
    put(tmp_path, "empty", inputs={})
    assert module_main([str(tmp_path)]) == 1
    assert "KeyError: 'rewards'" in capsys.readouterr().out


@pytest.mark.parametrize("tolerance", [5, {"rtol": "x"}, {"atol": None}])
def test_a_malformed_tolerance_fails_and_is_named(tolerance, tmp_path):
    vector = {"method": "grpo", "case": "c", "inputs": {}, "outputs": {}, "tolerance": tolerance}
    (tmp_path / "a.json").write_text(json.dumps(vector))
    report = replay(tmp_path)
    assert report.failed == 1
    assert "give rtol and atol" in report.failures[0]


def test_nothing_to_replay_is_an_error(tmp_path, capsys):
    assert module_main([str(tmp_path)]) == 2
    assert module_main([str(tmp_path / "missing")]) == 2
    assert "no directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expected", "got", "agrees"),
    [
        ("nan", float("nan"), True), ("nan", 0.0, False), ("inf", float("inf"), True),
        ("-inf", float("inf"), False), (1.0, float("nan"), False), ("g0", "g0", True),
        ([1, 2], [1], False), ({"a": 1}, {}, False), (1.0, 1.0 + 1e-7, False),
        (None, None, True), (None, 0.0, False), (0.5, None, False),
    ],
)  # fmt: skip
def test_comparison(expected, got, agrees):
    vector = Vector(Path("v"), "m", "c", 1e-9, 1e-9, {}, {})
    assert (not list(differences(expected, got, vector))) is agrees
