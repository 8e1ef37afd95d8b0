"""Tables as a terminal shows them."""

from __future__ import annotations

import math

from turncredit.proof.compare import Cell, Comparison, Pair
from turncredit.proof.results import Game, figures, summarize
from turncredit.report import table


def game(number: int, *, success: bool, broken: bool = False) -> Game:
    return Game(
        id=f"g{number}",
        digest="d",
        split="valid_seen",
        task_type="heat",
        success=success,
        stop="env_error" if broken else "success" if success else "max_turns",
        truncated=not (success or broken),
        env_error=broken,
        turns=4,
        invalid_format=1,
        inadmissible=0,
    )


def test_columns_line_up() -> None:
    text = table.table(["", "won"], [["base", "3"], ["a longer name", "12"]])
    assert text.splitlines() == [
        "               won",
        "──────────────────",
        "base             3",
        "a longer name   12",
    ]


def test_numbers_in_words() -> None:
    assert table.percent(0.5883) == "58.8 %"
    assert table.percent(None) == table.mean(None) == table.mean(math.nan) == "–"
    assert table.p_value(0.0004) == "< 0.001"
    assert table.p_value(0.0312) == "0.031"


def test_an_evaluation_with_broken_games_says_so() -> None:
    games = [game(1, success=True), game(2, success=False), game(3, success=False, broken=True)]
    summary = {**summarize(games), "flags": ["1 of 3 games broke"]}
    lines = table.evaluation(summary).splitlines()
    assert lines[2].split() == ["all", "3", "1", "50.0", "%", "1.00", "4.00", "1"]
    assert lines[-1] == "! 1 of 3 games broke"


def test_a_class_without_games_has_dashes() -> None:
    empty = figures([])
    assert empty["success_rate"] is None
    cells = tuple(
        Cell(arm=arm, figures=empty, success_interval=(math.nan, math.nan)) for arm in ("a", "b")
    )
    nothing = (math.nan, math.nan)
    pair = Pair(
        section="all",
        base="a",
        other="b",
        games=0,
        gained=0,
        lost=0,
        difference=math.nan,
        interval=nothing,
        p_value=1.0,
        invalid_difference=math.nan,
        invalid_interval=nothing,
        turns_difference=math.nan,
        turns_interval=nothing,
    )
    result = Comparison(
        panel_hash="f" * 64, arms=("a", "b"), sections={"all": cells}, pairs=(pair,), notes=("n",)
    )
    text = table.comparison(result)
    assert "nan" not in text
    assert text.splitlines()[-1] == "! n"
    assert result.to_dict()["pairs"][0]["interval"] == [None, None]
