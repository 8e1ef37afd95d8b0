"""Hold a backend to the contract: log-probs, seeds, updates, snapshots, resume.

With `--loopback` after the name of a service, its genuine SDK is held to it against a service on
this machine: nothing is paid.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from turncredit.backends import local
from turncredit.backends.check import check_backend
from turncredit.cli import suite
from turncredit.core import registry
from turncredit.core.checks import CheckResult
from turncredit.core.clients import Backend, RemoteBackend
from turncredit.core.errors import ConfigError

HELP = "conformance suite of a backend"
_BOUNDS = (
    "The bounds are those of float32. In bfloat16, which --dtype auto may have taken, rounding "
    "alone exceeds them: --dtype float32 tells whether it was that"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--loopback", action="store_true", help="against a service started here")
    suite.add_component(parser, "backend")


def run(args: argparse.Namespace) -> int:
    """Run the suite; 1 when a check failed."""
    words = [word for word in args.settings if word != "--loopback"]
    loopback = args.loopback or len(words) < len(args.settings)
    component, config, _ = suite.chosen("backend", args.backend, words)
    with tempfile.TemporaryDirectory(prefix="turncredit-check-") as folder:
        if not loopback:
            status = suite.report(asyncio.run(_check(component, config, Path(folder))))
            if status and getattr(config, "dtype", "float32") != "float32":
                print(_BOUNDS)
            return status
        return _against_loopback(component, config, Path(folder))


def _against_loopback(component: registry.Component, config: Any, folder: Path) -> int:
    from turncredit.backends.loopback.rehearsal import SERVICES, rehearsal

    if component.name not in SERVICES:
        raise ConfigError(
            f'there is no loopback service for backend "{component.name}" '
            f"(there is one for {', '.join(SERVICES)})"
        )
    inside = local.Config(lora_rank=config.lora_rank)
    made = rehearsal(component.name, inside, folder / "service")
    with made.server as server:
        here = replace(config, base_url=server.url, base_model=inside.base_model, tokenizer="")
        return suite.report(asyncio.run(_check(component, here, folder / "states")))


async def _check(component: registry.Component, config: object, folder: Path) -> list[CheckResult]:
    backend: Backend = component.create(config)
    try:
        if isinstance(backend, RemoteBackend):
            backend.check_key()
        return await check_backend(backend, folder)
    finally:
        await backend.aclose()
