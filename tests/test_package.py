"""What is shipped: recipes (each is run in test_recipes), and a README that tells the truth."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from turncredit import config
from turncredit.cli import main as cli

ROOT = Path(__file__).parents[1]


def test_the_readmes_commands_are_real() -> None:
    """Every `turncredit` line of the README and the docs parses (nothing is run)."""
    texts = [
        (ROOT / "README.md").read_text(),
        *(p.read_text() for p in (ROOT / "docs").rglob("*.md")),
    ]
    blocks = [b for text in texts for b in re.findall(r"^```\n(.*?)^```", text, re.M | re.S)]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [line.split("#")[0].split() for line in lines if line.startswith("turncredit ")]
    assert len(commands) > 10
    for _, name, *argv in commands:
        parser = cli.parser_for(name, argv)
        if "--help" not in argv:
            parser.parse_args(argv)


def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "turncredit", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("turncredit ")


def test_no_placeholder_is_left() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert "@@" not in path.read_text(), path


def test_recipes_are_shipped() -> None:
    assert {"household-agentopsd", "household-grpo", "alfworld-agentopsd"} <= set(
        config.recipe_names()
    )
