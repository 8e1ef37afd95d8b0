"""The examples of the documentation do what it says."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from turncredit.cli.main import main
from turncredit.core import registry
from turncredit.envs.check import check_environment

DOCS = Path(__file__).parents[1] / "docs"


def example(page: str) -> str:
    """The Python of a page."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    return code


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("guess", "loo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_the_environment_passes_the_suite(here: Path) -> None:
    (here / "guess.py").write_text(example("environments.md"))
    component = registry.load("env", "guess:Guess")
    results = asyncio.run(check_environment(component.create(component.config_type())))
    assert [r.name for r in results if not r.passed] == []


def test_the_method_trains_the_toy(here: Path) -> None:
    (here / "loo.py").write_text(example("methods/index.md"))
    words = ["train", "--recipe", "toy-grpo", "--method", "loo:LeaveOneOut", "--decay", "0.8"]
    assert main([*words, "--max-steps", "1", "--tasks-per-update", "2", "--run-name", "own"]) == 0
    assert (here / "runs" / "own" / "metrics.jsonl").is_file()
