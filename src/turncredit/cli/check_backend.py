"""Hold a backend to the contract: log-probs, seeds, updates, snapshots, resume."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from turncredit.backends.check import check_backend
from turncredit.cli import suite
from turncredit.core import registry
from turncredit.core.checks import CheckResult

HELP = "conformance suite of a backend"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    suite.add_component(parser, "backend")


def run(args: argparse.Namespace) -> int:
    """Run the suite; 1 when a check failed."""
    component, config, _ = suite.chosen("backend", args.backend, args.settings)
    return suite.report(asyncio.run(_check(component, config)))


async def _check(component: registry.Component, config: object) -> list[CheckResult]:
    backend = component.create(config)
    try:
        with tempfile.TemporaryDirectory(prefix="turncredit-check-") as folder:
            return await check_backend(backend, Path(folder))
    finally:
        await backend.aclose()
