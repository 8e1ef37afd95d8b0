"""Settings: checked values with a cure, and one flag a field."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

import pytest

from turncredit.core.errors import ConfigError
from turncredit.core.settings import add_flags, check_choices, coerce, setting


@dataclass(frozen=True)
class Config:
    """Examples of every kind of field."""

    learning_rate: float = setting(1e-3, "step size, 100% of it")
    steps: int = setting(3, "updates")
    mode: Literal["fast", "exact"] = setting("exact", "how")
    root: str | None = setting(None, "where")
    shuffle: bool = setting(True, "mix")
    names: tuple[str, ...] = setting((), "which")


def test_values_become_a_dataclass() -> None:
    made = coerce(Config, {"learning_rate": 1, "names": ["a"], "root": None}, "x")
    assert made == Config(learning_rate=1.0, names=("a",))
    assert type(made.learning_rate) is float


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"learning_rat": 1.0}, 'has no key "learning_rat". Did you mean "learning_rate"?'),
        ({"steps": 1.5}, "steps is 1.5; give a whole number"),
        ({"steps": True}, "steps is True; give a whole number"),
        ({"mode": "exakt"}, 'Did you mean "exact"?'),
        ({"shuffle": 1}, "give true or false"),
        ({"names": "abc"}, "give a list"),
        ({"root": 3}, "give text"),
    ],
)
def test_wrong_keys_and_values_are_refused(values: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        coerce(Config, values, "[x]")
    assert what in str(caught.value)


def test_flags_leave_no_trace_unless_given() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Config, "settings")
    assert vars(parser.parse_args([])) == {}
    given = parser.parse_args(["--steps", "4", "--no-shuffle", "--names", "a", "b", "--root", "r"])
    assert vars(given) == {"steps": 4, "shuffle": False, "names": ["a", "b"], "root": "r"}
    assert coerce(Config, vars(given), "flags").names == ("a", "b")
    assert "100% of it [0.001]" in parser.format_help()


def test_choices_are_checked_in_python_too():
    @dataclass(frozen=True)
    class Chosen:
        std: Literal["population", "none"] = "population"
        size: int = 1

    check_choices(Chosen())
    with pytest.raises(ConfigError, match=r'std is .populaton.; choose .* mean "population"'):
        check_choices(Chosen(std="populaton"))  # type: ignore[arg-type]
