"""Hold an environment to the contract: tasks, episodes, replays, success."""

from __future__ import annotations

import argparse
import asyncio

from turncredit.cli.main import Parser
from turncredit.core import registry
from turncredit.core.errors import ConfigError
from turncredit.core.settings import add_flags, coerce
from turncredit.envs.check import CheckResult, check_environment

HELP = "conformance suite of an environment"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--tasks", type=int, default=2, help="tasks played per split [2]")
    parser.add_argument("env", metavar="NAME", help="a name, or your own module:Env")
    parser.add_argument(
        "settings",
        metavar="--setting VALUE",
        nargs=argparse.REMAINDER,
        help="settings of the environment, as in train (NAME --help lists them)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the suite; 1 when a check failed."""
    component = registry.load("env", args.env)
    parser = Parser(prog=f"turncredit check-env {args.env}", allow_abbrev=False)
    parser.add_argument("--tasks", type=int, default=args.tasks, help="tasks played per split")
    add_flags(parser, component.config_type, f"environment {args.env}")
    given = vars(parser.parse_args(args.settings))
    tasks = given.pop("tasks")
    if tasks < 1:
        raise ConfigError(f"--tasks {tasks}; play at least 1")
    config = coerce(component.config_type, given, f"environment {args.env}")
    environment, twin = component.create(config), component.create(config)
    try:
        results = asyncio.run(check_environment(environment, twin=twin, tasks=tasks))
    finally:
        for made in (environment, twin):
            getattr(made, "close", lambda: None)()
    return report(results)


def report(results: list[CheckResult]) -> int:
    """Print the results; 1 when one failed."""
    for result in results:
        detail = f"   ({result.detail})" if result.detail else ""
        print(f"{'passed' if result.passed else 'FAILED'}  {result.name}{detail}")
    failed = sum(not result.passed for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0
