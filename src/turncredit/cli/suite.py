"""What the two conformance commands share: a component with its settings, and the verdict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from turncredit.cli.main import Parser
from turncredit.core import registry
from turncredit.core.checks import CheckResult
from turncredit.core.settings import add_flags, coerce


def add_component(parser: argparse.ArgumentParser, kind: str) -> None:
    """`NAME` and, after it, the component's own settings."""
    parser.add_argument(kind, metavar="NAME", help="a name, or your own module:Name")
    after = parser.add_argument(
        "settings",
        metavar="FLAGS",
        nargs=argparse.REMAINDER,
        help="the component's own, as in train (NAME --help lists them)",
    )
    after.required = False  # in Python 3.11 the rest of a line is, though it may be empty


def chosen(
    kind: str, name: str, settings: Sequence[str], *own: tuple[str, int]
) -> tuple[registry.Component, Any, dict[str, Any]]:
    """The component, its configuration, and the command's own flags given after the name.

    Args:
        kind: env or backend.
        name: which one.
        settings: the words after it.
        own: names and defaults of the command's own whole-number flags.
    """
    component = registry.load(kind, name)
    parser = Parser(prog=f"turncredit check-{kind} {name}", allow_abbrev=False)
    for flag, default in own:
        parser.add_argument(f"--{flag}", type=int, default=default)
    add_flags(parser, component.config_type, f"{kind} {name}")
    given = vars(parser.parse_args(settings))
    mine = {flag: given.pop(flag) for flag, _ in own}
    return component, coerce(component.config_type, given, f"{kind} {name}"), mine


def report(results: Sequence[CheckResult]) -> int:
    """Print a line a check and the count; 1 when one failed."""
    for result in results:
        detail = f"   ({result.detail})" if result.detail else ""
        print(f"{'passed' if result.passed else 'FAILED'}  {result.name}{detail}")
    failed = sum(not result.passed for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0
