"""`turncredit doctor` and `turncredit list`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from turncredit.cli import doctor
from turncredit.cli.main import main


def findings(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[tuple[str, str], dict]:
    assert main(["doctor", "--json", *flags]) in (0, 1)
    return {(f["group"], f["name"]): f for f in json.loads(capsys.readouterr().out)}


def test_everything_missing_has_a_cure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.models, "is_present", lambda name: False)
    unset = ("ALFWORLD_DATA", "TURNCREDIT_DATA", "PYTRIO_API_KEY", "TINKER_API_KEY")
    for name in unset:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TINKER_CREDENTIAL_CMD", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["doctor"]) == 1
    capsys.readouterr()
    found = findings(capsys)
    assert found["extras", "local"]["cure"] == "pip install 'turncredit[local]'"
    assert "missing: torch" in found["extras", "local"]["text"]
    assert found["models", "smollm2-135m"]["cure"] == "turncredit models get smollm2-135m"
    assert "alfworld-download" in found["games", "alfworld"]["text"]
    assert not found["what runs here", "turncredit demo"]["ok"]
    assert found["keys", "tinker"]["cure"].startswith("export TINKER_API_KEY=...")
    assert found["keys", "pytrio"]["cure"].startswith("trio login, or export PYTRIO_API_KEY=...")
    paid = found["what runs here", "turncredit train --backend pytrio"]
    assert paid["text"].endswith("first: turncredit[pytrio], a key for pytrio")
    games = found["what runs here", "turncredit eval --env alfworld"]
    assert games["text"].endswith("first: turncredit[local], the official games")
    assert found["what runs here", "turncredit eval --policy random"]["ok"]


def test_everything_present(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    monkeypatch.setattr(doctor.models, "is_present", lambda name: True)
    for split, number in (("valid_seen", 2), ("valid_unseen", 1)):
        for n in range(number):
            game = tmp_path / split / f"heat-{n}" / "trial_1"
            game.mkdir(parents=True)
            (game / "game.tw-pddl").write_text("{}")
    monkeypatch.setenv("PYTRIO_API_KEY", "secret-of-mine")
    monkeypatch.setenv("TINKER_API_KEY", "tml-another-secret")
    found = findings(capsys, "--data-root", str(tmp_path))
    assert all(f["ok"] for (group, _), f in found.items() if group != "machine")
    assert found["keys", "pytrio"]["text"].startswith("given by PYTRIO_API_KEY")
    assert "secret" not in str(found)
    assert found["games", "alfworld"]["text"] == "official games: valid_seen 2, valid_unseen 1"
    assert main(["doctor"]) == 0
    assert "ok turncredit demo" in capsys.readouterr().out


def test_a_key_that_its_sdk_refuses_is_no_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINKER_CREDENTIAL_CMD", raising=False)
    monkeypatch.setenv("TINKER_API_KEY", "another-secret")
    found = findings(capsys)
    assert not found["keys", "tinker"]["ok"]
    assert found["keys", "tinker"]["cure"].startswith("export TINKER_API_KEY=tml-...")
    paid = found["what runs here", "turncredit train --backend tinker"]
    assert "a key for tinker" in paid["text"]
    assert "another-secret" not in str(found)


@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("OMP_WAIT_POLICY", "ACTIVE", "export OMP_WAIT_POLICY=passive"),
        ("OMP_NUM_THREADS", "4096", "export OMP_NUM_THREADS="),
    ],
)
def test_threads_that_fight(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    cure: str,
) -> None:
    monkeypatch.setenv(name, value)
    found = findings(capsys)["machine", "threads"]
    assert not found["ok"]
    assert found["cure"].startswith(cure)


def test_it_imports_nothing_heavy() -> None:
    program = (
        "import sys; from turncredit.cli.main import main; main(['doctor']); main(['list'])\n"
        "heavy = {'torch', 'transformers', 'textworld', 'matplotlib'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for title in ("methods:", "envs:", "backends:", "hints:", "recipes:"):
        assert title in out
