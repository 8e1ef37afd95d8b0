"""Hold an environment to the contract: tasks, episodes, replays, success."""

from __future__ import annotations

import argparse
import asyncio

from turncredit.cli import suite
from turncredit.core.errors import ConfigError
from turncredit.envs.check import check_environment

HELP = "conformance suite of an environment"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--tasks", type=int, default=2, help="tasks played per split [2]")
    suite.add_component(parser, "env")


def run(args: argparse.Namespace) -> int:
    """Run the suite; 1 when a check failed."""
    own = ("tasks", args.tasks)
    component, config, mine = suite.chosen("env", args.env, args.settings, own)
    if mine["tasks"] < 1:
        raise ConfigError(f"--tasks {mine['tasks']}; play at least 1")
    environment, twin = component.create(config), component.create(config)
    try:
        results = asyncio.run(check_environment(environment, twin=twin, tasks=mine["tasks"]))
    finally:
        for made in (environment, twin):
            getattr(made, "close", lambda: None)()
    return suite.report(results)
