"""Train a policy: rollouts without hints, a second look with them, one update a step."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from turncredit import config
from turncredit.cli import dry_run
from turncredit.cli.progress import Terminal
from turncredit.config import Run
from turncredit.core import registry
from turncredit.core.errors import ConfigError, DataError
from turncredit.core.settings import add_flags, free_settings
from turncredit.loop.listener import Listener
from turncredit.loop.parts import Parts, open_parts
from turncredit.loop.sft_settings import Settings
from turncredit.loop.train import Trainer, describe
from turncredit.loop.weights import pinned
from turncredit.record.environment import describe as describe_machine
from turncredit.record.prices import missing, read_prices
from turncredit.record.runlog import RunFolder
from turncredit.record.trackers import About, check_trackers, open_trackers

HELP = "train a policy"
COMPONENTS = config.KINDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags, and those of the fixed sections."""
    parser.add_argument("--recipe", metavar="FILE", help="TOML file, or the name of a shipped one")
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder, exactly")
    parser.add_argument("--overwrite", action="store_true", help="replace a run of the same name")
    dry_run.add_flag(parser)
    for section, cls in config.SECTIONS.items():
        add_flags(parser, cls, section)


def run(args: argparse.Namespace) -> int:
    """Train, or continue."""
    given = vars(args)
    if args.dry_run is not None:
        return _dry_run(args)
    if args.resume:
        folder, settings = reopen(Path(args.resume), given)
        check_limit(settings)
        parts = open_parts(settings)
        train(settings, folder, Terminal(settings.schedule.max_steps), parts)
    else:
        settings = pinned(_settings(args))
        # What cannot work says so before a folder is made, or an old run replaced.
        RunFolder.check_free(place_of(settings), overwrite=args.overwrite)
        check_trackers(_mirrors(settings))
        check_limit(settings)
        parts = open_parts(settings)
        with begun(settings, describe(settings), overwrite=args.overwrite) as folder:
            train(settings, folder, Terminal(settings.schedule.max_steps), parts)
    print(f"run folder: {folder.path}")
    return 0


def _dry_run(args: argparse.Namespace) -> int:
    """Say what would be used; a run that is to go on is its own example."""
    if args.resume:
        folder = RunFolder.open(Path(args.resume))
        settings, done = changed(folder, vars(args)), _done(folder)
        dry_run.training(settings, args.dry_run or args.resume, done)
    else:
        dry_run.training(_settings(args), args.dry_run)
    return 0


def _settings(args: argparse.Namespace) -> Run:
    """The settings of a new run: flags over the recipe over the defaults."""
    given = vars(args)
    names = {kind: given[kind] for kind in config.KINDS}
    recipe = config.read_recipe(args.recipe) if args.recipe else {}
    return config.build(config.merge(recipe, config.place(given, names)))


@contextmanager
def begun(
    settings: Run | Settings,
    config: Mapping[str, Any],
    *,
    overwrite: bool = False,
    remade: Collection[int] = (),
) -> Iterator[RunFolder]:
    """A fresh run folder holding the settings; nobody else writes it until the end of the block.

    Args:
        settings: of the run.
        config: the same as written down.
        overwrite: an existing run is replaced.
        remade: steps whose trajectories the run writes at its start.
    """
    with RunFolder.begun(place_of(settings), overwrite=overwrite, remade=remade) as folder:
        folder.write_environment(describe_machine())
        folder.write_config(config)
        yield folder


def place_of(settings: Run | Settings) -> Path:
    """Where a new run belongs."""
    return Path(settings.schedule.runs_dir) / settings.name


def begin(settings: Run, *, overwrite: bool = False) -> RunFolder:
    """A fresh run folder holding the settings."""
    with begun(settings, describe(settings), overwrite=overwrite) as folder:
        return folder


def reopen(path: Path, given: Mapping[str, Any]) -> tuple[RunFolder, Run]:
    """The folder and settings of an existing run; only its length and mirrors may change.

    Nothing is written yet: `train` does, when the run is its own.

    Raises:
        ConfigError: another setting was given too, which the run cannot take on half-way, or it
            has made more updates than wanted now.
        DataError: its settings are not those it began with.
    """
    folder = RunFolder.open(path)
    settings, done = changed(folder, given), _done(folder)
    if settings.schedule.max_steps < done:
        raise ConfigError(f"{path} has made {done} updates; --max-steps must be at least {done}")
    return folder, settings


def changed(folder: RunFolder, given: Mapping[str, Any]) -> Run:
    """The settings of an existing run with those that may change; see `reopen`."""
    path, saved = folder.path, folder.config()
    began = saved.pop("digest", None)
    config.check_sections(saved, f"{path}/config.json")
    if began != config.build(saved).digest():
        raise DataError(
            f"{path}/config.json is not what the run began with (its digest differs), or a version "
            "with other settings began it: it cannot be continued exactly. Restore the file, "
            "continue with that version, or train under another name"
        )
    free = {"max_steps", "save_every", *(f.name for f in fields(config.Log))}
    known = {f.name for cls in config.SECTIONS.values() for f in fields(cls)}
    homes = {f.name: section for section, cls in config.SECTIONS.items() for f in fields(cls)}
    for kind in config.KINDS:
        known |= set(saved[kind]) - {"name"}
        own = free_settings(registry.load(kind, saved[kind]["name"]).config_type)
        free |= own
        homes |= dict.fromkeys(own, kind)
    extra = {key for key in ("recipe", "overwrite") if given.get(key)}
    extra |= {k for k in given.get("chosen_by_flag", ()) if given[k] != saved[k]["name"]}
    if clash := sorted((known - free) & given.keys() | extra):
        raise ConfigError(
            f"--resume continues a run as it was; it cannot take --{clash[0].replace('_', '-')}. "
            "Only --max-steps, --save-every, mirrors, prices and the way to a service may change"
        )
    change = {key: given[key] for key in free if key in given}
    for key, value in change.items():
        saved[homes[key]][key] = value
    return config.build(saved)


def check_limit(settings: Run | Settings) -> None:
    """Refuse a limit that nobody could keep: before a folder is made, or anything is called.

    Raises:
        ConfigError: there is no price to count by.
        DataError: the table of prices cannot be read.
    """
    prices, backend = read_prices(settings.log.prices), settings.backend
    model = getattr(backend.config, "base_model", "")
    if settings.log.max_cost is not None and prices.find(backend.name, model) is None:
        raise ConfigError(
            f"max_cost={settings.log.max_cost:g} cannot be kept: "
            f"{missing(backend.name, model, prices)}"
        )


def _done(folder: RunFolder) -> int:
    """Updates up to the newest checkpoint."""
    found = folder.checkpoints()
    for key in ("state", "sampler", "student_logprobs"):
        if found and not isinstance(found[-1].get(key), str):
            raise DataError(
                f"the last line of {folder.path}/checkpoints.jsonl lacks {key}: the file is "
                f"damaged. {folder.how_to_step_back()}"
            )
    return found[-1]["step"] if found else 0


def _mirrors(settings: Run) -> list[str]:
    swanlab = settings.log.swanlab_mode != "disabled"
    return [*settings.log.trackers, *(["swanlab"] if swanlab else [])]


def train(settings: Run, folder: RunFolder, listener: Listener, parts: Parts | None = None) -> None:
    """Run the trainer over `folder` until its last update; nobody else writes it meanwhile."""
    parts = parts or open_parts(settings)
    with folder.locked():
        folder.write_config(describe(settings))
        asyncio.run(_train(settings, folder, listener, parts))


async def _train(settings: Run, folder: RunFolder, listener: Listener, parts: Parts) -> None:
    about = About(
        project=settings.log.swanlab_project,
        run_name=settings.name,
        config=settings.to_dict(),
        mode=settings.log.swanlab_mode if settings.log.swanlab_mode != "disabled" else "offline",
        folder=folder.path,
    )
    tracker = open_trackers(_mirrors(settings), about)
    schedule = settings.schedule
    listener.note(
        f"{folder.path}: {schedule.max_steps} update{'s' * (schedule.max_steps != 1)} of "
        f"{schedule.tasks_per_update} task{'s' * (schedule.tasks_per_update != 1)} x "
        f"{schedule.group_size} trajectories"
    )
    try:
        await Trainer(settings, parts, folder, tracker=tracker, listener=listener).run()
    finally:
        tracker.close()
        await parts.backend.aclose()
