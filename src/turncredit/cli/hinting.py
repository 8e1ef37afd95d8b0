"""`--student-hint NAME` and the settings of that hint, for commands whose student may see one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from turncredit import config
from turncredit.config import Chosen
from turncredit.core import registry
from turncredit.core.settings import add_flags
from turncredit.loop.hinted import NONE


def add_student_hint(
    parser: argparse.ArgumentParser, argv: Sequence[str], recipe: config.Values
) -> None:
    """The flag, and those of the hint that `argv` names.

    The recipe's own hint is the teacher's: it is never taken by itself, but lends its settings to
    a student's hint of the same name.

    Raises:
        ConfigError: no such hint.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--student-hint", default=NONE)
    name = first.parse_known_args(list(argv))[0].student_hint
    parser.add_argument(
        "--student-hint",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help=f"a hint in the student's own prompt: {', '.join(registry.names('hint'))} [{NONE}]",
    )
    add_flags(parser, registry.load("hint", name).config_type, f"student hint {name}")
    lent = dict(recipe.get("hint", {}))
    if lent.pop("name", None) == name:
        config.component("hint", name, lent)
        parser.set_defaults(**lent)


def student_hint(given: dict[str, Any]) -> Chosen:
    """The hint that parsed flags choose, with its settings; the silent one by default."""
    return config.component_from_args("hint", given.get("student_hint", NONE), given)
