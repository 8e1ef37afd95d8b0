"""Hold a backend to the contract: log-probs, seeds, updates, snapshots, resume."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from turncredit.backends.check import CheckResult, check_backend
from turncredit.cli.main import Parser
from turncredit.core import registry
from turncredit.core.settings import add_flags, coerce

HELP = "conformance suite of a backend"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("backend", metavar="NAME", help="a name, or your own module:Backend")
    parser.add_argument(
        "settings",
        metavar="--setting VALUE",
        nargs=argparse.REMAINDER,
        help="settings of the backend, as in train (NAME --help lists them)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the suite; 1 when a check failed."""
    component = registry.load("backend", args.backend)
    parser = Parser(prog=f"turncredit check-backend {args.backend}", allow_abbrev=False)
    add_flags(parser, component.config_type, f"backend {args.backend}")
    given = vars(parser.parse_args(args.settings))
    config = coerce(component.config_type, given, f"backend {args.backend}")
    results = asyncio.run(_check(component, config))
    for result in results:
        detail = f"   ({result.detail})" if result.detail else ""
        print(f"{'passed' if result.passed else 'FAILED'}  {result.name}{detail}")
    failed = sum(not result.passed for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


async def _check(component: registry.Component, config: object) -> list[CheckResult]:
    backend = component.create(config)
    try:
        with tempfile.TemporaryDirectory(prefix="turncredit-check-") as folder:
            return await check_backend(backend, Path(folder))
    finally:
        await backend.aclose()
