"""Every command on the pages of hosted trainers is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from turncredit.cli.main import main, parser_for

DOCS = Path(__file__).parents[1] / "docs"


def commands() -> Iterator[str]:
    """The commands of blocks without a language, lines joined, remarks dropped."""
    for page in ("article.md", "pytrio.md", "tinker.md"):
        text = (DOCS / page).read_text("utf-8").replace("\\\n", " ")
        for block in re.findall(r"```\n(.*?)```", text, re.DOTALL):
            for line in block.splitlines():
                if line.startswith("turncredit "):
                    yield " ".join(shlex.split(line, comments=True))


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_a_command_of_the_pages_is_understood(command: str) -> None:
    _, name, *words = command.split(" ")
    if "--help" not in words:
        parser_for(name, words).parse_args(words)


def test_the_pages_have_the_commands_of_the_article() -> None:
    found = " ".join(commands())
    for word in (
        "--teacher-concurrency 16",
        "--weight-bound 0.2",
        "--limit-per-split 2",
        "trio://",
    ):
        assert word in found


@pytest.mark.parametrize("page", ["pytrio.md", "tinker.md"])
def test_the_first_command_needs_no_download(page: str) -> None:
    section = (DOCS / page).read_text("utf-8").partition("## First commands")[2]
    first = next(line for line in section.splitlines() if line.startswith("turncredit "))
    assert "--dry-run" in first
    assert "--recipe household-" in first


def test_the_dry_run_of_the_page_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (DOCS / "tinker.md").read_text("utf-8")
    (command,) = re.findall(r"^turncredit (train .*--dry-run.*)$", page, re.MULTILINE)
    assert main(shlex.split(command, comments=True)) == 0
    printed = re.sub(r"\(https\S+, ", "(…, ", capsys.readouterr().out)
    (shown,) = re.findall(r"```text\n(  dry run: .*?)\n  ```", page, re.DOTALL)
    lines = [line.removeprefix("  ") for line in shown.splitlines()]
    assert lines == printed.splitlines()[: len(lines)]
    assert lines[-1].startswith("  money, USD")
