"""What a run ran on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from turncredit.record import environment


def test_the_description_is_plain_and_complete() -> None:
    found = environment.describe()
    assert json.loads(json.dumps(found)) == found
    assert set(found) >= {"python", "platform", "packages", "git", "hardware", "command"}
    assert found["packages"]["numpy"]
    assert found["hardware"]["cores"] >= 1
    assert found["hardware"]["cpu"]


def test_a_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.invalid"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "a.py").write_text("1")
    assert environment.git(tmp_path) is None  # no commit yet
    git("add", "a.py")
    git("commit", "-m", "m")
    found = environment.git(tmp_path)
    assert found is not None
    assert len(found["commit"]) == 40
    assert found["changed"] is False
    (tmp_path / "a.py").write_text("2")
    assert environment.git(tmp_path) == {**found, "changed": True}
    inner = tmp_path / "venv"
    inner.mkdir()
    assert environment.git(inner) is None  # inside the checkout, but not of it


def test_no_git_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.git(tmp_path) is None
    assert environment.gpus() == []
