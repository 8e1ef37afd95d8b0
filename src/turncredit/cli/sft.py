"""Learn from demonstrations: cross-entropy on the actions of experts, or of a run's successes."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from turncredit import config
from turncredit.cli import dry_run
from turncredit.cli.hinting import add_student_hint, student_hint
from turncredit.cli.progress import Terminal
from turncredit.cli.train import begun, check_limit, place_of
from turncredit.core import registry
from turncredit.core.errors import ConfigError, DataError
from turncredit.core.settings import add_flags, free_settings
from turncredit.loop import forecast_sft, sft_settings
from turncredit.loop.demonstrations import STORED
from turncredit.loop.listener import Listener
from turncredit.loop.sft import (
    Supervised,
    demonstrations,
    describe,
    has_demonstrations,
    keep,
)
from turncredit.loop.sft_parts import Parts, check_sources, collect, open_parts
from turncredit.loop.sft_settings import EXPERTS, SECTIONS, Settings
from turncredit.record.runlog import RunFolder
from turncredit.record.trackers import About, check_trackers, open_trackers

HELP = "learn from demonstrations: experts, or what a run recorded"
COMPONENTS = ("env", "backend")
# Demonstrations of a start that failed: they are gathered again, as they are wanted now.
REMADE = (STORED,)
_FREE = {"max_steps", "epochs", "save_every", *(f.name for f in fields(config.Log))}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags, and those of the fixed sections."""
    parser.add_argument(
        "--from",
        dest="sources",
        nargs="+",
        action="extend",
        default=argparse.SUPPRESS,
        metavar="SOURCE",
        help=f"{EXPERTS} (the environment's walkthroughs), or run folders [{EXPERTS}]",
    )
    parser.add_argument("--recipe", metavar="FILE", help="take settings from this training recipe")
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder, exactly")
    parser.add_argument("--overwrite", action="store_true", help="replace a run of the same name")
    dry_run.add_flag(parser)
    for section, cls in SECTIONS.items():
        add_flags(parser, cls, section)


def add_chosen_arguments(
    parser: argparse.ArgumentParser, argv: Sequence[str], recipe: config.Values
) -> None:
    """The flags that depend on what was chosen."""
    add_student_hint(parser, argv, recipe)


def run(args: argparse.Namespace) -> int:
    """Learn, or continue; then say how to go on."""
    given = vars(args)
    if args.dry_run is not None:
        return _dry_run(args)
    folder = None
    if args.resume:
        folder, settings = reopen(Path(args.resume), given)
    else:
        settings = chosen(given)
        RunFolder.check_free(place_of(settings), overwrite=args.overwrite, remade=REMADE)
        check_sources(settings)
    check_trackers(_mirrors(settings))
    check_limit(settings)
    parts = open_parts(settings)
    folder = asyncio.run(
        supervise(settings, parts, Progress(), folder=folder, overwrite=args.overwrite)
    )
    if said := _learnt(folder):
        print(said)
    print(f"run folder: {folder.path}")
    recipe = f"--recipe {args.recipe}" if args.recipe else f"--env {settings.env.name}"
    backend = "" if args.recipe else f" --backend {settings.backend.name}"
    print(f"go on with: turncredit train {recipe}{backend} --init-from {folder.path}")
    return 0


def _dry_run(args: argparse.Namespace) -> int:
    """Say what would be used; a run that is to go on is its own example."""
    if not args.resume:
        settings = chosen(vars(args))
        check_sources(settings)
        dry_run.supervised(settings, args.dry_run)
        return 0
    folder = RunFolder.open(Path(args.resume))
    settings = changed(folder, vars(args))
    known = None
    if has_demonstrations(folder):
        known = forecast_sft.gathered(demonstrations(folder), settings)
    dry_run.supervised(settings, args.dry_run, _done(folder), known)
    return 0


def chosen(given: Mapping[str, Any]) -> Settings:
    """The settings of a new run: flags over the recipe.

    Raises:
        ConfigError: they cannot work.
    """
    recipe = config.read_recipe(given["recipe"]) if given.get("recipe") else {}
    lent = sft_settings.lent(recipe)
    if "epochs" in given:  # how long, said in another way than the recipe does
        lent.get("schedule", {}).pop("max_steps", None)
    names = {kind: given[kind] for kind in COMPONENTS}
    hint = student_hint(dict(given))
    flags = sft_settings.place(given, {**names, "hint": hint.name})
    return sft_settings.build(config.merge(lent, flags))


async def supervise(
    settings: Settings,
    parts: Parts,
    listener: Listener,
    *,
    folder: RunFolder | None = None,
    overwrite: bool = False,
) -> RunFolder:
    """Gather demonstrations, make the run folder, and learn. Closes what `parts` hold.

    Args:
        settings: of the run.
        parts: its opened components.
        listener: hears of progress.
        folder: of a run to continue; None begins one.
        overwrite: a new run may replace one of its name.
    """
    try:
        found = None
        if folder is None or not has_demonstrations(folder):
            found = await collect(settings, parts, listener)
        with _held(settings, folder, overwrite=overwrite) as folder:
            if found is not None and not has_demonstrations(folder):
                keep(folder, found)
            await _learn(settings, parts, folder, listener)
        return folder
    finally:
        if callable(close := getattr(parts.environment, "close", None)):
            close()
        await parts.backend.aclose()


async def _learn(settings: Settings, parts: Parts, folder: RunFolder, listener: Listener) -> None:
    log = settings.log
    about = About(
        project=log.swanlab_project,
        run_name=settings.name,
        config=settings.to_dict(),
        mode=log.swanlab_mode if log.swanlab_mode != "disabled" else "offline",
        folder=folder.path,
    )
    tracker = open_trackers(_mirrors(settings), about)
    try:
        stage = Supervised(settings, parts, folder, tracker=tracker, listener=listener)
        listener.note(f"{folder.path}: {stage.plan()}")
        if isinstance(listener, Progress):
            listener.lasts(stage.steps)
        await stage.run()
    finally:
        tracker.close()


@contextmanager
def _held(settings: Settings, folder: RunFolder | None, *, overwrite: bool) -> Iterator[RunFolder]:
    """The folder of the run, fresh or its own, with the settings in it; nobody else writes it."""
    if folder is None:
        fresh = begun(settings, describe(settings), overwrite=overwrite, remade=REMADE)
        with fresh as folder:
            yield folder
    else:
        with folder.locked():
            folder.write_config(describe(settings))
            yield folder


def reopen(path: Path, given: Mapping[str, Any]) -> tuple[RunFolder, Settings]:
    """The folder and settings of an existing run; only its length and mirrors may change.

    Nothing is written yet: `supervise` does, when the run is its own.

    Raises:
        ConfigError: another setting was given too, or the run has made more updates than wanted.
        DataError: no supervised run, or its settings are not those it began with.
    """
    folder = RunFolder.open(path)
    settings, done = changed(folder, given), _done(folder)
    if 0 < settings.schedule.max_steps < done:
        raise ConfigError(f"{path} has made {done} updates; --max-steps must be at least {done}")
    return folder, settings


def changed(folder: RunFolder, given: Mapping[str, Any]) -> Settings:
    """The settings of an existing run with those that may change; see `reopen`."""
    path, saved = folder.path, folder.config()
    began = saved.pop("digest", None)
    config.check_sections(saved, f"{path}/config.json")
    if "sft" not in saved:
        raise DataError(
            f"{path} is no supervised run: continue it with turncredit train --resume, or learn "
            f"from it with --from {path}"
        )
    if began != sft_settings.build(saved).digest():
        raise DataError(
            f"{path}/config.json is not what the run began with (its digest differs): it cannot "
            "be continued exactly. Restore the file, or begin under another name"
        )
    _check_free(saved, given)
    for kind in sft_settings.KINDS:
        saved[kind] |= {key: given[key] for key in _free_of(saved, kind) & given.keys()}
    for section, cls in SECTIONS.items():
        known = {f.name for f in fields(cls)} & _FREE & given.keys()
        saved[section] |= {key: given[key] for key in known}
    if "max_steps" in given and "epochs" not in given:
        saved["sft"]["epochs"] = 0
    if "epochs" in given and "max_steps" not in given:
        saved["schedule"]["max_steps"] = 0
    return sft_settings.build(saved)


def _check_free(saved: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> None:
    known = {f.name for cls in SECTIONS.values() for f in fields(cls)} - _FREE
    for kind in sft_settings.KINDS:
        known |= saved[kind].keys() - {"name"} - _free_of(saved, kind)
    fixed = {"sources": "from", "student_hint": "student-hint"}
    clash = {key.replace("_", "-") for key in known & given.keys()}
    clash |= {flag for key, flag in fixed.items() if key in given}
    clash |= {key for key in ("recipe", "overwrite") if given.get(key)}
    clash |= {k for k in given.get("chosen_by_flag", ()) if given[k] != saved[k]["name"]}
    if clash:
        raise ConfigError(
            f"--resume continues a run as it was; it cannot take --{min(clash)}. "
            "Only --max-steps, --epochs, --save-every, mirrors, prices and the way to a service "
            "may change"
        )


def _free_of(saved: Mapping[str, Mapping[str, Any]], kind: str) -> set[str]:
    """Settings of a component that a resumed run may change."""
    return free_settings(registry.load(kind, str(saved[kind]["name"])).config_type)


def _done(folder: RunFolder) -> int:
    """Updates up to the newest checkpoint."""
    found = folder.checkpoints()
    for key in ("state", "sampler"):
        if found and not isinstance(found[-1].get(key), str):
            raise DataError(
                f"the last line of {folder.path}/checkpoints.jsonl lacks {key}: the file is "
                f"damaged. {folder.how_to_step_back()}"
            )
    return found[-1]["step"] if found else 0


def _mirrors(settings: Settings) -> list[str]:
    swanlab = settings.log.swanlab_mode != "disabled"
    return [*settings.log.trackers, *(["swanlab"] if swanlab else [])]


def _learnt(folder: RunFolder) -> str:
    """The held-out loss before and after, where some demonstrations were kept aside."""
    rows = folder.metrics()
    before = [r["sft/held_out_loss_before"] for r in rows if "sft/held_out_loss_before" in r]
    after = [r["sft/held_out_loss"] for r in rows if "sft/held_out_loss" in r]
    if not before or not after:
        return ""
    return f"held-out cross-entropy: {before[0]:.4f} → {after[-1]:.4f} nats a token"


class Progress(Terminal):
    """What a person sees of a supervised run: one line an update."""

    def __init__(self) -> None:
        super().__init__(0, stream=sys.stderr)

    def lasts(self, steps: int) -> None:
        """How many updates there will be."""
        self._max = steps

    def phase(self, step: int, name: str) -> None:
        """Show where the run is; step 0 is the gathering of demonstrations."""
        super().phase(step, name)
        if step == 0:
            self._where = name

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """One lasting line."""
        if not self._header:
            self._header = True
            self._print("update    epoch     loss  held-out  gradient   tokens  seconds")
        held_out = metrics.get("sft/held_out_loss")
        shown = f"{'-':>8}" if held_out is None else f"{held_out:8.4f}"
        self._print(
            f"{step:>3}/{self._max:<4} {metrics['sft/epoch']:6.2f}  {metrics['sft/loss']:7.4f}"
            f"  {shown}  {metrics.get('train/grad_norm', 0.0):8.3f}"
            f"  {metrics['sft/action_tokens']:7.0f}  {metrics['time/step']:7.1f}"
        )
