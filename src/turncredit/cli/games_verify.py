"""`turncredit games verify` and `replay`: our engine held equal to TextWorld's answers."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from turncredit.core.errors import ConfigError, DataError
from turncredit.envs.household import files, transcripts
from turncredit.envs.household.domain import TASK_TYPES
from turncredit.envs.household.generator import generate, to_bytes
from turncredit.envs.household.rooms import Size
from turncredit.envs.household.verify import Tally, compare
from turncredit.envs.textworld_engine import Pool, TextWorldPlayer

_SPLITS = ("train", "valid_seen", "valid_unseen")
_SIZES: tuple[Size, ...] = ("small", "full")
_STEP_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Subject:
    """A game to compare: what to call it, and its file."""

    name: str
    path: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `verify`."""
    parser.add_argument("--games", type=int, default=6, metavar="N", help="how many [6]")
    parser.add_argument("--steps", type=int, default=40, metavar="M", help="commands a game [40]")
    parser.add_argument("--seed", type=int, default=0, help="of the draw and the commands [0]")
    parser.add_argument("--data-root", metavar="DIR", help="official games (else ALFWORLD_DATA)")
    parser.add_argument(
        "--source",
        choices=("auto", "official", "generated", "both"),
        default="auto",
        help="which games; auto: official ones where they are found, else generated [auto]",
    )
    parser.add_argument("--workers", type=int, default=2, help="TextWorld processes [2]")


def run(args: argparse.Namespace) -> int:
    """Compare both engines; 1 when they differ."""
    if min(args.games, args.steps, args.workers) < 1:
        raise ConfigError("--games, --steps and --workers must be at least 1")
    with tempfile.TemporaryDirectory() as scratch:
        subjects = _subjects(args, Path(scratch))
        tally = asyncio.run(_verify(subjects, args.steps, args.seed, args.workers))
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(tally.kinds.items()))
    print(f"\n{tally.games} games, {tally.steps} commands ({kinds})")
    print(f"{len(tally.differences)} differences")
    return 1 if tally.differences else 0


async def _verify(subjects: Sequence[_Subject], steps: int, seed: int, workers: int) -> Tally:
    pool, total = Pool(workers, _STEP_SECONDS), Tally()

    async def one(subject: _Subject) -> None:
        tally = Tally()
        loaded = files.read(subject.path)
        player = TextWorldPlayer(pool, subject.path)
        await compare(subject.name, loaded, player, Random(f"{seed}|{subject.name}"), steps, tally)
        total.add(tally)
        print(f"{'DIFFERS' if tally.differences else 'equal':8} {subject.name}", flush=True)
        for difference in tally.differences:
            print(difference)

    try:
        await asyncio.gather(*map(one, subjects))
    finally:
        pool.close()
    return total


def _subjects(args: argparse.Namespace, scratch: Path) -> list[_Subject]:
    source = args.source
    if source == "auto":
        source = "official"
        try:
            files.resolve_root(args.data_root)
        except DataError as error:
            if args.data_root:
                raise
            print(f"generated games only: {error}\n")
            source = "generated"
    subjects = [] if source == "generated" else _official(args)
    return subjects if source == "official" else subjects + _generated(args, scratch)


def _official(args: argparse.Namespace) -> list[_Subject]:
    """Games drawn over all splits, the task types in turn."""
    root, rng = files.resolve_root(args.data_root), Random(args.seed)
    splits = [s for s in files.splits_in(root) if s in _SPLITS] or list(files.splits_in(root))
    games = [game for split in splits for game in files.discover(root, split).games]
    rng.shuffle(games)
    by_type = [[game for game in games if game.task_type == t] for t in TASK_TYPES]
    turns = [games[i] for i in range(max(map(len, by_type))) for games in by_type if i < len(games)]
    return [_Subject(game.id, game.path) for game in turns[: args.games]]


def _generated(args: argparse.Namespace, scratch: Path) -> list[_Subject]:
    """New games, task types and sizes in turn, written as files: TextWorld reads those."""
    subjects = []
    for number in range(args.games):
        seed, size = args.seed + number, _SIZES[number // len(TASK_TYPES) % len(_SIZES)]
        game = generate(TASK_TYPES[seed % len(TASK_TYPES)], seed, split="valid_unseen", size=size)
        path = scratch / f"{number}.tw-pddl"
        path.write_bytes(to_bytes(game))
        subjects.append(_Subject(game.id, path))
    return subjects


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `replay`."""
    parser.add_argument("file", type=Path, help="transcripts: JSON lines, plain or gzip")
    parser.add_argument("--data-root", metavar="DIR", help="official games (else ALFWORLD_DATA)")


def run_replay(args: argparse.Namespace) -> int:
    """Replay every transcript; 1 when one differs."""
    recorded = list(transcripts.read(args.file))
    root = files.resolve_root(args.data_root)
    failed = 0
    for number, transcript in enumerate(recorded, start=1):
        try:
            loaded = files.read(files.path_of(root, transcript.game))
            found: object = transcripts.replay(transcript, loaded)
        except DataError as error:
            found = error
        if found is not None:
            failed += 1
            print(f"FAILED  transcript {number}: {found}")
    print(f"{len(recorded) - failed} passed, {failed} failed")
    return 1 if failed else 0
