"""Train a policy: rollouts without hints, a second look with them, one update a step."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from turncredit import config
from turncredit.cli.progress import Terminal
from turncredit.config import Run
from turncredit.core.errors import ConfigError
from turncredit.core.settings import add_flags
from turncredit.loop.parts import open_parts
from turncredit.loop.train import Listener, Trainer, describe
from turncredit.record.environment import describe as describe_machine
from turncredit.record.runlog import RunFolder
from turncredit.record.trackers import About, open_trackers

HELP = "train a policy"
COMPONENTS = config.KINDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags, and those of the fixed sections."""
    parser.add_argument("--recipe", metavar="FILE", help="TOML file, or the name of a shipped one")
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder, exactly")
    parser.add_argument("--overwrite", action="store_true", help="replace a run of the same name")
    for section, cls in config.SECTIONS.items():
        add_flags(parser, cls, section)


def run(args: argparse.Namespace) -> int:
    """Train, or continue."""
    given = vars(args)
    if args.resume:
        folder, settings = reopen(Path(args.resume), given)
    else:
        names = {kind: given[kind] for kind in config.KINDS}
        recipe = config.read_recipe(args.recipe) if args.recipe else {}
        settings = config.build(config.merge(recipe, config.place(given, names)))
        folder = begin(settings, overwrite=args.overwrite)
    train(settings, folder, Terminal(settings.schedule.max_steps))
    print(f"run folder: {folder.path}")
    return 0


def begin(settings: Run, *, overwrite: bool = False) -> RunFolder:
    """A fresh run folder holding the settings."""
    folder = RunFolder.create(Path(settings.schedule.runs_dir) / settings.name, overwrite=overwrite)
    folder.write_environment(describe_machine())
    folder.write_config(describe(settings))
    return folder


def reopen(path: Path, given: Mapping[str, Any]) -> tuple[RunFolder, Run]:
    """The folder and settings of an existing run; only its length and mirrors may change.

    Raises:
        ConfigError: another setting was given too, which the run cannot take on half-way.
    """
    folder = RunFolder.open(path)
    saved = folder.config()
    saved.pop("digest", None)
    free = {"max_steps", "save_every", *(f.name for f in fields(config.Log))}
    known = {f.name for cls in config.SECTIONS.values() for f in fields(cls)}
    for kind in config.KINDS:
        known |= set(saved[kind]) - {"name"}
    if clash := sorted((known - free) & given.keys()):
        raise ConfigError(
            f"--resume continues a run as it was; it cannot take --{clash[0].replace('_', '-')}. "
            "Only --max-steps, --save-every and mirrors may change"
        )
    change = {key: given[key] for key in free if key in given}
    homes = {f.name: section for section, cls in config.SECTIONS.items() for f in fields(cls)}
    for key, value in change.items():
        saved[homes[key]][key] = value
    settings = config.build(saved)
    folder.write_config(describe(settings))
    return folder, settings


def train(settings: Run, folder: RunFolder, listener: Listener) -> None:
    """Run the trainer over `folder` until its last update."""
    parts = open_parts(settings)
    names = list(settings.log.trackers)
    if settings.log.swanlab_mode != "disabled":
        names.append("swanlab")
    about = About(
        project=settings.log.swanlab_project,
        run_name=settings.name,
        config=settings.to_dict(),
        mode=settings.log.swanlab_mode if settings.log.swanlab_mode != "disabled" else "offline",
        folder=folder.path,
    )
    tracker = open_trackers(names, about)

    async def go() -> None:
        try:
            with folder.locked():
                await Trainer(settings, parts, folder, tracker=tracker, listener=listener).run()
        finally:
            tracker.close()
            await parts.backend.aclose()

    asyncio.run(go())
