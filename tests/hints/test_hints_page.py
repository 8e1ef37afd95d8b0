"""The page about hints names every source and every setting, with its default."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from turncredit.core.registry import BUILT_IN, load

PAGE = (Path(__file__).parents[2] / "docs" / "hints.md").read_text("utf-8")
ELSEWHERE = {"wrong_hint"}  # said in words


@pytest.mark.parametrize("name", BUILT_IN["hint"])
def test_every_source_and_setting_is_named(name: str) -> None:
    assert f"| `{name}` |" in PAGE
    settings = {field.name for field in fields(load("hint", name).config_type)} - ELSEWHERE
    assert {setting for setting in settings if f"`{setting}" not in PAGE} == set()


@pytest.mark.parametrize("name", ["hindsight", "reflection"])
def test_the_tables_hold_the_defaults(name: str) -> None:
    for line in PAGE.splitlines():
        cells = [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
        for field in fields(load("hint", name).config_type):
            if len(cells) == 3 and cells[0] == field.name:
                default = str(field.default).lower()
                assert cells[1].replace(",", "") in (default, default.removesuffix(".0")), line
